"""The one form of trained tokens. Invariant: `ids`, `mask` and `behaviour` have one item for each
token, and `spans` tile exactly what `mask` marks.

A rollout of one turn, a member of the replay buffer and a leaf of a recorded session all become a
`TrainingSequence`. From there to the trainer's micro-batch there is one path.

A micro-batch has a sequence up to its last marked token, because the rest is not in the loss. It
has behaviour and mask of the marked tokens only; the spans give their positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from asyncrl.messages import Finish, Sample, Span

ID_BYTES = 4
"""Bytes of a token id (`int32`), and of a log-probability (`float32`)."""


class TrainingSequence(msgspec.Struct, frozen=True):
    """Tokens, with a mask of the trained ones.

    `ids` (`int32`), `mask` (`uint8`) and `behaviour` (`float32`) are little-endian. `mask` is 1
    where a token was sampled and is trained; `behaviour` is its log-probability there, and 0
    elsewhere. `spans` give the versions that sampled the marked tokens: their positions count from
    the first token of the sequence, ascend, and do not overlap. `errors` are tokens that a verifier
    found wrong, or of failed calls of tools: [start, end) of the marked tokens. `finish` is the
    finish of its last sampled response; empty where that is open or unknown.

    Example: a prompt of two tokens, three sampled ones, one given by a tool, and two sampled ones,
    of which the last is of a newer version.

        position     0  1  2  3  4  5  6  7
        ids         50 51 10 11 12 70 13 14
        mask         0  0  1  1  1  0  1  1
        behaviour    0  0 -1 -2 -1  0 -3 -1
        spans       Span(3, 2, 5), Span(3, 6, 7), Span(4, 7, 8)

    Here `prompt_tokens` is 2, `response_tokens` 6 and `trained` 5.
    """

    ids: bytes
    mask: bytes
    behaviour: bytes
    spans: tuple[Span, ...]
    finish: Finish = ""
    errors: tuple[tuple[int, int], ...] = ()

    @classmethod
    def single_turn(
        cls,
        prompt: bytes,
        ids: bytes | bytearray,
        behaviour: bytes | bytearray,
        spans: Iterable[Span],
        finish: Finish = "",
        errors: Iterable[tuple[int, int]] = (),
    ) -> Self:
        """A prompt and one stretch of sampled tokens, which `spans` tile from 0 on. The arrays are
        copied.

        Example: a prompt of two tokens and a response of three.

        >>> sequence = TrainingSequence.single_turn(bytes(8), bytes(12), bytes(12), [Span(4, 0, 3)])
        >>> sequence.mask, sequence.spans
        (b'\\x00\\x00\\x01\\x01\\x01', (Span(version=4, start=2, end=5),))
        """
        before = len(prompt) // ID_BYTES
        return cls(
            ids=prompt + ids,
            mask=bytes(before) + b"\x01" * (len(ids) // ID_BYTES),
            behaviour=bytes(len(prompt)) + behaviour,
            spans=tuple(Span(s.version, before + s.start, before + s.end) for s in spans),
            finish=finish,
            errors=tuple(errors),
        )

    @property
    def tokens(self) -> int:
        """All tokens."""
        return len(self.ids) // ID_BYTES

    @property
    def trained(self) -> int:
        """Tokens that the mask marks."""
        return self.mask.count(1)

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first marked one; all where none is marked."""
        return self.spans[0].start if self.spans else self.tokens

    @property
    def response_tokens(self) -> int:
        """Tokens from the first marked one to the last marked one, including given ones between
        them."""
        return self.spans[-1].end - self.spans[0].start if self.spans else 0

    def sample(
        self,
        rollout: int,
        group: int,
        reward: float,
        *,
        baseline: float | None = None,
        member: int | None = None,
        strand: int = 0,
        share: float = 1.0,
        turns: Iterable[tuple[int, int]] = (),
        path_counts: Iterable[tuple[int, int]] = (),
    ) -> Sample:
        """The head of this sequence in a micro-batch, with the facts for its loss (see
        `Sample`)."""
        return Sample(
            rollout,
            group,
            self.prompt_tokens,
            self.response_tokens,
            reward,
            list(self.spans),
            baseline,
            member,
            self.finish,
            strand,
            share,
            list(turns),
            list(path_counts),
        )


def joined_ids(sequences: Iterable[TrainingSequence]) -> bytes:
    """`int32` ids of all sequences, each up to its last marked token: buffer 0 of `MicroBatch` and
    of `ScoreProximal`."""
    return b"".join(
        memoryview(s.ids)[: ID_BYTES * (s.prompt_tokens + s.response_tokens)] for s in sequences
    )


def joined_behaviour(sequences: Iterable[TrainingSequence]) -> bytes:
    """`float32` behaviour log-probabilities of the marked tokens of all sequences: buffer 1 of
    `MicroBatch`. Of the example above: -1, -2, -1, -3, -1."""
    return b"".join(
        memoryview(s.behaviour)[ID_BYTES * span.start : ID_BYTES * span.end]
        for s in sequences
        for span in s.spans
    )
