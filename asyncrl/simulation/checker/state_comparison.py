"""The product's state beside the checker's account. Invariant: each is asked, neither is
changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from actors.coordinator.coordinator import Coordinator
from asyncrl.ipc.messages import Split

if TYPE_CHECKING:
    from asyncrl.simulation.checker.checker import Checker


def compare(w: Checker) -> None:
    """The counts, and the rollouts that events named since."""
    mine, theirs = w.account, w.store.experience
    tokens, rollouts = theirs.ledger.tokens, theirs.ledger.rollouts
    generated = mine.tokens, mine.tokens_trained, mine.tokens_live, +mine.tokens_discarded
    written = tokens.total, tokens.trained, tokens.live, Counter(tokens.discarded)
    w.hold("ledger", generated == written, "tokens: {}, and the ledger says {}", generated, written)
    admitted = mine.admitted, mine.trained, len(mine.rollouts), +mine.discarded
    written = rollouts.total, rollouts.trained, rollouts.live, Counter(rollouts.discarded)
    w.hold("ledger", admitted == written, "rollouts: {}, and the ledger says {}", admitted, written)
    w.hold("ledger", theirs.ledger.balances(), "the ledger does not balance")
    live = mine.groups_live, mine.groups_untaken, mine.rollouts_live, mine.rollouts_untaken
    counted = (
        theirs.groups_live,
        theirs.groups_untaken,
        theirs.rollouts_live,
        theirs.rollouts_untaken,
    )
    w.hold(
        "queue",
        live == counted,
        "groups and rollouts that are live, and untaken: {}, not {}",
        live,
        counted,
    )
    queue = theirs.queue_items, theirs.queue_bytes
    w.hold("queue", mine.queue == queue, "the queue holds {}, not {}", mine.queue, queue)
    for id in mine.touched:
        _rollout(w, id)
    mine.touched.clear()


def _rollout(w: Checker, id: int) -> None:
    mine, theirs = w.account.rollouts.get(id), w.store.experience.rollouts.get(id)
    if mine is None or theirs is None:
        end = w.account.ended.get(id)
        w.hold(
            "once",
            mine is None and theirs is None,
            "rollout {} is live for one, and {} for the other",
            id,
            end,
        )
        return
    spans = [(span.version, span.start, span.end) for span in theirs.spans]
    same = mine.ids == theirs.ids and mine.behaviour == theirs.behaviour and mine.spans() == spans
    w.hold("parallel", same, "rollout {} is not what was sampled: spans {}", id, spans)
    same = (mine.holder, mine.attempt, mine.failures) == (
        theirs.holder,
        theirs.attempt,
        theirs.failures,
    )
    w.hold("leases", same, "rollout {} is with {!r}, not with {!r}", id, mine.holder, theirs.holder)


def compare_all(w: Checker, invariant: str) -> None:
    """Everything there is, and what is due."""
    mine, theirs = w.account, w.store.experience
    live = sorted(mine.rollouts), sorted(theirs.rollouts)
    w.hold(invariant, live[0] == live[1], "rollouts {} are live, not {}", *live)
    live = sorted(mine.groups), sorted(theirs.groups)
    w.hold(invariant, live[0] == live[1], "groups {} are live, not {}", *live)
    cursor = theirs.history.cursor
    w.hold(
        invariant,
        mine.cursor == cursor,
        "the next prompt is looked for from {} on, not from {}",
        mine.cursor,
        cursor,
    )
    w.hold(
        invariant,
        list(mine.kept) == list(theirs.replay_buffer.kept),
        "groups {} are kept, not {}",
        list(mine.kept),
        list(theirs.replay_buffer.kept),
    )
    w.hold(
        invariant,
        mine.restarts == theirs.restarts,
        "{} start again, not {}",
        mine.restarts,
        theirs.restarts,
    )
    due = {id for _, rollouts in w.prescribed for id in rollouts}
    begun = {
        n for n, group in mine.groups.items() if group.steps or not due.isdisjoint(group.members)
    }
    complete = [n for n, group in mine.groups.items() if mine.complete(group) and n not in begun]
    ready = [group.id for split in get_args(Split) for group in theirs.ready(split)]
    w.hold(
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
    w.hold(
        invariant, judged == offered, "rollouts {} are judged, and on offer are {}", judged, offered
    )
    first, oldest = mine.oldest(due), theirs.oldest()
    same = (first and first.event.group) == (oldest and oldest.id)
    w.hold(
        invariant,
        same,
        "the oldest group is {}, not {}",
        first and first.event.group,
        oldest and oldest.id,
    )
    for id in mine.rollouts:
        _rollout(w, id)
    compare(w)


def compare_shell(w: Checker, run: Coordinator) -> None:
    """What the coordinator keeps beside the state."""
    leased = {seen.id: seen.holder for seen in w.account.rollouts.values() if seen.holder}
    held = [
        (id, engine_handle.name)
        for engine_handle in run.engine_pool
        for ids in engine_handle.held.values()
        for id in ids
    ]
    same = len(held) == len(leased) and dict(held) == leased
    w.hold(
        "slots", same, "engines hold {}, and leased are {}", sorted(held), sorted(leased.items())
    )
    counted = Counter(name for name, _ in run.scoring._with.values())
    load = run.scoring._load
    w.hold(
        "slots",
        counted == +Counter(load),
        "reward actors have {}, and {} are counted",
        counted,
        load,
    )
    if w.answered is not None and (seen := w.account.rollouts.get(w.answered.rollout)) is not None:
        w.hold(
            "verdicts",
            seen.verdict == w.answered.verdict,
            "{} was delivered, and booked is {}",
            w.answered,
            seen.verdict,
        )
    w.answered = None
    booked = w.account.tokens
    if w.excused:
        w.delivered, w.excused = booked, False
    w.hold(
        "tokens are booked",
        w.delivered == booked,
        "{} tokens were delivered, and {} booked",
        w.delivered,
        booked,
    )
