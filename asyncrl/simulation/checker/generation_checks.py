"""Checks of events of generation: admission, leases, tokens, verdicts. Each is called when its
event is appended, before the reference takes the event in.

Invariant: a check looks at the reference, at the weights that were really made, and at nothing that
the product keeps.
"""

from __future__ import annotations

import math

from asyncrl.config.engines import capabilities
from asyncrl.experience import events as e
from asyncrl.messages import Scored
from asyncrl.simulation.checker.call_checks import check_lease, check_tokens, check_whole
from asyncrl.simulation.checker.checked_run import CheckedRun, live_call, live_rollout
from asyncrl.simulation.checker.fork_checks import check_none_due, check_roots
from asyncrl.simulation.checker.growth_checks import check_first_size
from asyncrl.simulation.checker.import_checks import check_imports
from asyncrl.simulation.checker.prune_checks import check_asked
from asyncrl.simulation.checker.reference_episodes import OfEpisode
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceCall

GARBAGE = frozenset(
    {
        "unequal",
        "vocabulary",
        "nan",
        "future_version",
        "negative_version",
        "wrong_version",
        "wrong_start",
        "over_budget",
        "routing",
    }
)
"""Reasons for which a rollout is buried because its engine sent what no engine can sample."""


def admitted(run: CheckedRun, event: e.Admitted) -> None:
    run.hold(
        "prompts",
        event.prompt == run.prompts.ids(event.split, event.prompt_index),
        "{} has not the text of its prompt",
        event,
    )
    again = event.restarts
    place = run.reference.placed[event.split] if again is None else -1 - again
    run.hold(
        "draws",
        event.key == run.first_key(event, place) and event.played == bool(run.config.agent.run),
        "{} has not the draws of its place",
        event,
    )
    if event.split == "train":
        if event.restarts is not None:
            run.hold(
                "prompts",
                run.reference.restarts.get(event.restarts) == event.prompt_index,
                "{} restarts what does not wait for it",
                event,
            )
        else:
            run.hold(
                "prompts",
                _is_due(run, event),
                "prompt {} was admitted with the cursor at {}",
                event.prompt_index,
                run.reference.cursor,
            )
            run.hold(
                "prompts",
                not run.reference.restarts,
                "a new prompt came before stale ones that start again: {}",
                run.reference.restarts,
            )
        check_first_size(run, event)
        check_imports(run, event)
        check_roots(run, event)
        run.hold(
            "generation waits for a redo",
            not run.prescribed,
            "group {} was admitted before {} was redone",
            event.group,
            run.prescribed,
        )
        rests = run.rests_for()
        run.hold(
            "batch mode",
            rests is None,
            "group {} was admitted before version {} was published",
            event.group,
            rests,
        )
        live = run.live + (1 if run.config.train.unit == "group" else event.size)
        run.hold(
            "memory",
            live <= run.bound,
            "{} {}s are live, and at most {} may be",
            live,
            run.config.train.unit,
            run.bound,
        )
    else:
        answers = run.config.evaluation.samples if event.sampled else 1
        # engines that hold one version do not wait for an answer without end
        keeps = capabilities(run.config.engine.kind).keeps_versions
        run.hold(
            "evaluation",
            event.size == answers and (event.version is not None) == keeps,
            "a held-out prompt is answered {} times, not {}, under version {}",
            event.size,
            answers,
            event.version,
        )


def _is_due(run: CheckedRun, event: e.Admitted) -> bool:
    """True if this prompt may be the next: the one at the cursor, or one after it if those between
    may be passed over."""
    places = [run.prompts.train_item(place) for place in range(run.reference.cursor, event.cursor)]
    match run.config.task.curriculum:
        case "in_order":
            return places == [event.prompt_index]
        case "unsolved":  # what every member solved may rest
            return (
                bool(places)
                and places[-1] == event.prompt_index
                and all(
                    run.reference.visits[prompt_index].easy
                    for prompt_index in places[:-1]
                    if prompt_index is not None
                )
            )
        case _:
            return event.prompt_index in places and len(places) <= 4


def leased(run: CheckedRun, event: e.Leased) -> None:
    seen = live_call(run, event.rollout, event)
    check_lease(run, seen, event)
    check_asked(run, seen)
    check_none_due(run, seen)
    if isinstance(seen, ReferenceAgentCall) and seen.group.event.split == "train":
        newest = max((max(call.versions) for call in seen.episode.sampled), default=math.inf)
        run.hold(
            "lag",
            newest >= run.heard_version - run.max_lag,
            "call {} was leased to go on with, and the newest token of episode {} is of {}",
            seen.id,
            seen.episode.id,
            newest,
        )
    if (most := run.config.rollout.max_resumes) and seen.group.event.split == "train":
        run.hold(
            "attempts",
            seen.hops <= most,
            "rollout {} goes on for the {}th time, of {}",
            seen.id,
            seen.hops,
            most,
        )
    run.hold(
        "generation waits for a redo",
        not run.prescribed,
        "rollout {} was leased before {} was redone",
        seen.id,
        run.prescribed,
    )
    if seen.group.event.split == "train":
        rests = run.rests_for()
        run.hold(
            "batch mode",
            rests is None,
            "rollout {} was leased before version {} was published",
            seen.id,
            rests,
        )


def extended(run: CheckedRun, event: e.Extended) -> None:
    seen = live_call(run, event.rollout, event)
    run.hold(
        "publication",
        event.version in run.here,
        "version {} sampled tokens before it was published",
        event.version,
    )
    admitted = seen.group.admitted_version or 0
    run.hold(
        "version truth",
        event.version >= admitted,
        "version {} sampled for rollout {}, whose group was admitted under version {}",
        event.version,
        seen.id,
        admitted,
    )
    own = run.config.staleness.finish_on == "mixed" or seen.versions[-1:] in ([], [event.version])
    run.hold(
        "version truth",
        own,
        "rollout {} began under {}, and goes on under {}",
        seen.id,
        seen.versions[:1],
        event.version,
    )
    pinned = seen.group.event.version
    run.hold(
        "version truth",
        pinned in (None, event.version),
        "rollout {} is pinned to {}, and {}",
        seen.id,
        pinned,
        event.version,
    )
    weights = run.weights_of(seen.group.event.split, event.version)
    check_tokens(run, seen, event, run.draws(seen), weights)


def routed(run: CheckedRun, event: e.RoutingKnown) -> None:
    seen = live_call(run, event.rollout, event)
    run.hold(
        "parallel arrays",
        event.start + event.tokens <= len(seen.versions),
        "rollout {} has {} tokens, and got experts of others",
        seen.id,
        len(seen.versions),
    )


def sealed(run: CheckedRun, event: e.Sealed) -> None:
    seen = live_rollout(run, event.rollout, event)
    run.hold("once", not seen.sealed, "rollout {} was sealed, and again", seen.id)
    if seen.episode is not None:
        run.episodes.check(event)
    else:
        budget = run.config.rollout.max_new_tokens - len(seen.shared) // 4
        check_whole(run, seen, run.draws(seen), budget)


def requeued(run: CheckedRun, event: e.Requeued) -> None:
    seen = live_call(run, event.rollout, event)
    run.hold("leases", bool(seen.holder), "rollout {} was requeued, and nobody had it", seen.id)
    _failed(run, seen, event.reason, event.failed)
    last = seen.failures + event.failed < run.config.rollout.attempts
    run.hold(
        "attempts",
        last,
        "rollout {} is leased again after {} failed attempts",
        seen.id,
        seen.failures + event.failed,
    )


def _failed(run: CheckedRun, seen: ReferenceCall, reason: str, failed: bool) -> None:
    """An attempt is failed where it brought no token and its turn at a slot had come; what came
    back at this moment had been there."""
    slots, brought = run.config.engine.slots, len(seen.versions) > seen.before
    held = [other for other in run.reference.held(seen.holder) if other.lease < seen.lease]
    same, every = run.ended_now(seen.holder, seen.lease, reason)
    judged = reason in ("lease_expired", "actor_lost")
    if failed:
        run.hold(
            "attempts",
            not brought,
            "rollout {} is said to have failed, and brought tokens",
            seen.id,
        )
        run.hold(
            "attempts",
            not judged or len(held) + same < slots,
            "rollout {} is said to have failed, and had no slot",
            seen.id,
        )
    elif judged:
        run.hold(
            "attempts",
            brought or len(held) + every >= slots,
            "rollout {} had a slot and brought nothing, and has not failed",
            seen.id,
        )


def buried(run: CheckedRun, event: e.Buried) -> None:
    if run.reference.episode(event.rollout) is not None:
        buried_episode(run, event)
        return
    seen = live_call(run, event.rollout, event)
    rollout = run.config.rollout
    attempts = rollout.attempts
    if event.reason in GARBAGE:
        sent = any(start.startswith(f"{seen.holder}/") for start in run.garbled)
        run.hold(
            "blame",
            bool(seen.holder) and sent,
            "rollout {} was buried as {}, and {!r} sent no garbage",
            seen.id,
            event.reason,
            seen.holder,
        )
        return
    if event.reason == "version_gone":
        newer = bool(seen.versions) and seen.versions[0] < max(run.here)
        run.hold(
            "version truth",
            newer and run.config.staleness.finish_on == "own",
            "rollout {} was given up: {}",
            seen.id,
            seen.versions[:1],
        )
        return
    if event.reason == "max_resumes":
        spent = (
            not seen.holder
            and 0 < rollout.max_resumes < seen.hops
            and seen.group.event.split == "train"
        )
        run.hold(
            "attempts",
            spent,
            "rollout {} was taken back {} times, and may go on {} times",
            seen.id,
            seen.hops,
            rollout.max_resumes,
        )
        return
    run.hold(
        "attempts",
        seen.failures + 1 == attempts,
        "rollout {} was buried after {} failed attempts of {}",
        seen.id,
        seen.failures,
        attempts,
    )
    _failed(run, seen, event.reason, failed=True)


def buried_episode(run: CheckedRun, event: e.Buried) -> None:
    """Check that an episode that is given up has failed as often as it may, or is too old."""
    if event.reason != "stale":
        run.episodes.check(event)
        return
    episode = run.reference.episode(event.rollout)
    assert episode is not None
    newest = max((max(call.versions) for call in episode.sampled), default=math.inf)
    run.hold(
        "lag",
        episode.status == "played"
        and episode.rollout.group.event.split == "train"
        and newest < max(run.lineage) - run.max_lag,
        "episode {} was given up as stale, and has tokens of version {}",
        event.rollout,
        newest,
    )


def of_episode(run: CheckedRun, event: OfEpisode) -> None:
    """Check what an agent did, or what became of a call of it."""
    run.episodes.check(event)


def late(run: CheckedRun, event: e.LateTokens) -> None:
    run.hold("ledger", event.tokens > 0, "{} late tokens", event.tokens)


def judged(run: CheckedRun, event: e.Judged) -> None:
    seen = live_rollout(run, event.rollout, event)
    run.hold(
        "once",
        seen.sealed and seen.verdict is None,
        "rollout {} was judged, not sealed or judged before",
        seen.id,
    )
    due = run.verdict(seen)
    if isinstance(event.verdict, Scored):
        run.hold(
            "verdicts",
            isinstance(due, Scored)
            and (event.verdict == due or (run.refused > 0 and event.verdict.reward == due.reward)),
            "rollout {} got {}, and deserves {}",
            seen.id,
            event.verdict,
            due,
        )
    else:
        run.hold(
            "verdicts",
            run.refused > 0 or event.verdict == due,
            "rollout {} got {}, and deserves {}",
            seen.id,
            event.verdict,
            due,
        )
