"""What must be true of each event when it is appended, before the checker's account takes it in.
Invariant: a check looks at the account, at the weights that were really made, and at nothing that
the product keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.coordinator.leases import FLOOR_S
from asyncrl.experience import events as e
from asyncrl.ipc.messages import NoVerdict, Scored
from asyncrl.simulation import policy
from asyncrl.simulation.checker.reference_state import Filling, ReferenceRollout

if TYPE_CHECKING:
    from asyncrl.simulation.checker.checker import Checker

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
    }
)
"""What is wrong with what cannot be."""


def _live(w: Checker, id: int, event: e.AnyEvent) -> ReferenceRollout:
    seen = w.account.rollouts.get(id)
    w.hold(
        "once",
        seen is not None,
        "{} is of a rollout that was {}",
        event,
        w.account.ended.get(id, "never admitted"),
    )
    if seen is None:
        raise w.violation or AssertionError
    return seen


def admitted(w: Checker, event: e.Admitted) -> None:
    if event.split == "train":
        if event.restarts is not None:
            w.hold(
                "prompts",
                w.account.restarts.get(event.restarts) == event.prompt_index,
                "{} restarts what does not wait for it",
                event,
            )
        else:
            w.hold(
                "prompts",
                _is_due(w, event),
                "prompt {} was admitted with the cursor at {}",
                event.prompt_index,
                w.account.cursor,
            )
            w.hold(
                "prompts",
                not w.account.restarts,
                "a new prompt came before stale ones that start again: {}",
                w.account.restarts,
            )
        rollout = w.config.rollout
        most = rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max
        w.hold(
            "prompts",
            rollout.group_size <= event.size <= most,
            "a group has {} rollouts",
            event.size,
        )
        w.hold(
            "generation waits for a redo",
            not w.prescribed,
            "group {} was admitted before {} was redone",
            event.group,
            w.prescribed,
        )
        rests = w.rests_for()
        w.hold(
            "batch mode",
            rests is None,
            "group {} was admitted before version {} was published",
            event.group,
            rests,
        )
        live = w.live + (1 if w.config.train.unit == "group" else event.size)
        w.hold(
            "memory",
            live <= w.bound,
            "{} {}s are live, and at most {} may be",
            live,
            w.config.train.unit,
            w.bound,
        )


def _is_due(w: Checker, event: e.Admitted) -> bool:
    """Whether this prompt may be the next: the one at the cursor, or one after it where those
    between may be passed over."""
    places = [w.train_item(place) for place in range(w.account.cursor, event.cursor)]
    match w.config.task.curriculum:
        case "in_order":
            return places == [event.prompt_index]
        case "unsolved":  # what every member solved may rest
            return (
                bool(places)
                and places[-1] == event.prompt_index
                and all(
                    w.account.visits[prompt_index][2]
                    for prompt_index in places[:-1]
                    if prompt_index is not None
                )
            )
        case _:
            return event.prompt_index in places and len(places) <= 4


def leased(w: Checker, event: e.Leased) -> None:
    seen = _live(w, event.rollout, event)
    w.hold(
        "leases",
        not seen.holder and not seen.sealed,
        "rollout {} was leased to {} while {} has it",
        seen.id,
        event.holder,
        seen.holder,
    )
    w.hold(
        "leases",
        event.attempt == seen.attempt + 1,
        "rollout {}'s attempt {} follows {}",
        seen.id,
        event.attempt,
        seen.attempt,
    )
    if (most := w.config.rollout.max_resumes) and seen.group.event.split == "train":
        w.hold(
            "attempts",
            seen.hops <= most,
            "rollout {} goes on for the {}th time, of {}",
            seen.id,
            seen.hops,
            most,
        )
    w.hold(
        "generation waits for a redo",
        not w.prescribed,
        "rollout {} was leased before {} was redone",
        seen.id,
        w.prescribed,
    )
    if seen.group.event.split == "train":
        rests = w.rests_for()
        w.hold(
            "batch mode",
            rests is None,
            "rollout {} was leased before version {} was published",
            seen.id,
            rests,
        )


def extended(w: Checker, event: e.Extended) -> None:
    seen = _live(w, event.rollout, event)
    start, count = len(seen.versions), len(event.ids) // 4
    w.hold(
        "leases",
        bool(seen.holder) and event.attempt == seen.attempt,
        "tokens of rollout {}, which is not leased so",
        seen.id,
    )
    w.hold(
        "parallel",
        event.start == start and count > 0 and 4 * count == len(event.ids) == len(event.behaviour),
        "rollout {} holds {} tokens; {} bytes of ids and {} of log-probabilities came for {}",
        seen.id, start, len(event.ids), len(event.behaviour), event.start,
    )  # fmt: skip
    w.hold(
        "publication",
        event.version in w.here,
        "version {} sampled tokens before it was published",
        event.version,
    )
    own = w.config.staleness.finish_on == "mixed" or seen.versions[-1:] in ([], [event.version])
    w.hold(
        "version truth",
        own,
        "rollout {} began under {}, and goes on under {}",
        seen.id,
        seen.versions[:1],
        event.version,
    )
    pinned = seen.group.event.version
    w.hold(
        "version truth",
        pinned in (None, event.version),
        "rollout {} is pinned to {}, and {}",
        seen.id,
        pinned,
        event.version,
    )
    weights = w.lineage.get(event.version)
    w.hold(
        "version truth",
        weights is not None,
        "version {} sampled tokens, and was never made",
        event.version,
    )
    if weights is None or w.violation:
        return
    ids, behaviour = policy.sampled(weights, seen.key, start, start + count)
    w.hold(
        "version truth",
        event.ids == ids.tobytes(),
        "rollout {}: version {} samples other ids",
        seen.id,
        event.version,
    )
    w.hold(
        "version truth",
        event.behaviour == behaviour.tobytes(),
        "rollout {}: version {} has other log-probabilities",
        seen.id,
        event.version,
    )


def sealed(w: Checker, event: e.Sealed) -> None:
    seen = _live(w, event.rollout, event)
    whole = policy.length(seen.key, w.config.rollout.max_new_tokens)
    w.hold(
        "whole",
        len(seen.versions) == whole,
        "rollout {} was sealed with {} of {} tokens",
        seen.id,
        len(seen.versions),
        whole,
    )
    w.hold(
        "leases",
        bool(seen.holder) and not seen.sealed,
        "rollout {} was sealed, and nobody had it",
        seen.id,
    )


def recycled(w: Checker, event: e.Requeued) -> None:
    seen = _live(w, event.rollout, event)
    w.hold("leases", bool(seen.holder), "rollout {} was recycled, and nobody had it", seen.id)
    if event.reason == "lease_expired":
        lasted, least = (
            w.clock() - w.leased_at.get(seen.id, 0.0),
            min(FLOOR_S, w.config.rollout.lease_s),
        )
        w.hold(
            "leases",
            lasted > least - 1e-6,
            "rollout {}'s lease ran out after {} s of at least {}",
            seen.id,
            lasted,
            least,
        )
    _failed(w, seen, event.reason, event.failed)
    last = seen.failures + event.failed < w.config.rollout.attempts
    w.hold(
        "attempts",
        last,
        "rollout {} is leased again after {} failed attempts",
        seen.id,
        seen.failures + event.failed,
    )


def _failed(w: Checker, seen: ReferenceRollout, reason: str, failed: bool) -> None:
    """An attempt is failed where it brought no token and its turn at a slot had come; what came
    back at this moment had been there."""
    slots, brought = w.config.engine.slots, len(seen.versions) > seen.before
    held = [
        other
        for other in w.account.rollouts.values()
        if other.holder == seen.holder and other.lease < seen.lease
    ]
    same, every = w.came_back(seen.holder, seen.lease, reason)
    judged = reason in ("lease_expired", "actor_lost")
    if failed:
        w.hold(
            "attempts",
            not brought,
            "rollout {} is said to have failed, and brought tokens",
            seen.id,
        )
        w.hold(
            "attempts",
            not judged or len(held) + same < slots,
            "rollout {} is said to have failed, and had no slot",
            seen.id,
        )
    elif judged:
        w.hold(
            "attempts",
            brought or len(held) + every >= slots,
            "rollout {} had a slot and brought nothing, and has not failed",
            seen.id,
        )


def buried(w: Checker, event: e.Buried) -> None:
    seen = _live(w, event.rollout, event)
    rollout = w.config.rollout
    attempts = rollout.attempts
    if event.reason in GARBAGE:
        sent = any(start.startswith(f"{seen.holder}/") for start in w.garbled)
        w.hold(
            "blame",
            bool(seen.holder) and sent,
            "rollout {} was buried as {}, and {!r} sent no garbage",
            seen.id,
            event.reason,
            seen.holder,
        )
        return
    if event.reason == "version_gone":
        newer = bool(seen.versions) and seen.versions[0] < max(w.here)
        w.hold(
            "version truth",
            newer and w.config.staleness.finish_on == "own",
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
        w.hold(
            "attempts",
            spent,
            "rollout {} was taken back {} times, and may go on {} times",
            seen.id,
            seen.hops,
            rollout.max_resumes,
        )
        return
    w.hold(
        "attempts",
        seen.failures + 1 == attempts,
        "rollout {} was buried after {} failed attempts of {}",
        seen.id,
        seen.failures,
        attempts,
    )
    _failed(w, seen, event.reason, failed=True)


def late(w: Checker, event: e.LateTokens) -> None:
    w.hold("ledger", event.tokens > 0, "{} late tokens", event.tokens)


def judged(w: Checker, event: e.Judged) -> None:
    seen = _live(w, event.rollout, event)
    w.hold(
        "once",
        seen.sealed and seen.verdict is None,
        "rollout {} was judged, not sealed or judged before",
        seen.id,
    )
    if isinstance(event.verdict, Scored):
        due = policy.reward(seen.group.event.prompt_index, bytes(seen.ids))
        w.hold(
            "verdicts",
            event.verdict.reward == due,
            "rollout {} got {}, and deserves {}",
            seen.id,
            event.verdict.reward,
            due,
        )
    else:
        w.hold(
            "verdicts",
            w.refused > 0,
            "rollout {} got {}, and nobody had withheld a verdict",
            seen.id,
            event.verdict,
        )


def taken(w: Checker, event: e.Taken) -> None:
    taking = [_live(w, id, event) for id in event.rollouts]
    w.hold(
        "once",
        0 < len(taking) == len(set(event.rollouts)),
        "{} takes a rollout twice, or none",
        event,
    )
    for seen in taking:
        w.hold(
            "once",
            seen.step is None,
            "rollout {} was taken for step {}, and again",
            seen.id,
            seen.step,
        )
        judged = isinstance(seen.verdict, Scored) and seen.group.event.split == "train"
        w.hold(
            "whole",
            judged,
            "rollout {} was taken, and cannot be trained: {}",
            seen.id,
            seen.verdict,
        )
        newest = max(seen.versions, default=0)
        w.hold(
            "order",
            newest <= event.step,
            "rollout {} was taken for step {}, and has tokens of {}",
            seen.id,
            event.step,
            newest,
        )
    units = w.units(taking)
    chosen = set[int]()
    for unit in units:
        _may_be_taken(w, unit, event, chosen)
        group = unit[0].group
        leaving = (
            [seen for seen in w.account.members(group) if isinstance(seen.verdict, NoVerdict)]
            if w.account.complete(group)
            else []
        )
        chosen.update(seen.id for seen in (*unit, *leaving))
    if w.prescribed:
        due = w.prescribed.pop(0)
        w.hold(
            "redo",
            due == (event.step, event.rollouts),
            "{} was taken, and {} had to be taken again",
            event,
            due,
        )
    else:
        w.hold(
            "order",
            event.step == w.open_step,
            "step {} takes, and step {} is open",
            event.step,
            w.open_step,
        )
        _in_order(w, units, event)
    newest = max(w.lineage)
    w.hold(
        "order",
        event.step in (newest, newest + 1),
        "step {} takes, and version {} is the last",
        event.step,
        newest,
    )
    filling = w.account.steps.get(event.step, Filling())
    before = w.full(filling, [seen for unit in units[:-1] for seen in unit])
    w.hold(
        "order",
        not before,
        "step {} took {} when it had what it needs",
        event.step,
        [seen.id for seen in units[-1]],
    )


def _may_be_taken(
    w: Checker, unit: list[ReferenceRollout], event: e.Taken, chosen: set[int]
) -> None:
    config, group = w.config, unit[0].group
    if config.train.unit == "group":
        members = w.account.members(group)
        scored = [seen.id for seen in members if isinstance(seen.verdict, Scored)]
        w.hold(
            "whole",
            all(seen.verdict for seen in members),
            "group {} was taken before all its verdicts",
            group.event.group,
        )
        w.hold(
            "whole",
            set(scored) == {seen.id for seen in unit},
            "group {} was not taken whole",
            group.event.group,
        )
        w.hold(
            "whole",
            not group.steps,
            "group {} was taken for {}, and again",
            group.event.group,
            group.steps,
        )
        w.hold(
            "whole",
            len(scored) >= config.rollout.k_min,
            "group {} was taken with {} verdicts",
            group.event.group,
            len(scored),
        )
    else:
        others = len(group.others(unit[0].id))
        w.hold(
            "whole",
            others >= config.rollout.k_min,
            "rollout {} was taken with {} others judged",
            unit[0].id,
            others,
        )
    w.hold(
        "lag",
        not w.stale(unit, event.step),
        "rollouts {} were taken for step {}, and are stale",
        [s.id for s in unit],
        event.step,
    )
    if window := config.staleness.window:
        oldest = w.account.oldest(chosen)
        last = group.ordinal if oldest is None else oldest.ordinal + window - 1
        w.hold(
            "window",
            group.ordinal <= last,
            "group {} was taken, the {}th; it goes to the {}th",
            group.event.group,
            group.ordinal,
            last,
        )
        if not config.train.step_tokens:
            worst = w.worst_lag
            lag = max(event.step - seen.oldest for seen in unit)
            w.hold(
                "window",
                lag <= worst,
                "step {} takes a lag of {} in a window whose worst is {}",
                event.step,
                lag,
                worst,
            )


def _in_order(w: Checker, units: list[list[ReferenceRollout]], event: e.Taken) -> None:
    """Nothing older could have been taken: with tokens of a smaller version, or admitted before
    where nothing may lag."""
    in_turn = w.max_lag == 0

    def age(unit: list[ReferenceRollout]) -> tuple[int, int]:
        group = unit[0].group
        if in_turn:
            return group.ordinal, unit[0].id
        return min(seen.oldest for seen in unit), unit[
            0
        ].id if w.config.train.unit == "rollout" else group.event.group

    if w.config.staleness.window and not in_turn:
        return  # what may be taken changes with what leaves, and with what is chosen
    ages = [age(unit) for unit in units]
    w.hold(
        "order",
        ages == sorted(ages),
        "step {} takes {} in another order",
        event.step,
        event.rollouts,
    )
    chosen = {seen.id for unit in units for seen in unit}
    for group in w.account.groups.values():
        complete = w.account.complete(group)
        members = [
            seen for seen in w.account.members(group) if seen.step is None and seen.id not in chosen
        ]
        scored = [seen for seen in members if isinstance(seen.verdict, Scored)]
        if group.event.split != "train" or not members:
            continue
        if in_turn:
            others = [[seen] for seen in (scored if complete else members)]
        elif w.config.train.unit == "group":
            others = [scored] if complete and scored else []
        else:
            others = [
                [seen] for seen in scored if len(group.others(seen.id)) >= w.config.rollout.k_min
            ]
        for unit in others:
            older = age(unit) < ages[-1]
            w.hold(
                "order",
                not older,
                "step {} takes {}, and not the older {}",
                event.step,
                event.rollouts,
                [s.id for s in unit],
            )


def trained(w: Checker, event: e.Trained) -> None:
    seen = _live(w, event.rollout, event)
    step = seen.step
    w.hold("once", step is not None, "rollout {} was trained, and no step had taken it", seen.id)
    if step is None:
        return
    really = w.trained_by.get(step + 1, set())
    w.hold(
        "once",
        seen.id in really,
        "rollout {} is booked as trained in step {}, which did not train it",
        seen.id,
        step,
    )
    fresh = sum(step - version <= w.max_lag for version in seen.versions)
    stale = {"stale": len(seen.versions) - fresh} if fresh < len(seen.versions) else {}
    w.hold(
        "ledger",
        (event.trained, event.discarded) == (fresh, stale),
        "rollout {}: {} and not {} {}",
        seen.id,
        event,
        fresh,
        stale,
    )


def shelved(w: Checker, event: e.StoredForReplay) -> None:
    group = w.account.groups.get(event.group)
    w.hold(
        "once",
        group is not None and event.group not in w.account.kept,
        "{} keeps what is not there, or is kept",
        event,
    )
    if group is not None:
        taken = set(group.steps) == set(group.rewards)
        w.hold(
            "whole",
            taken and len(set(group.rewards.values())) > 1,
            "{} keeps {} of {}",
            event,
            group.steps,
            group.rewards,
        )
        oldest = min(seen.oldest for seen in w.account.members(group))
        most = w.config.staleness.max_lag
        w.hold(
            "lag",
            event.until - oldest <= most,
            "{} is of version {}, and its lag would be too large",
            event,
            oldest,
        )


def replayed(w: Checker, event: e.Replayed) -> None:
    groups = set(event.groups)
    w.hold(
        "once",
        len(groups) == len(event.groups) and groups <= w.account.kept.keys(),
        "{} trains again what is not kept",
        event,
    )
    w.hold("order", len(groups) <= w.config.train.replay_groups, "{} are too many", event)
    w.hold(
        "order",
        event.step == max(w.lineage),
        "step {} trains again, and version {} is the last",
        event.step,
        max(w.lineage),
    )
    late = [
        number
        for number in groups & w.account.kept.keys()
        if w.account.kept[number][0] < event.step
    ]
    w.hold("lag", not late, "step {} trains groups {} again, whose time is over", event.step, late)


def discarded(w: Checker, event: e.Discarded) -> None:
    seen = _live(w, event.rollout, event)
    group, config = seen.group, w.config
    w.hold(
        "once",
        seen.step is None,
        "rollout {} was discarded, and step {} has it",
        seen.id,
        seen.step,
    )
    w.hold(
        "whole",
        config.train.unit == "rollout",
        "rollout {} was discarded alone, and whole groups are trained",
        seen.id,
    )
    w.hold(
        "whole",
        group.event.split == "train" and seen.verdict is not None,
        "rollout {} was discarded without a verdict",
        seen.id,
    )
    others, k = len(group.others(seen.id)), config.rollout.k_min
    score = seen.verdict.reward if isinstance(seen.verdict, Scored) else math.nan
    justified = {
        "no_verdict": isinstance(seen.verdict, NoVerdict),
        "k_min": w.account.complete(group) and others < k,
        "zero_variance": config.rollout.filter == "zero_variance"
        and others >= k
        and _close(w.baseline(seen), score),
        "stale": w.stale([seen], w.open_step),
    }
    _named(w, event.reason, justified)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _named(w: Checker, reason: str, justified: dict[str, bool]) -> None:
    w.hold(
        "nothing leaves without a name", reason in justified, "{!r} is no reason to leave", reason
    )
    w.hold(
        "nothing leaves without a name",
        justified.get(reason, False),
        "something left as {}, and it is not so",
        reason,
    )


def dropped(w: Checker, event: e.Dropped) -> None:
    group = w.account.groups.get(event.group)
    w.hold("once", group is not None, "group {} was dropped, and is not live", event.group)
    if group is None:
        return
    config, rewards = w.config, list(group.rewards.values())
    w.hold(
        "once", not group.steps, "group {} was dropped, and is taken: {}", event.group, group.steps
    )
    scored = [seen for seen in w.account.members(group) if isinstance(seen.verdict, Scored)]
    complete = w.account.complete(group)
    justified = {
        "evaluation": group.event.split == "evaluation",
        "k_min": complete
        and len(rewards) < (config.rollout.k_min if config.train.unit == "group" else 1),
        "zero_variance": complete
        and config.rollout.filter == "zero_variance"
        and len(set(rewards)) == 1,
        "stale": complete and bool(scored) and w.stale(scored, w.open_step),
    }
    _named(w, event.reason, justified)
    again = event.reason == "stale" and config.staleness.on_stale == "restart"
    w.hold(
        "prompts",
        event.restart == again,
        "{} does not say rightly whether its prompt starts again",
        event,
    )


def published(w: Checker, event: e.Published) -> None:
    made = event.version in w.lineage
    w.hold(
        "publication",
        made,
        "version {} was published, and {} is the trainer's",
        event.version,
        max(w.lineage),
    )
    last = w.account.published or 0
    w.hold(
        "publication",
        event.version >= last,
        "version {} was published after version {}",
        event.version,
        last,
    )


def checkpointed(w: Checker, event: e.Checkpointed) -> None:
    w.hold(
        "order",
        event.version in w.lineage,
        "a checkpoint of version {}, which does not exist",
        event.version,
    )
    w.hold(
        "whole",
        event.version in w.written,
        "the checkpoint of version {} is said to be complete, and was not written",
        event.version,
    )


CHECKS: dict[type, Callable[[Checker, Any], None]] = {
    e.Admitted: admitted,
    e.Leased: leased,
    e.Extended: extended,
    e.Sealed: sealed,
    e.Requeued: recycled,
    e.Buried: buried,
    e.LateTokens: late,
    e.Judged: judged,
    e.Taken: taken,
    e.Trained: trained,
    e.StoredForReplay: shelved,
    e.Replayed: replayed,
    e.Discarded: discarded,
    e.Dropped: dropped,
    e.Published: published,
    e.Checkpointed: checkpointed,
}
