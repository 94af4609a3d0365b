"""Checks of rollouts that fork. Invariant: a rollout forks at each place where its rule says so, by
the tokens before it, as long as it has leaves to give; a fork continues exactly these tokens, which
are trained once; and the learner is told of the tree as it is."""

from __future__ import annotations

import numpy as np

from asyncrl.experience import events as e
from asyncrl.messages import MicroBatch, Sample
from asyncrl.simulation.checker.checked_run import CheckedRun, live_rollout
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceCall,
    ReferenceGroup,
    ReferenceRollout,
)
from asyncrl.simulation.checker.reference_trees import forks_after


def check_roots(run: CheckedRun, event: e.Admitted) -> None:
    """Check how many rollouts a group begins with, and how many each may become."""
    rollout = run.config.rollout
    leaves = 1 if rollout.fork == "off" else rollout.fork_leaves
    run.hold(
        "forks",
        event.leaves == leaves and (leaves == 1 or event.size * leaves == rollout.group_size),
        "{} has rollouts that may become {} each, not {}",
        event,
        event.leaves,
        leaves,
    )


def forked(run: CheckedRun, event: e.Forked) -> None:
    seen = live_rollout(run, event.rollout, event)
    due = _due(run, seen)
    run.hold(
        "forks",
        event.at == (due[0] if due else 0) and seen.open and (bool(due) or seen.sealed),
        "{} is of a rollout of {} tokens that may fork: {}; due is {}",
        event,
        len(seen.shared) // 4 + len(seen.versions),
        seen.open,
        due,
    )
    known = max(max(group.members) for group in run.reference.groups.values())
    run.hold("forks", event.first > known, "{} is numbered as another one", event)


def check_none_due(run: CheckedRun, call: ReferenceCall) -> None:
    """Check that a rollout that goes on is one that has not to fork first."""
    if isinstance(call, ReferenceRollout) and call.open:
        due = _due(run, call)
        run.hold("forks", not due, "rollout {} goes on, and has to fork at {}", call.id, due)


def check_tree(run: CheckedRun, batch: MicroBatch, sample: Sample, seen: ReferenceRollout) -> None:
    """Check what the learner is told of the tree that a rollout is in."""
    group, given = seen.group, batch.forked.get(sample.group)
    members = [*group.compared]
    if group.event.leaves == 1:
        run.hold("forks", given is None, "group {} has no trees", sample.group)
        return
    trees = [group.lines[id][0] for id in members]
    below = [sorted(_below(group, id, members)) for id in members]
    leaves = [group.leaves[id] for id in members]
    run.hold(
        "forks",
        given is not None
        and _partition(given.trees) == _partition(trees)
        and (given.leaves, [sorted(row) for row in given.below]) == (leaves, below),
        "of group {} the learner is told {}, and due is {} {} {}",
        sample.group,
        given,
        trees,
        leaves,
        below,
    )
    ends = sorted({tokens for _, tokens in below[members.index(seen.id)]})
    stretches = [b - a for a, b in zip([0, *ends], [*ends, len(seen.versions)], strict=True)]
    due = [*enumerate(stretches)] if ends else []
    run.hold(
        "forks",
        sample.turns == due,
        "rollout {} is trained in the stretches {}, and due is {}",
        seen.id,
        sample.turns,
        due,
    )


def _below(group: ReferenceGroup, id: int, members: list[int]) -> list[tuple[int, int]]:
    """The compared members that continue a member, and how many of its own tokens each has."""
    found = []
    for number, other in enumerate(members):
        line = group.lines[other]
        if other != id and id in line:
            next_one = line[line.index(id) + 1]
            found.append((number, group.begins[next_one] - group.begins[id]))
    return found


def _partition(trees: list[int]) -> list[int]:
    return [trees.index(tree) for tree in trees]


def _due(run: CheckedRun, seen: ReferenceRollout) -> list[int]:
    """The places where a rollout has to fork, as far as it has tokens."""
    every, before = run.config.rollout.fork_after, len(seen.shared) // 4
    forks = [
        seen.group.begins[id]
        for id, line in seen.group.lines.items()
        if len(line) > 1 and line[-2] == seen.id
    ]
    last, end = max(forks, default=before), before + len(seen.versions)
    if not seen.open:
        return []
    places = [at for at in range(1, end) if at % every == 0 and at > last]
    return [at for at in places if _forks(run, seen, at - before)]


def _forks(run: CheckedRun, seen: ReferenceRollout, tokens: int) -> bool:
    """True if a rollout forks after so many of its own tokens."""
    return forks_after(run.config, np.frombuffer(bytes(seen.behaviour[: 4 * tokens]), np.float32))
