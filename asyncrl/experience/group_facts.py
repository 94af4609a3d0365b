"""The facts of a group from which its members' advantages are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.messages import DrawnMembers, ForkedMembers, PromptFacts


class GroupFacts(NamedTuple):
    """One entry for each member with a reward, in the order of `Group.scored`: its reward, the
    parts of the reward (empty where verifiers give one reward), the sampled tokens, the rewards of
    its turns (empty where no agent played), their keys (empty where none has one), and the turns
    directly above each (empty where each lies below the one before it). `prompt` is what was known
    of the prompt at the group's admission; `drawn` says with which chances its members go on to
    their end, where a rule might have ended any (None: nowhere), and `forked` which tokens they
    share, where any might have forked (None: nowhere)."""

    rewards: list[float]
    parts: list[list[float]]
    lengths: list[int]
    turns: list[list[float]]
    keys: Sequence[list[str]] = ()
    prompt: PromptFacts = PromptFacts()
    above: Sequence[list[list[int]]] = ()
    drawn: DrawnMembers | None = None
    forked: ForkedMembers | None = None
