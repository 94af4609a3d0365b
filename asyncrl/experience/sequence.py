"""The one form of trained tokens. Invariant: `ids`, `mask` and `behaviour` have one item for each
token, and `spans` tile exactly what `mask` marks.

A rollout of one turn, a member of the replay buffer and a leaf of a recorded session all become a
`TrainingSequence`. From there to the trainer's micro-batch there is one path.

A micro-batch has a sequence up to its last marked token, because the rest is not in the loss. It
has behaviour and mask of the marked tokens only; the spans give their positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from asyncrl.experience.image_marks import numbered_alone
from asyncrl.messages import Finish, Sample, Span

UNKNOWN = b"\xff"
"""Each byte of a token's routing that is not known."""
ID_BYTES = 4
"""Bytes of a token id (`int32`), and of a log-probability (`float32`)."""


class TrainingSequence(msgspec.Struct, frozen=True):
    """Tokens, with a mask of the trained ones.

    `ids` (`int32`), `mask` (`uint8`) and `behaviour` (`float32`) are little-endian. `mask` is 1
    where a token was sampled and is trained; `behaviour` is its log-probability there, and 0
    elsewhere. `spans` give the versions that sampled the marked tokens: their positions count from
    the first token of the sequence, ascend, and do not overlap. `errors` are tokens that a verifier
    found wrong, or of failed calls of tools: [start, end) of the marked tokens. `finish` is the
    finish of its last sampled response; empty where that is open or unknown. `routing` are the
    experts of the marked tokens, as many bytes for each (`Call.routing`); empty where none are
    known. `images` are the hashes of those that its negative ids number (`image_marks.py`).

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
    routing: bytes = b""
    images: tuple[str, ...] = ()

    @classmethod
    def single_turn(
        cls,
        prompt: bytes,
        ids: bytes | bytearray,
        behaviour: bytes | bytearray,
        spans: Iterable[Span],
        finish: Finish = "",
        errors: Iterable[tuple[int, int]] = (),
        routing: bytes | bytearray = b"",
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
            spans=tuple(replace(s, start=before + s.start, end=before + s.end) for s in spans),
            finish=finish,
            errors=tuple(errors),
            routing=bytes(routing),
        )

    def numbered(self, table: Sequence[str]) -> Self:
        """The sequence, whose images have numbers of a table, with these of its own."""
        ids, images = numbered_alone(self.ids, table)
        return replace(self, ids=ids, images=images)

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
            self.images,
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


def joined_routing(sequences: Iterable[TrainingSequence]) -> bytes:
    """The routing of the marked tokens of all sequences, unknown where a sequence has none: buffer
    3 of `MicroBatch`; empty where none has any.

    >>> known = TrainingSequence(bytes(8), b"\\x00\\x01", bytes(8), (), routing=b"ab")
    >>> none = TrainingSequence(bytes(4), b"\\x01", bytes(4), ())
    >>> joined_routing([known, none]), joined_routing([none])
    (b'ab\\xff\\xff', b'')
    """
    every = list(sequences)
    width = max((len(s.routing) // s.trained for s in every if s.routing), default=0)
    return b"".join(s.routing or UNKNOWN * (width * s.trained) for s in every)


def with_routing(routing: bytearray, held: int, more: bytes | bytearray, count: int) -> bytearray:
    """The routing of `held` tokens, extended in place by that of `count` more, where either may be
    unknown. Raises ValueError where a token of one has more bytes than one of the other.

    >>> with_routing(bytearray(), 1, b"abcd", 2)
    bytearray(b'\\xff\\xffabcd')
    """
    width = len(routing) // held if routing else len(more) // count if count else 0
    if more and len(more) != width * count:
        raise ValueError(f"{len(more)} bytes of routing are not {width} for each of {count} tokens")
    known = routing or bytearray(UNKNOWN * (width * held))
    known += more or UNKNOWN * (width * count)
    return known
