"""A state written down whole, so that a journal need not go back to the beginning. Invariant: it
holds what cannot be derived from the rest of it, and nothing else, so there is nothing in it that
could contradict itself.
"""

from __future__ import annotations

import msgspec

from asyncrl.experience import events as e
from asyncrl.experience.audit import Audit
from asyncrl.experience.history import History
from asyncrl.experience.ledger import Ledger
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.rollout import Group
from asyncrl.experience.steps import Takings
from asyncrl.ipc.messages import Split


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What `Experience.snapshot` gives and `Experience.of` takes. `sealings` and `judgements` are
    how many rollouts were ever sealed and judged, `ordinals` how many groups were admitted of each
    purpose, `training`, `prescribed` and `closed` are of `Steps`, and the rest is as in
    `Experience`."""

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
