"""The tree of a session's tokens. Invariant: every sampled token is in exactly one strand, and a
strand has exactly one end, its leaf.

A strand is a run of tokens: given and sampled ones by turns, as a conversation goes. A call that
goes on where a strand ends makes it longer. Any other call starts a strand of its own, which hangs
from the last token that it shares. A strand is never split: another one may hang from its middle,
and knows the place.

Tokens that are sampled twice are two samples, also where they are equal (a greedy retry). So tokens
are kept by sample and found by content: beside the strands there is a trie of contents, whose edges
are pieces of strands. A context is compared with the trie once, at the speed of memory. All other
work is proportional to what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from asyncrl.experience.sequence import TrainingSequence
from asyncrl.ipc.messages import Finish, Span

Meeting = Literal["opened", "continued", "retried", "rewritten", "forked"]
"""The relation of a call's context to what the tree holds. `opened`: it shares no token with any
earlier call. `continued`: it goes on where an earlier call ended. `retried`: it is a context that
was sampled from before. `rewritten`: it leaves inside a reply, so that the reply came back with
other tokens than were sampled (edited, cut, or tokenized anew). `forked`: it leaves inside what was
given (another history, a sub-agent)."""

ID = 4
"""Bytes of a token id; of a log-probability, too."""
_FIRST = 64 * ID


class Sampled(msgspec.Struct, frozen=True):
    """The tokens that one call sampled and its agent was given. `ids` and `behaviour` have one item
    for each token, and `spans` tile them from 0 on."""

    ids: bytes
    behaviour: bytes
    spans: tuple[Span, ...]
    finish: Finish

    @property
    def tokens(self) -> int:
        """Number of tokens sampled."""
        return len(self.ids) >> 2


class _Strand:
    """Tokens of one path from where it hangs (`parent`'s token `at`) to a leaf; `base` tokens lie
    before them on the path."""

    __slots__ = ("at", "base", "behaviour", "finish", "ids", "mask", "parent", "spans")

    def __init__(self, parent: _Strand | None, at: int) -> None:
        self.parent, self.at = parent, at
        self.base: int = parent.base + at if parent is not None else 0
        self.ids, self.behaviour, self.mask = bytearray(), bytearray(), bytearray()
        self.spans: list[Span] = []
        self.finish: Finish = ""

    @property
    def tokens(self) -> int:
        return len(self.mask)

    def extend(self, given: bytes, sampled: Sampled) -> None:
        tokens = len(given) // ID
        self.ids += given + sampled.ids
        self.behaviour += bytes(len(given)) + sampled.behaviour
        self.mask += bytes(tokens) + b"\x01" * sampled.tokens
        start = self.base + self.tokens - sampled.tokens
        self.spans += [
            Span(span.version, start + span.start, start + span.end) for span in sampled.spans
        ]
        self.finish = sampled.finish


class TreePosition(msgspec.Struct, frozen=True, eq=False):
    """A place in the tree: after the first `tokens` tokens of a strand."""

    strand: _Strand
    tokens: int


class CallTree:
    """All calls of one session. `tokens` is the number that it holds, given ones once for each
    strand that does not share them.

    Example: a call with the context [1, 2] samples [3, 4], and the next one with [1, 2, 3, 4, 5]
    samples [6]. That is one leaf: ids [1, 2, 3, 4, 5, 6], mask [0, 0, 1, 1, 0, 1]. A third call
    with [1, 2, 9], which samples [7], makes a second leaf: ids [1, 2, 9, 7], mask [0, 0, 0, 1].
    """

    def __init__(self) -> None:
        root = _Strand(None, 0)
        self._root = TreePosition(root, 0)
        self._strands = [root]
        self._branches: dict[tuple[int, int, bytes], TreePosition] = {}
        self._ends: dict[tuple[int, int], _Strand] = {}
        self._asked: set[tuple[int, int]] = set()
        self.tokens = 0
        self.meetings: Counter[Meeting] = Counter()

    def known(self, context: bytes) -> int:
        """The number of tokens of `context` (`int32`) that the tree holds already, from its
        start."""
        return self._walk(self._root, context)[1]

    def add(self, context: bytes, sampled: Sampled) -> TreePosition:
        """One call: what it was given and what it sampled. Returns the place after its last token.

        Raises ValueError, with nothing changed, where the arrays of `sampled` are not parallel,
        hold no whole tokens or are not tiled by its spans, and where `context` is empty or no whole
        tokens.
        """
        _refuse(context, sampled)
        place, known = self._walk(self._root, context)
        given = context[known * ID :]
        self.meetings[self._meeting(place, known, given)] += 1
        new = given + sampled.ids
        last, shared = (place, 0) if given else self._walk(place, sampled.ids)
        strand = self._ending(place, shared) if new else place.strand
        self._asked.add(
            (id(strand), strand.tokens + len(given) // ID)
            if given
            else (id(place.strand), place.tokens)
        )
        if not new:
            return place
        if shared * ID == len(new):
            self._ends[id(last.strand), last.tokens] = strand
        elif last.strand is not strand:
            first = new[shared * ID : (shared + 1) * ID]
            self._branches[id(last.strand), last.tokens, first] = TreePosition(
                strand, strand.tokens + shared
            )
        strand.extend(given, sampled)
        self.tokens += len(new) // ID
        return TreePosition(strand, strand.tokens)

    def ids(self, place: TreePosition) -> bytes:
        """The path to a place: `int32` ids."""
        pieces = []
        strand, tokens = place.strand, place.tokens
        while True:
            pieces.append(bytes(strand.ids[: tokens * ID]))
            if strand.parent is None:
                break
            strand, tokens = strand.parent, strand.at
        return b"".join(reversed(pieces))

    def leaves(self) -> Iterator[TrainingSequence]:
        """One sequence for each strand in which anything was sampled, in the order in which they
        began."""
        for strand in self._strands:
            if strand.spans:
                before = bytes(strand.base)
                yield TrainingSequence(
                    ids=self.ids(TreePosition(strand, strand.tokens)),
                    mask=before + strand.mask,
                    behaviour=before * ID + strand.behaviour,
                    spans=tuple(joined(strand.spans)),
                    finish=strand.finish,
                )

    def strands(
        self, ends: Sequence[TreePosition], sizes: Sequence[int]
    ) -> Iterator[tuple[int | None, int, list[bytes | int]]]:
        """The strands in the order in which they began: the number of the one that each hangs from,
        the tokens before it on its path, and its pieces: tokens given (`int32` ids), and the
        numbers of the calls. Call `n` sampled `sizes[n]` tokens, at least one, and `ends[n]` is
        what `add` returned for it.

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
                if given := bytes(strand.ids[at * ID : (last - sizes[number]) * ID]):
                    pieces.append(given)
                pieces.append(number)
                at = last
            parent = None if strand.parent is None else numbers[id(strand.parent)]
            yield parent, strand.base, pieces

    def _walk(self, start: TreePosition, content: bytes) -> tuple[TreePosition, int]:
        """Follow `content` from a place as far as the trie goes: where that is, and how many tokens
        of `content` lie before."""
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

    def _ending(self, place: TreePosition, shared: int) -> _Strand:
        """The strand that ends at a place; a new one where none does, or where another has the
        `shared` tokens it would go on with."""
        if place.tokens == place.strand.tokens and not shared:
            return place.strand
        found = self._ends.pop((id(place.strand), place.tokens), None)
        if found is None:
            found = _Strand(place.strand, place.tokens)
            self._strands.append(found)
        return found

    def _meeting(self, place: TreePosition, known: int, given: bytes) -> Meeting:
        strand, at = place.strand, place.tokens
        if not known:
            return "opened"
        if not given and (id(strand), at) in self._asked:
            return "retried"
        if at == strand.tokens or (id(strand), at) in self._ends:
            return "continued"
        return "rewritten" if strand.mask[at] else "forked"


def common(one: bytes | bytearray, a: int, other: bytes, b: int) -> int:
    """The number of bytes, in whole tokens, that `one` from `a` on and `other` from `b` on have in
    common. Compares little more than these."""
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
    """Adjacent spans of one version as one."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].end == span.start and found[-1].version == span.version:
            span = Span(span.version, found.pop().start, span.end)
        found.append(span)
    return found


def _refuse(context: bytes, sampled: Sampled) -> None:
    if not context or len(context) % ID:
        raise ValueError(
            f"a call's context of {len(context)} bytes is not a positive number of int32"
        )
    if len(sampled.ids) != len(sampled.behaviour) or len(sampled.ids) % ID:
        raise ValueError(
            f"{len(sampled.ids)} bytes of ids and {len(sampled.behaviour)} of log-probabilities "
            "are not parallel"
        )
    starts = [0, *(span.end for span in sampled.spans)]
    whole = all(
        span.start == start < span.end and span.version >= 0
        for start, span in zip(starts, sampled.spans, strict=False)
    )
    if not whole or starts[-1] != sampled.tokens:
        raise ValueError(f"the spans {sampled.spans} do not tile {sampled.tokens} tokens")
