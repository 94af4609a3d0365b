"""Checks of the strands that the learner is given of an episode. Invariant: each sampled token of
each call that its agent made is given once, behind its own context, with its own lag."""

from __future__ import annotations

import math
from collections import Counter

from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import MicroBatch, Sample
from asyncrl.simulation.checker.branch_checks import above_of, same_tree
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceAgentCall,
    ReferenceEpisode,
    ReferenceRollout,
)
from asyncrl.simulation.checker.strand_checks import take_calls


def check_strand(
    run: CheckedRun,
    batch: MicroBatch,
    sample: Sample,
    seen: ReferenceRollout,
    ids: bytes,
    behaviour: bytes,
    mask: bytes,
) -> None:
    """Check one strand: its `ids`, and `behaviour` and `mask` of its sampled tokens. Its calls are
    taken from those of the rollout that were not given yet (`handed`)."""
    episode, left = seen.episode, run.handed[batch.step][seen.id]
    assert episode is not None
    if not sample.strand:
        seen.given = []
    run.hold(
        "once",
        sample.strand == len(seen.given),
        "strand {} of rollout {} is given after {} others",
        sample.strand,
        seen.id,
        len(seen.given),
    )
    there = take_calls(run, seen.id, _sequence(sample, ids, behaviour), left)
    if run.violation is not None:
        return
    cut = run.masks_cut and there[-1].finish == "length"
    last, wrong = episode.turns[-1], seen.wrong()
    before = len(seen.versions) - len(last.versions)
    due = b"".join(
        bytes(
            (
                2
                if cut
                else 3
                if _failed(run, episode, call) or (call is last and before + place in wrong)
                else 1
            )
            * (batch.step - version <= run.max_lag)
            for place, version in enumerate(call.versions)
        )
        for call in there
    )
    run.hold(
        "lag",
        mask == due,
        "a strand of rollout {} in step {}: versions {}, mask {}",
        seen.id,
        batch.step,
        [call.versions for call in there],
        mask.hex(),
    )
    seen.given.append(Counter(due))
    turns = [(episode.turns.index(call), len(call.versions)) for call in there]
    run.hold(
        "strands",
        list(sample.turns) == turns
        and sample.finish == there[-1].finish
        and math.isclose(sample.share, len(due) / len(seen.versions)),
        "{} is of the turns {}",
        sample,
        turns,
    )


def check_turns(run: CheckedRun, batch: MicroBatch, group: int) -> None:
    """Check the rewards and keys of turns that the learner is given for a group that is trained
    whole."""
    members = [
        seen
        for seen in run.reference.rollouts.values()
        if seen.group.event.group == group and seen.id in seen.group.rewards
    ]
    episodes = [seen.episode for seen in members if seen.episode is not None]
    due = [[x.rewards.get(call.id, 0.0) for call in x.turns] for x in episodes]
    given = batch.turns.get(group, [[]] * len(due))
    run.hold(
        "verdicts",
        given == due,
        "the turns of group {} are trained with {}, and were given {}",
        group,
        given,
        due,
    )
    names = [x.names if any(x.names) else [] for x in episodes]
    keys = batch.keys.get(group, [[]] * len(names))
    run.hold(
        "verdicts",
        keys == names,
        "the turns of group {} are trained with the keys {}, and were given {}",
        group,
        keys,
        names,
    )
    trees = [above_of(x.turns) for x in episodes]
    found = batch.above.get(group, [[]] * len(trees))
    run.hold(
        "branches",
        len(found) == len(trees) and all(map(same_tree, found, trees)),
        "the branches of group {} are {}, and its calls say {}",
        group,
        found,
        trees,
    )


def _failed(run: CheckedRun, episode: ReferenceEpisode, call: ReferenceAgentCall) -> bool:
    """True if a call was a failed one of a tool that is left out of the loss."""
    tool, tools = episode.failed.get(call.id, ""), run.config.agent.mask_failed
    return bool(tool) and (tool in tools or "*" in tools)


def _sequence(sample: Sample, ids: bytes, behaviour: bytes) -> TrainingSequence:
    """The sequence that a sample is of, as far as the learner is given it."""
    mask, spread, at = bytearray(len(ids) // 4), bytearray(len(ids)), 0
    for span in sample.spans:
        size = span.end - span.start
        mask[span.start : span.end] = b"\1" * size
        spread[4 * span.start : 4 * span.end] = behaviour[at : at + 4 * size]
        at += 4 * size
    return TrainingSequence(ids, bytes(mask), bytes(spread), tuple(sample.spans))
