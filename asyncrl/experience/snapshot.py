"""A complete stored state, so that a journal need not start at the beginning. Invariant: no field
can be derived from the others, so no two of them can contradict each other.
"""

from __future__ import annotations

import msgspec

from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.experience import events as e
from asyncrl.experience.answer_pool import AnswerPool
from asyncrl.experience.audit import Audit
from asyncrl.experience.group import Group
from asyncrl.experience.ledger import Ledger
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.steps import Takings
from asyncrl.messages import Split


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a state: `Experience.snapshot` returns it, `Experience.of` restores it.
    `training`, `prescribed` and `closed` are those of `Steps`, the others those of
    `ExperienceState`."""

    ledger: Ledger
    version: int | None
    step: int | None
    checkpoint: e.Checkpointed | None
    next_group: int
    next_rollout: int
    prompts: dict[Split, int]
    sealings: int
    judgements: int
    ordinals: dict[Split, int]
    history: History
    audit: Audit
    groups: list[Group]
    replay_buffer: ReplayBuffer
    training: Takings
    prescribed: Takings
    closed: int
    restarts: dict[int, int]
    pool: AnswerPool = msgspec.field(default_factory=AnswerPool)
