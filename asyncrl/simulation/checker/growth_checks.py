"""Checks of groups that grow. Invariant: a group grows when all its members are judged or buried,
by what its rule says of them, and nothing of it is taken before it has stopped."""

from __future__ import annotations

from asyncrl.experience import events as e
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_growth import GROWING, due_sizes
from asyncrl.simulation.checker.reference_rollouts import ReferenceGroup

SAVED = 4
"""Ranges of one group by which `gdro`'s sizes may be off their mean, all together."""


def check_first_size(run: CheckedRun, event: e.Admitted) -> None:
    """Check the size that a training group begins with, and the one to which it may grow."""
    rollout = run.config.rollout
    most = rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max
    least = rollout.group_size
    if rollout.fork != "off":
        least = most = rollout.group_size // rollout.fork_leaves
    grows = rollout.sizing in GROWING
    run.hold(
        "growth",
        event.most == (most if grows else 0) and (event.size == least or not grows),
        "{} begins with another size, or may grow to another, than {} allows",
        event,
        rollout.sizing,
    )
    run.hold("prompts", least <= event.size <= most, "a group has {} rollouts", event.size)
    if rollout.sizing == "gdro":
        groups, rollouts = run.reference.started
        off = 2 * (rollouts + event.size) - (least + most) * (groups + 1)
        run.hold(
            "growth",
            abs(off) <= 2 * SAVED * (most - least),
            "{} groups have {} rollouts, which is not the mean of {} and {}",
            groups + 1,
            rollouts + event.size,
            least,
            most,
        )


def grown(run: CheckedRun, event: e.Grown) -> None:
    """Check that a group is asked about when it may be, and has the size that its rule gives."""
    group = run.reference.groups.get(event.group)
    run.hold("growth", group is not None, "{} is of a group that is not live", event)
    if group is None:
        return
    run.hold(
        "growth",
        run.reference.finished(group) and group.may_grow and not group.steps,
        "{} came before all its verdicts, or after it was complete",
        event,
    )
    due = _due(run, group)
    run.hold(
        "growth",
        event.size in due,
        "group {} of {} with the rewards {} has {} rollouts now, and {} are due",
        event.group,
        len(group.members),
        group.rewards,
        event.size,
        due,
    )


def _due(run: CheckedRun, group: ReferenceGroup) -> set[int]:
    rewards = [group.rewards[id] for id in group.members if id in group.rewards]
    a, b = group.posterior
    return due_sizes(run.config, len(group.members), rewards, len(group.solved), a / (a + b))
