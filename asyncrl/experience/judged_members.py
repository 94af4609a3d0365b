"""Facts about the members of a complete group, by which those that are trained are chosen.
Invariant: they follow from the journal alone."""

from __future__ import annotations

import math
from array import array

from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.experience.episode import turn_keys
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import Scored


def judged_members(group: Group) -> list[JudgedMember]:
    """One entry for each member with a reward, in the order of `Group.scored`."""
    return [
        _judged(member, member.verdict)
        for member in group.scored
        if isinstance(member.verdict, Scored)
    ]


def _judged(member: Rollout, verdict: Scored) -> JudgedMember:
    return JudgedMember(
        reward=verdict.reward,
        right=verdict.exact,
        parts=verdict.parts,
        tokens=member.tokens,
        logprob=_mean(array("f", bytes(member.behaviour))),
        cut=member.truncated,
        turns=len(member.turns) if member.strands else 1,
        failed=sum(bool(turn.failed) for turn in member.turns),
        keys=turn_keys(member.turns),
    )


def _mean(numbers: array[float]) -> float:
    """The mean; 0 for no values, or unknown ones (of some foreign answers)."""
    return math.fsum(numbers) / len(numbers) if numbers and not math.isnan(numbers[0]) else 0.0
