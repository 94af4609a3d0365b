"""The tree of an episode's tokens. Invariant: the sampled tokens of each call are in exactly one
strand.

    root ── prompt ── turn 0 ┬─ tool result ── turn 1 ── leaf      strand 0
                             └─ other result ── turn 2 ── leaf     strand 1, which hangs from 0

    piece    a run of tokens that were given, or a turn: the tokens that a call sampled
    strand   pieces one after another, as a conversation goes, to one end, its leaf
    path     all tokens from the root to a leaf: what of other strands lies before, and the strand
    position a number of tokens of a strand: where another one hangs, or a call ends

A call that continues where a strand ends extends it. Any other call starts a new strand, which
hangs from the last token that it shares, even in the middle of a piece. A strand is never split. A
training sequence is made of each path, in which only the strand's own turns are trained.

Tokens that are sampled twice are two samples, even if they are equal (a greedy retry). So tokens
are kept by sample and found by content: beside the strands there is a trie of contents, whose edges
are pieces of strands. A context is compared with the trie once, at the speed of memory. All other
work is proportional to the new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from asyncrl.messages import Span

ID = 4
"""Bytes of a token id."""
_FIRST = 64 * ID


class _Strand:
    """The tokens of a strand (`ids`, `int32`), which hangs after the first `offset` tokens of
    `parent`; `base` tokens precede them on the path."""

    __slots__ = ("base", "ids", "offset", "parent")

    def __init__(self, parent: _Strand | None, offset: int) -> None:
        self.parent, self.offset = parent, offset
        self.base: int = parent.base + offset if parent is not None else 0
        self.ids = bytearray()

    @property
    def tokens(self) -> int:
        return len(self.ids) // ID


class TreePosition(msgspec.Struct, frozen=True, eq=False):
    """A position in the tree: after the first `tokens` tokens of a strand."""

    strand: _Strand
    tokens: int


class CallTree:
    """All calls of one session.

    Example: a call with the context [1, 2] samples [3, 4], and the next one with [1, 2, 3, 4, 5]
    samples [6]. That is one strand, [1, 2, 3, 4, 5, 6]. A third call with [1, 2, 9], which samples
    [7], makes a second one, [9, 7], which hangs behind the first two tokens.
    """

    def __init__(self) -> None:
        root = _Strand(None, 0)
        self._root = TreePosition(root, 0)
        self._strands = [root]
        self._branches: dict[tuple[int, int, bytes], TreePosition] = {}
        self._ends: dict[tuple[int, int], _Strand] = {}

    def add(self, context: bytes, sampled: bytes) -> TreePosition:
        """Add one call: its context and its sampled tokens (`int32` ids). Returns the position
        after its last token. Raises ValueError, with nothing changed, where `context` is empty, or
        one of them is not whole tokens."""
        if not context or len(context) % ID or len(sampled) % ID:
            raise ValueError(
                f"a call of {len(context)} bytes of context and {len(sampled)} sampled ones is not "
                "of int32, at least one of them given"
            )
        position, known = self._walk(self._root, context)
        rest = context[known * ID :]
        if not (new := rest + sampled):
            return position
        last, shared = (position, 0) if rest else self._walk(position, sampled)
        strand = self._ending(position, shared)
        if shared * ID == len(new):
            self._ends[id(last.strand), last.tokens] = strand
        elif last.strand is not strand:
            first = new[shared * ID : (shared + 1) * ID]
            self._branches[id(last.strand), last.tokens, first] = TreePosition(
                strand, strand.tokens + shared
            )
        strand.ids += new
        return TreePosition(strand, strand.tokens)

    def ids(self, position: TreePosition) -> bytes:
        """The tokens up to a position: `int32` ids."""
        pieces = []
        strand, tokens = position.strand, position.tokens
        while True:
            pieces.append(bytes(strand.ids[: tokens * ID]))
            if strand.parent is None:
                break
            strand, tokens = strand.parent, strand.offset
        return b"".join(reversed(pieces))

    def strands(
        self, ends: Sequence[TreePosition], sizes: Sequence[int]
    ) -> Iterator[tuple[int | None, int, list[bytes | int]]]:
        """The strands in the order in which they began: the number of its parent, the tokens before
        it on its path, and its pieces: given tokens (`int32` ids), and numbers of calls. Call `n`
        sampled `sizes[n]` tokens, at least one, and `ends[n]` is the result of `add` for it.

        Example: the three calls of the example above give `(None, 0, [[1, 2], 0, [5], 1])` and
        `(0, 2, [[9], 2])`.
        """
        numbers = {id(strand): number for number, strand in enumerate(self._strands)}
        calls: list[list[tuple[int, int]]] = [[] for _ in self._strands]
        for number, end in enumerate(ends):
            calls[numbers[id(end.strand)]].append((end.tokens, number))
        for strand, sampled in zip(self._strands, calls, strict=True):
            pieces, at = list[bytes | int](), 0
            for last, number in sorted(sampled):
                if context := bytes(strand.ids[at * ID : (last - sizes[number]) * ID]):
                    pieces.append(context)
                pieces.append(number)
                at = last
            parent = None if strand.parent is None else numbers[id(strand.parent)]
            yield parent, strand.base, pieces

    def _walk(self, start: TreePosition, content: bytes) -> tuple[TreePosition, int]:
        """Follow `content` from a position as far as the trie matches. Returns the position
        reached, and the number of matched tokens."""
        strand, at, done = start.strand, start.tokens * ID, 0
        while True:
            same = common(strand.ids, at, content, done)
            at, done = at + same, done + same
            if done == len(content):
                break
            onward = self._branches.get((id(strand), at // ID, content[done : done + ID]))
            if onward is None:
                break
            strand, at = onward.strand, onward.tokens * ID
        return TreePosition(strand, at // ID), done // ID

    def _ending(self, position: TreePosition, shared: int) -> _Strand:
        """The strand that ends at a position; a new one where there is none, or where another
        strand already has the `shared` next tokens."""
        if position.tokens == position.strand.tokens and not shared:
            return position.strand
        strand = self._ends.pop((id(position.strand), position.tokens), None)
        if strand is None:
            strand = _Strand(position.strand, position.tokens)
            self._strands.append(strand)
        return strand


def common(one: bytes | bytearray, a: int, other: bytes, b: int) -> int:
    """The length in bytes, in whole tokens, of the common prefix of `one` from `a` on and `other`
    from `b` on. It compares little more than that."""
    limit = min(len(one) - a, len(other) - b)
    done, step = 0, _FIRST
    while done < limit:
        step = min(step, limit - done)
        if one[a + done : a + done + step] != other[b + done : b + done + step]:
            break
        done, step = done + step, step * 2
    else:
        return limit
    while step > ID:  # the first difference is in these `step` bytes
        half = step // ID // 2 * ID
        if one[a + done : a + done + half] == other[b + done : b + done + half]:
            done, step = done + half, step - half
        else:
            step = half
    return done


def joined(spans: Sequence[Span]) -> list[Span]:
    """Spans, with adjacent ones of one version merged."""
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].end == span.start and merged[-1].version == span.version:
            span = Span(span.version, merged.pop().start, span.end)
        merged.append(span)
    return merged
