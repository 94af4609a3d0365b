"""Comparison of the product's state with the reference. Invariant: each is asked, neither is
changed."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.experience.episode import Episode
from asyncrl.experience.ledger import Books
from asyncrl.messages import NoVerdict, Scored, Split
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceEpisode
from asyncrl.simulation.checker.strand_checks import check_contexts, check_sealed
from asyncrl.simulation.checker.work_checks import check_work


def compare(run: CheckedRun) -> None:
    """Compare the counts, and the rollouts that events have named since the last comparison."""
    mine, theirs = run.reference, run.store.experience
    tokens, rollouts = theirs.ledger.tokens, theirs.ledger.rollouts
    generated = mine.tokens, mine.tokens_trained, mine.tokens_live, +mine.tokens_discarded
    written = tokens.total, tokens.trained, tokens.live, Counter(tokens.discarded)
    run.hold(
        "ledger", generated == written, "tokens: {}, and the ledger says {}", generated, written
    )
    own = sum(seen.own for seen in mine.rollouts.values())
    admitted = mine.admitted, mine.trained, own, +mine.discarded
    written = rollouts.total, rollouts.trained, rollouts.live, Counter(rollouts.discarded)
    run.hold(
        "ledger", admitted == written, "rollouts: {}, and the ledger says {}", admitted, written
    )
    run.hold("ledger", theirs.ledger.balances(), "the ledger does not balance")
    _foreign(run)
    live = mine.groups_live, mine.groups_untaken, mine.rollouts_live, mine.rollouts_untaken
    counted = (
        theirs.groups_live,
        theirs.groups_untaken,
        theirs.rollouts_live,
        theirs.rollouts_untaken,
    )
    run.hold(
        "queue",
        live == counted,
        "groups and rollouts that are live, and untaken: {}, not {}",
        live,
        counted,
    )
    queue = theirs.queue_items, theirs.queue_bytes
    run.hold("queue", mine.queue == queue, "the queue holds {}, not {}", mine.queue, queue)
    for id in mine.touched:
        _rollout(run, id)
    mine.touched.clear()


def _foreign(run: CheckedRun) -> None:
    """Compare the accounts of what was imported."""
    mine, books = run.reference, run.store.experience.ledger.foreign
    if not mine.foreign and books == Books():
        return run.hold("foreign", True, "nothing was imported")
    tokens, rollouts = books.tokens, books.rollouts
    live = [seen for seen in mine.rollouts.values() if not seen.own]
    counted = (
        +mine.foreign,
        +mine.foreign_ended,
        len(live),
        sum(seen.tokens for seen in live),
    )
    written = (
        +Counter({"imported": tokens.total, "trained": tokens.trained, **tokens.discarded}),
        +Counter(trained=rollouts.trained, discarded=sum(rollouts.discarded.values())),
        rollouts.live,
        tokens.live,
    )
    return run.hold(
        "foreign",
        counted == written,
        "of foreign answers there are {}, and the ledger says {}",
        counted,
        written,
    )


def _rollout(run: CheckedRun, id: int) -> None:
    mine, theirs = run.reference.rollouts.get(id), run.store.experience.rollouts.get(id)
    if mine is None or theirs is None:
        end = run.reference.ended.get(id)
        run.hold(
            "once",
            mine is None and theirs is None,
            "rollout {} is live for one, and {} for the other",
            id,
            end,
        )
        return
    if mine.episode is not None and not mine.sealed:
        _episode(run, mine.episode, theirs.episode)
        return
    if mine.episode is not None and mine.verdict is None:
        check_sealed(run, mine.episode, run.store.experience)
    spans = [(span.version, span.start, span.end) for span in theirs.spans]
    same = mine.ids == theirs.ids and mine.behaviour == theirs.behaviour and mine.spans() == spans
    forks = mine.shared, mine.group.leaves[id], mine.open
    run.hold(
        "forks",
        forks == (theirs.shared, theirs.leaves, theirs.forks),
        "rollout {} forks otherwise: {}",
        id,
        forks,
    )
    run.hold("parallel", same, "rollout {} is not what was sampled: spans {}", id, spans)
    run.hold(
        "pruning",
        (mine.looked, mine.chance) == (theirs.looked, theirs.chance),
        "rollout {} was asked about after {} tokens, not {}, and goes on with {}, not {}",
        id,
        mine.looked,
        theirs.looked,
        mine.chance,
        theirs.chance,
    )
    same = (mine.holder, mine.attempt, mine.failures) == (
        theirs.holder,
        theirs.attempt,
        theirs.failures,
    )
    run.hold(
        "leases", same, "rollout {} is with {!r}, not with {!r}", id, mine.holder, theirs.holder
    )


def _episode(run: CheckedRun, mine: ReferenceEpisode, theirs: Episode | None) -> None:
    """Compare an episode that is not sealed, and what is there of each call of it."""
    if theirs is None:
        return run.violated("once", f"episode {mine.id} is over, and was not sealed")
    known = (mine.holder, mine.attempt, mine.failures, mine.used, mine.notes, mine.rewards)
    held = (theirs.holder, theirs.attempt, theirs.failures, theirs.used, theirs.notes)
    run.hold(
        "episodes",
        (*known, mine.failed) == (*held, theirs.rewards, theirs.failed),
        "episode {} is {}, not {}",
        mine.id,
        known,
        held,
    )
    run.hold(
        "episodes",
        list(mine.calls) == [call.id for call in theirs.calls],
        "episode {} has the calls {}, not {}",
        mine.id,
        list(mine.calls),
        theirs.calls,
    )
    for call in theirs.calls:
        own = mine.calls[call.id]
        if own.buried:
            continue
        spans = [(span.version, span.start, span.end) for span in call.spans]
        same = own.ids == call.ids and own.behaviour == call.behaviour and own.spans() == spans
        run.hold("parallel", same, "call {} is not what was sampled: spans {}", own.id, spans)
        run.hold(
            "leases",
            (own.holder, own.attempt, own.failures, own.finish)
            == (call.holder, call.attempt, call.failures, call.finish),
            "call {} is with {!r}, not with {!r}",
            own.id,
            own.holder,
            call.holder,
        )
        role = own.role, call.role
        run.hold("what agents said", role[0] == role[1], "call {} is in the roles {}", own.id, role)
    return check_contexts(run, mine, run.store.experience)


def _compare_attempts(run: CheckedRun, coordinator: Coordinator) -> None:
    """Compare who plays with the attempts that the coordinator knows. It may not have heard of one
    that it is over."""
    attempts = coordinator.parts.playing._attempts.values()
    known = {(a.rollout, a.attempt, a.peer.name) for a in attempts}
    due = {(x.id, x.attempt, x.holder) for x in run.reference.episodes if x.holder}
    over = {id for id, _, _ in known - due if run.reference.episode(id) is not None}
    run.hold(
        "slots",
        due <= known and not over,
        "agents play {}, and the coordinator knows {}",
        sorted(due),
        sorted(known),
    )


def compare_all(run: CheckedRun, invariant: str) -> None:
    """Compare all there is, and what is due."""
    mine, theirs = run.reference, run.store.experience
    live = sorted(mine.rollouts), sorted(theirs.rollouts)
    run.hold(invariant, live[0] == live[1], "rollouts {} are live, not {}", *live)
    live = sorted(mine.groups), sorted(theirs.groups)
    run.hold(invariant, live[0] == live[1], "groups {} are live, not {}", *live)
    cursor = theirs.history.cursor
    run.hold(
        invariant,
        mine.cursor == cursor,
        "the next prompt is looked for from {} on, not from {}",
        mine.cursor,
        cursor,
    )
    run.hold(
        invariant,
        list(mine.kept) == list(theirs.replay_buffer.kept),
        "groups {} are kept, not {}",
        list(mine.kept),
        list(theirs.replay_buffer.kept),
    )
    run.hold(
        invariant,
        mine.restarts == theirs.restarts,
        "{} start again, not {}",
        mine.restarts,
        theirs.restarts,
    )
    _compare_due(run, invariant)
    check_work(run, invariant)
    for id in mine.rollouts:
        _rollout(run, id)
    run.hold(
        invariant,
        +mine.pruning.counts == Counter(theirs.ledger.pruned),
        "a rule has ended {}, and counted are {}",
        mine.pruning.counts,
        theirs.ledger.pruned,
    )
    known = len(mine.pruning.judged), mine.pruning.longest
    longest = {n: seen.longest for n, seen in theirs.history.seen.items() if seen.longest}
    run.hold(
        invariant,
        known == (theirs.history.judged_count, longest),
        "the beginnings that are known, and the longest right answers, are {}, not {}",
        known,
        (theirs.history.judged_count, longest),
    )
    compare(run)
    _audit(run)


def _compare_due(run: CheckedRun, invariant: str) -> None:
    """Compare what is due: to decide, to take, to train."""
    mine, theirs = run.reference, run.store.experience
    due = {id for _, rollouts in run.prescribed for id in rollouts}
    begun = {
        n for n, group in mine.groups.items() if group.steps or not due.isdisjoint(group.members)
    }
    complete = [n for n, group in mine.groups.items() if mine.complete(group) and n not in begun]
    asked = [n for n, g in mine.groups.items() if mine.finished(g) and g.may_grow]
    pool = {n: (bytes(seen.ids), min(seen.versions)) for n, seen in mine.pool.items()}
    held = {n: (answer.ids, answer.version) for n, answer in theirs.pool.answers.items()}
    run.hold(invariant, pool == held, "the pool has answers to {}, not to {}", list(pool), [*held])
    waiting_for = [
        n for n, g in mine.groups.items() if mine.finished(g) and not g.may_grow and g.imports
    ]
    importing = [group.id for group in theirs.importing()]
    run.hold(
        invariant,
        sorted(waiting_for) == importing,
        "groups {} wait for foreign answers, not {}",
        waiting_for,
        importing,
    )
    undecided = [group.id for group in theirs.undecided()]
    run.hold(
        invariant,
        sorted(asked) == undecided,
        "of groups {} it is open whether they grow, not of {}",
        asked,
        undecided,
    )
    ready = [group.id for split in get_args(Split) for group in theirs.ready(split)]
    run.hold(
        invariant,
        sorted(complete) == sorted(ready),
        "groups {} are complete, and ready are {}",
        complete,
        ready,
    )
    waiting = [
        seen
        for seen in mine.rollouts.values()
        if seen.verdict is not None and seen.step is None and seen.id not in due
    ]
    judged = sorted((seen.oldest, seen.id) for seen in waiting if seen.group.event.split == "train")
    offered = [(rollout.oldest, rollout.id) for rollout in theirs.judged()]
    run.hold(
        invariant, judged == offered, "rollouts {} are judged, and on offer are {}", judged, offered
    )
    first, oldest = mine.oldest(due), theirs.oldest()
    same = (first and first.event.group) == (oldest and oldest.id)
    run.hold(
        invariant,
        same,
        "the oldest group is {}, not {}",
        first and first.event.group,
        oldest and oldest.id,
    )


def _audit(run: CheckedRun) -> None:
    """Compare the histograms of what was generated, and of what was trained."""
    mine, audit = run.reference, run.store.experience.audit
    for place, name in enumerate(("length", "age", "attempts", "version")):
        axis = getattr(audit, name)
        sides = (
            (mine.generated, axis.generated, axis.generated_sum),
            (
                mine.learned,
                axis.trained,
                axis.trained_sum,
            ),
        )
        for facts, bins, total in sides:
            due, sum_ = [0.0] * len(bins), 0.0
            for fact, count in facts.items():
                value = fact[place]
                due[(value.bit_length() if name == "length" else value) // axis.width] += count
                sum_ += count * value
            same = all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(due, bins, strict=True))
            run.hold(
                "audit",
                same and math.isclose(sum_, total, abs_tol=1e-6),
                "the audit of {} is {} and {}, not {} and {} (by bin, and the sum)",
                name,
                {n: count for n, count in enumerate(bins) if count},
                total,
                {n: count for n, count in enumerate(due) if count},
                sum_,
            )


def compare_shell(run: CheckedRun, coordinator: Coordinator) -> None:
    """Compare what the coordinator keeps beside the state: who holds what."""
    leased = {call.id: call.holder for call in run.reference.calls() if call.holder}
    held = [
        (id, engine.name)
        for engine in coordinator.parts.engines
        for ids in engine.held.values()
        for id in ids
    ]
    same = len(held) == len(leased) and dict(held) == leased
    run.hold(
        "slots", same, "engines hold {}, and leased are {}", sorted(held), sorted(leased.items())
    )
    marked = coordinator.parts.reclaiming._parking
    given = {
        split: {id for n in coordinator.parts.engines for id in n.held[split]} for split in marked
    }
    stray = {split: ids - given[split] for split, ids in marked.items() if ids - given[split]}
    run.hold("slots", not stray, "rollouts {} are to be given back, and nobody has them", stray)
    _compare_attempts(run, coordinator)
    counted = Counter[str]()
    for question, (name, _) in coordinator.parts.scoring._with.items():
        counted[name] += len(question)
    load = coordinator.parts.scoring._load
    run.hold(
        "slots",
        counted == +Counter(load),
        "reward actors have {}, and {} are counted",
        counted,
        load,
    )
    for number, verdict in run.answered:
        if (seen := run.reference.rollouts.get(number)) is None:
            continue
        due = run.booked(seen, verdict) if isinstance(verdict, Scored) else verdict
        run.hold(
            "verdicts",
            seen.verdict == due
            or (
                isinstance(seen.verdict, NoVerdict)
                and seen.verdict.reason.startswith("other rewards")
                and run.refused > 0
            ),
            "{} was delivered, and booked is {}",
            verdict,
            seen.verdict,
        )
    run.answered = []
    booked = run.reference.tokens
    if run.excused:
        run.delivered, run.excused = booked, False
    run.hold(
        "tokens are booked",
        run.delivered == booked,
        "{} tokens were delivered, and {} booked",
        run.delivered,
        booked,
    )
