"""Input and output of a session. Invariant: arrays are parallel, and bytes little-endian: `int32`
ids, `float32` log-probabilities, `uint8` masks."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncrl.experience.call_tree import Meeting
from asyncrl.experience.sequence import TrainingSequence

End = Literal["rewarded", "given_up", "expired", "drained"]
"""The reason why a session takes no more calls: its agent gave a reward, or gave up; it was idle
for too long; the gateway closed."""


class FinishedSession(msgspec.Struct, frozen=True):
    """A session that has ended. `reward` is finite, and None unless `end` is `rewarded`;
    `prompt_index` is the prompt of the run's task that the session was about, where its reward said
    so. `meetings` counts calls by the relation of their context to what was there.

    `leaves` has one sequence for each leaf of the tree: all that the model saw up to the leaf's
    end. A sampled token is marked by the mask of exactly one of them. `sampled` is the tokens of
    all masks together; `unused` were sampled too, and seen by nobody.
    """

    session: str
    end: End
    reward: float | None
    prompt_index: int | None
    calls: int
    sampled: int
    unused: int
    meetings: dict[Meeting, int]
    leaves: tuple[TrainingSequence, ...]
