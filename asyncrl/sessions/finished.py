"""What goes into a session and what comes out of it. Invariant: arrays are parallel, and bytes
little-endian: `int32` ids, `float32` log-probabilities, `uint8` masks."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncrl.ipc.messages import Finish, Span

End = Literal["rewarded", "given_up", "expired", "drained"]
"""Why a session takes no more calls: its agent gave a reward, or gave up; it was idle for too long;
the gateway closed."""

Meeting = Literal["opened", "continued", "retried", "rewritten", "forked"]
"""How a call's context met what the session held. `opened`: it shares no token with any earlier
call. `continued`: it goes on where an earlier call ended. `retried`: it is a context that was
sampled from before. `rewritten`: it leaves inside a reply, so that the reply came back with other
tokens than were sampled (edited, cut, or tokenized anew). `forked`: it leaves inside what was given
(another history, a sub-agent)."""


class Sampled(msgspec.Struct, frozen=True):
    """What one call sampled and its agent was given. `ids` and `behaviour` have one item for each
    token, and `spans` tile them. `unused` tokens more were sampled after them, and nobody saw them
    (they followed a stop string)."""

    ids: bytes
    behaviour: bytes
    spans: tuple[Span, ...]
    finish: Finish
    unused: int = 0

    @property
    def tokens(self) -> int:
        return len(self.ids) >> 2


class Leaf(msgspec.Struct, frozen=True):
    """One sequence to train on: all that the model saw up to the end of one leaf of the tree.

    `ids`, `mask` and `behaviour` have one item for each token. `mask` is 1 where the token was
    sampled and belongs to no other leaf's mask; `behaviour` is its log-probability there, 0
    elsewhere. `spans` tile exactly what the mask marks.
    """

    ids: bytes
    mask: bytes
    behaviour: bytes
    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        return len(self.ids) >> 2

    @property
    def trained(self) -> int:
        """How many tokens the mask marks."""
        return self.mask.count(1)


class FinishedSession(msgspec.Struct, frozen=True):
    """A session that has ended. `reward` is finite, and None unless it is `rewarded`;
    `prompt_index` is the prompt of the run's task that the session was about, where its reward said
    so. `sampled` is the tokens of all masks together, `unused` those that were sampled and seen by
    nobody. `meetings` counts how calls met what was there, by name."""

    session: str
    end: End
    reward: float | None
    prompt_index: int | None
    calls: int
    sampled: int
    unused: int
    meetings: dict[Meeting, int]
    leaves: tuple[Leaf, ...]
