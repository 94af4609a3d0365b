"""Checks of what a step takes, when its event is appended, before the reference takes it in.

Invariant: a check looks at the reference, at the weights that were really made, and at nothing that
the product keeps.
"""

from __future__ import annotations

from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored
from asyncrl.simulation.checker.checked_run import CheckedRun, live_rollout
from asyncrl.simulation.checker.reference_choices import choices, reward
from asyncrl.simulation.checker.reference_facts import Filling
from asyncrl.simulation.checker.reference_rollouts import ReferenceRollout

WHOLE_STEP = frozenset({"reinforce_pp", "reinforce_pp_baseline", "gdpo"})
"""Advantages that compare all groups of a step."""


def taken(run: CheckedRun, event: e.Taken) -> None:
    taking = [live_rollout(run, id, event) for id in event.rollouts]
    run.hold(
        "once",
        0 < len(taking) == len(set(event.rollouts)),
        "{} takes a rollout twice, or none",
        event,
    )
    for seen in taking:
        _may_be_trained(run, seen, event)
    units, left = run.units(taking), _left_out(run, event)
    chosen = set[int]()
    wholes = list[list[ReferenceRollout]]()  # units, with what is left out of their groups
    for unit in units:
        group = unit[0].group
        beside = [seen for seen in left if seen.group is group]
        wholes.append([*unit, *beside])
        _may_be_taken(run, unit, beside, event, chosen)
        leaving = (
            [seen for seen in run.reference.members(group) if isinstance(seen.verdict, NoVerdict)]
            if run.reference.complete(group)
            else []
        )
        chosen.update(seen.id for seen in (*unit, *beside, *leaving))
    if run.config.train.unit == "rollout" and not run.prescribed:
        graves = [
            number
            for number, group in run.reference.groups.items()
            if group.event.split == "train"
            and all(run.reference.ended.get(id) == "buried" for id in group.members)
        ]
        run.hold("memory", not graves, "groups {} are buried whole, and counted", graves)
    if run.prescribed:
        due = run.prescribed.pop(0)
        run.hold(
            "redo",
            due == (event.step, event.rollouts),
            "{} was taken, and {} had to be taken again",
            event,
            due,
        )
    else:
        run.hold(
            "order",
            event.step == run.open_step,
            "step {} takes, and step {} is open",
            event.step,
            run.open_step,
        )
        _in_order(run, wholes, event)
    _fits(run, units, event)
    newest = max(run.lineage)
    run.hold(
        "order",
        event.step in (newest, newest + 1),
        "step {} takes, and version {} is the last",
        event.step,
        newest,
    )
    filling = run.reference.steps.get(event.step, Filling())
    before = run.full(filling, [seen for unit in units[:-1] for seen in unit])
    run.hold(
        "order",
        not before,
        "step {} took {} when it had what it needs",
        event.step,
        [seen.id for seen in units[-1]],
    )


def _may_be_trained(run: CheckedRun, seen: ReferenceRollout, event: e.Taken) -> None:
    """Check that a rollout has a reward, and was sampled before its step, which is its first."""
    run.hold(
        "once",
        seen.step is None,
        "rollout {} was taken for step {}, and again",
        seen.id,
        seen.step,
    )
    judged = isinstance(seen.verdict, Scored) and seen.group.event.split == "train"
    run.hold(
        "whole",
        judged,
        "rollout {} was taken, and cannot be trained: {}",
        seen.id,
        seen.verdict,
    )
    newest = max(seen.versions, default=0)
    run.hold(
        "order",
        newest <= event.step,
        "rollout {} was taken for step {}, and has tokens of {}",
        seen.id,
        event.step,
        newest,
    )


def _fits(run: CheckedRun, units: list[list[ReferenceRollout]], event: e.Taken) -> None:
    """Check that what is taken at a time fits a micro-batch, unless it is one unit, or the step is
    taken whole, as it may be where the trainer's devices were lent."""
    train, rollout = run.config.train, run.config.rollout
    lent = rollout.lent_actors and rollout.lending == "switch"
    if lent and event.step not in run.reference.steps:
        return
    if train.advantage in WHOLE_STEP or len(units) == 1 or run.config.agent.run:
        return  # of episodes the micro-batch says it
    tokens = sum(len(seen.context) // 4 + len(seen.versions) for unit in units for seen in unit)
    run.hold(
        "order",
        tokens <= micro_tokens(run.config),
        "{} units of {} tokens are taken at a time, and a micro-batch has {}",
        len(units),
        tokens,
        micro_tokens(run.config),
    )


def _left_out(run: CheckedRun, event: e.Taken) -> list[ReferenceRollout]:
    """Check the rollouts that a step leaves out of groups that it takes, and return them."""
    left = [live_rollout(run, id, event) for id in event.left_out]
    taken = {run.reference.rollouts[id].group.event.group for id in event.rollouts}
    ids = {*event.rollouts, *event.left_out}
    run.hold(
        "chosen",
        len(ids) == len(event.rollouts) + len(event.left_out)
        and all(isinstance(seen.verdict, Scored) and seen.step is None for seen in left)
        and {seen.group.event.group for seen in left} <= taken
        and not (left and run.config.train.unit == "rollout"),
        "{} leaves out what it takes, or what cannot be chosen",
        event,
    )
    return left


def _rightly_chosen(
    run: CheckedRun, unit: list[ReferenceRollout], beside: list[ReferenceRollout]
) -> None:
    """Check that the members of a group that are trained, `beside` others that are not, are such as
    the rule keeps, and those that it kept whenever it was asked about this group."""
    group, kept = unit[0].group, {seen.id for seen in unit}
    scored = sorted((*unit, *beside), key=lambda seen: seen.id)
    if not group.left:  # else the choice was made before a crash
        run.hold(
            "chosen",
            any(kept == {seen.id for seen in choice} for choice in choices(run.config, scored)),
            "of group {} the rollouts {} are kept, of the rewards {}",
            group.event.group,
            kept,
            group.rewards,
        )
        among = [(seen.id, reward(seen), bytes(seen.ids)) for seen in scored]
        before = run.choices.setdefault(group.event.group, (among, kept))
        run.hold(
            "chosen",
            before[0] != among or before[1] == kept,
            "of group {} the rollouts {} are kept, and {} were before",
            group.event.group,
            kept,
            before[1],
        )
    filtered = run.config.rollout.filter == "zero_variance" and not (
        run.config.train.advantage == "reinforce_pp" or run.config.train.credit != "episode"
    )
    run.hold(
        "chosen",
        not filtered or len({reward(seen) for seen in unit}) > 1,
        "group {} is trained with equal rewards alone",
        group.event.group,
    )


def _may_be_taken(
    run: CheckedRun,
    unit: list[ReferenceRollout],
    beside: list[ReferenceRollout],
    event: e.Taken,
    chosen: set[int],
) -> None:
    if run.config.train.unit == "group":
        _whole(run, unit, beside)
    else:
        others = len(unit[0].group.others(unit[0].id))
        run.hold(
            "whole",
            others >= run.config.rollout.k_min,
            "rollout {} was taken with {} others judged",
            unit[0].id,
            others,
        )
    run.hold(
        "lag",
        not run.stale(unit, event.step),
        "rollouts {} were taken for step {}, and are stale",
        [s.id for s in unit],
        event.step,
    )
    if run.config.staleness.window:
        _in_the_window(run, unit, event, chosen)


def _whole(run: CheckedRun, unit: list[ReferenceRollout], beside: list[ReferenceRollout]) -> None:
    """Check that a group is taken whole, once, when no more of it is to come."""
    group = unit[0].group
    members = run.reference.members(group)
    scored = [seen.id for seen in members if isinstance(seen.verdict, Scored)]
    run.hold(
        "whole",
        all(seen.verdict for seen in members),
        "group {} was taken before all its verdicts",
        group.event.group,
    )
    run.hold(
        "growth",
        not (group.may_grow or group.imports),
        "group {} of {} was taken, and may grow to {}",
        group.event.group,
        len(group.members),
        group.most,
    )
    run.hold(
        "forks",
        not any(seen.open for seen in run.reference.members(group)),
        "group {} was taken, and some of it may fork",
        group.event.group,
    )
    run.hold(
        "whole",
        set(scored) == {seen.id for seen in (*unit, *beside)},
        "group {} was not taken whole",
        group.event.group,
    )
    _rightly_chosen(run, unit, beside)
    run.hold(
        "whole",
        not group.steps,
        "group {} was taken for {}, and again",
        group.event.group,
        group.steps,
    )
    run.hold(
        "whole",
        len(group.own_rewards) >= run.config.rollout.k_min,
        "group {} was taken with {} verdicts",
        group.event.group,
        len(scored),
    )


def _in_the_window(
    run: CheckedRun, unit: list[ReferenceRollout], event: e.Taken, chosen: set[int]
) -> None:
    """Check that a unit was admitted within `staleness.window` of the oldest that is left."""
    group = unit[0].group
    oldest = run.reference.oldest(chosen)
    last = group.ordinal if oldest is None else oldest.ordinal + run.config.staleness.window - 1
    run.hold(
        "window",
        group.ordinal <= last,
        "group {} was taken, the {}th; it goes to the {}th",
        group.event.group,
        group.ordinal,
        last,
    )
    worst = run.worst_lag
    lag = max((event.step - seen.oldest for seen in unit if seen.own), default=0)
    run.hold(
        "window",
        lag <= worst,
        "step {} takes a lag of {} in a window whose worst is {}",
        event.step,
        lag,
        worst,
    )


def _in_order(run: CheckedRun, units: list[list[ReferenceRollout]], event: e.Taken) -> None:
    """Check that nothing older could have been taken: with tokens of a smaller version, or, if
    nothing may lag, admitted before."""
    in_turn = run.max_lag == 0

    def age(unit: list[ReferenceRollout]) -> tuple[int, int]:
        group = unit[0].group
        if in_turn:
            return group.ordinal, unit[0].id
        return min((seen.oldest for seen in unit if seen.own), default=0), unit[
            0
        ].id if run.config.train.unit == "rollout" else group.event.group

    if run.config.staleness.window and not in_turn:
        return  # what may be taken changes with what leaves, and with what is chosen
    ages = [age(unit) for unit in units]
    run.hold(
        "order",
        ages == sorted(ages),
        "step {} takes {} in another order",
        event.step,
        event.rollouts,
    )
    chosen = {seen.id for unit in units for seen in unit}
    for group in run.reference.groups.values():
        complete = run.reference.complete(group)
        members = [
            seen
            for seen in run.reference.members(group)
            if seen.step is None and seen.id not in chosen
        ]
        scored = [seen for seen in members if isinstance(seen.verdict, Scored)]
        if group.event.split != "train" or not members:
            continue
        if in_turn:
            others = [[seen] for seen in (scored if complete else members)]
        elif run.config.train.unit == "group":
            others = [scored] if complete and scored else []
        else:
            others = [
                [seen] for seen in scored if len(group.others(seen.id)) >= run.config.rollout.k_min
            ]
        for unit in others:
            older = age(unit) < ages[-1]
            run.hold(
                "order",
                not older,
                "step {} takes {}, and not the older {}",
                event.step,
                event.rollouts,
                [s.id for s in unit],
            )
