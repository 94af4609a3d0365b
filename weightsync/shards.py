"""The bytes that go from each rank to each, where both sides hold parts of tensors. Pure.
Invariant: every number that a target holds is sent to it once, from a rank that holds it.

A trainer's ranks hold rows of each tensor (FSDP2). Those of a server hold rows, columns or all of
it (tensor parallelism), often several tensors in one (`qkv_proj`). A `ShardPart` says what a rank
holds, and `moves` makes of both sides what each rank sends to each. Nothing is gathered, so no rank
has the whole of a tensor, and all links of a trainer work at once.

No transport uses this yet: the pinned servers take whole tensors alone, and cut them themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl.config.errors import InputError
from asyncrl.weightsync.buckets import DTYPES, Spec

Box = tuple[tuple[int, int], ...]
"""The first index of each dimension, and the one after the last."""


class NotHeld(InputError, ValueError):
    """A target holds numbers that no source has."""


@dataclass(frozen=True)
class ShardPart:
    """The numbers of a tensor that a rank holds: those in `box`, in its own tensor `held` from the
    index `at` on."""

    rank: int
    tensor: str
    box: Box
    held: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """Numbers of a tensor that a source sends to a target: from `start` of its own tensor `of`, to
    `at` of the target's tensor `into`, as many as `size` of each dimension."""

    source: int
    target: int
    tensor: str
    size: tuple[int, ...]
    of: str
    start: tuple[int, ...]
    into: str
    at: tuple[int, ...]

    @property
    def count(self) -> int:
        """Numbers of it."""
        return math.prod(self.size)


@dataclass
class ShardMessage:
    """Moves that travel as one: message `number` of its link, with `nbytes`."""

    source: int
    target: int
    number: int
    moves: list[Move] = field(default_factory=list)
    nbytes: int = 0


def rows(tensor: str, shape: Sequence[int], ranks: Sequence[int]) -> list[ShardPart]:
    """The parts of ranks that hold a tensor by rows, as FSDP2 divides it: each has as many as the
    first, the last ones fewer or none.

    >>> [part.box for part in rows("w", [5, 2], [0, 1, 2])]
    [((0, 2), (0, 2)), ((2, 4), (0, 2)), ((4, 5), (0, 2))]
    """
    whole = tuple((0, size) for size in shape) or ((0, 1),)
    each = -(-whole[0][1] // len(ranks))
    parts = []
    for place, rank in enumerate(ranks):
        start, end = (min(whole[0][1], each * count) for count in (place, place + 1))
        if start < end:
            box = ((start, end), *whole[1:])
            parts.append(ShardPart(rank, tensor, box, tensor, (0,) * len(box)))
    return parts


def divided(
    tensor: str,
    shape: Sequence[int],
    dim: int,
    ranks: Sequence[int],
    *,
    units: int = 0,
    held: str = "",
    row: int = 0,
) -> list[ShardPart]:
    """The parts of ranks that hold a tensor divided evenly along `dim`, as tensor parallelism does.
    Where it consists of fewer `units` (heads of keys) than ranks, several ranks hold the same one.
    Each has its part in the tensor `held` (its own name unless given) from row `row` on.

    >>> [part.box[0] for part in divided("k", [4, 8], 0, [0, 1, 2, 3], units=2)]
    [(0, 2), (0, 2), (2, 4), (2, 4)]
    """
    count = min(units or len(ranks), len(ranks))
    if shape[dim] % count or len(ranks) % count:
        raise ValueError(
            f"{tensor} has {shape[dim]} of dimension {dim}: they are not divisible among "
            f"{len(ranks)} ranks"
        )
    each, parts = shape[dim] // count, []
    for place, rank in enumerate(ranks):
        start = place * count // len(ranks) * each
        box = tuple(
            (start, start + each) if at == dim else (0, size) for at, size in enumerate(shape)
        )
        parts.append(ShardPart(rank, tensor, box, held or tensor, (row, *(0,) * (len(box) - 1))))
    return parts


def moves(sources: Iterable[ShardPart], targets: Iterable[ShardPart]) -> list[Move]:
    """The sends by which every target gets its part. Of several ranks that hold the same numbers,
    the one sends that has sent least. Raises NotHeld."""
    of_tensor: dict[str, list[ShardPart]] = {}
    for source in sources:
        of_tensor.setdefault(source.tensor, []).append(source)
    sent: dict[int, int] = {}
    found = []
    for target in targets:
        left = [target.box]
        holders = of_tensor.get(target.tensor, [])
        for source in sorted(holders, key=lambda part: sent.get(part.rank, 0)):
            for box in left:
                if (common := _common(source.box, box)) is not None:
                    move = _move(source, target, common)
                    sent[source.rank] = sent.get(source.rank, 0) + move.count
                    found.append(move)
            left = [rest for box in left for rest in _without(box, source.box)]
        if left:
            raise NotHeld(f"no source has {left[0]} of {target.tensor}, which {target.held} needs")
    return found


def messages(found: Iterable[Move], specs: Mapping[str, Spec], most: int) -> list[ShardMessage]:
    """The messages of moves, of at most `most` bytes, but for single numbers, in an order in which
    each rank can carry out its own, one after the other, without waiting in a circle. Those of
    different links take turns, so that all ranks are busy."""
    of_link: dict[tuple[int, int], list[ShardMessage]] = {}
    for move in found:
        size = DTYPES[specs[move.tensor].dtype].itemsize
        link = of_link.setdefault((move.source, move.target), [])
        for piece in _cut(move, max(1, most // size)):
            if not link or link[-1].nbytes + piece.count * size > most:
                link.append(ShardMessage(move.source, move.target, len(link)))
            link[-1].moves.append(piece)
            link[-1].nbytes += piece.count * size
    every = [message for link in of_link.values() for message in link]
    return sorted(every, key=lambda each: (each.number, each.target - each.source, each.source))


def _move(source: ShardPart, target: ShardPart, box: Box) -> Move:
    def place(part: ShardPart) -> tuple[int, ...]:
        offsets = zip(part.at, box, part.box, strict=True)
        return tuple(at + start - first for at, (start, _), (first, _) in offsets)

    size = tuple(end - start for start, end in box)
    return Move(
        source.rank,
        target.rank,
        source.tensor,
        size,
        source.held,
        place(source),
        target.held,
        place(target),
    )


def _common(one: Box, other: Box) -> Box | None:
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(start < end for start, end in box) else None


def _without(box: Box, other: Box) -> Iterator[Box]:
    """Boxes that tile what `box` has beside `other`."""
    if _common(box, other) is None:
        yield box
        return
    for dim, (start, end) in enumerate(other):
        first, last = box[dim]
        for rest in ((first, min(start, last)), (max(end, first), last)):
            if rest[0] < rest[1]:
                yield (*box[:dim], rest, *box[dim + 1 :])
        box = (*box[:dim], (max(first, start), min(last, end)), *box[dim + 1 :])


def _cut(move: Move, most: int) -> Iterator[Move]:
    """Moves of at most `most` numbers that make up this one."""
    if move.count <= most:
        yield move
        return
    dim = next(at for at, size in enumerate(move.size) if size > 1)
    rest = math.prod(move.size[dim + 1 :])
    each = max(1, most // rest)
    for first in range(0, move.size[dim], each):
        part = _narrowed(move, dim, first, min(each, move.size[dim] - first))
        yield from _cut(part, most)


def _narrowed(move: Move, dim: int, first: int, count: int) -> Move:
    def moved(index: tuple[int, ...]) -> tuple[int, ...]:
        return (*index[:dim], index[dim] + first, *index[dim + 1 :])

    size = (*move.size[:dim], count, *move.size[dim + 1 :])
    start, at = moved(move.start), moved(move.at)
    return Move(move.source, move.target, move.tensor, size, move.of, start, move.into, at)
