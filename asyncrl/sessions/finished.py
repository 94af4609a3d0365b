"""Input and output of a session. Invariant: arrays are parallel, and bytes little-endian: `int32`
ids, `float32` log-probabilities, `uint8` masks."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncrl.experience.sequence import TrainingSequence
from asyncrl.ipc.messages import Finish, Span

End = Literal["rewarded", "given_up", "expired", "drained"]
"""The reason why a session takes no more calls: its agent gave a reward, or gave up; it was idle
for too long; the gateway closed."""

Meeting = Literal["opened", "continued", "retried", "rewritten", "forked"]
"""The relation of a call's context to what the session holds. `opened`: it shares no token with any
earlier call. `continued`: it goes on where an earlier call ended. `retried`: it is a context that
was sampled from before. `rewritten`: it leaves inside a reply, so that the reply came back with
other tokens than were sampled (edited, cut, or tokenized anew). `forked`: it leaves inside what was
given (another history, a sub-agent)."""


class Sampled(msgspec.Struct, frozen=True):
    """The tokens that one call sampled and its agent was given. `ids` and `behaviour` have one item
    for each token, and `spans` tile them from 0 on. `unused` tokens more were sampled after them,
    and nobody saw them (they followed a stop string)."""

    ids: bytes
    behaviour: bytes
    spans: tuple[Span, ...]
    finish: Finish
    unused: int = 0

    @property
    def tokens(self) -> int:
        """Tokens sampled, `unused` ones not counted."""
        return len(self.ids) >> 2


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
