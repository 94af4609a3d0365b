"""Texts whose tokens are known, because an episode's model has seen or sampled them. Invariant:
every known text was added, byte for byte (by its 128-bit digest).

A template renders a conversation again for each call, and the same text may have other tokens than
were sampled. So a call's text is looked up first: as far as it is a text that the model saw or
sampled, its tokens are those. Of a text only its length and its digest are kept, and a lookup reads
the text once, however many are known. The tokens that two calls share are kept once.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from asyncrl.experience.call_tree import CallTree, TreePosition


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class KnownText:
    """The answered calls of one attempt. What the coordinator grants an episode bounds them."""

    def __init__(self) -> None:
        self._tree = CallTree()
        self._positions: dict[bytes, TreePosition] = {}
        self._lengths: list[int] = []
        self._replies: dict[bytes, TreePosition] = {}

    def add(
        self,
        context: bytes,
        sampled: bytes,
        texts: Sequence[tuple[bytes, int]],
        replies: Sequence[bytes] = (),
    ) -> None:
        """Add a call: its context and what it sampled (`int32` ids). `texts` are texts that
        later contexts may start with: pairs of a text (UTF-8) and its number of tokens, from the
        start of `context` on. `replies` are digests of its conversation up to its end. Of two calls
        with the same text the latest counts. Raises ValueError as `CallTree.add` does, with
        nothing changed."""
        end = self._tree.add(context, sampled)
        for reply in replies:
            self._replies[reply] = end
        for text, tokens in texts:
            self._note(text, TreePosition(end.strand, tokens - end.strand.base))

    def longest(self, text: bytes) -> tuple[int, bytes]:
        """The longest known text that `text` (UTF-8) starts with: its length in bytes, and its
        `int32` ids. (0, b"") if there is none.

        Example: the text "hi:" of ids [1, 2] was answered by [77, 9], which is "yo$". Then "hi:yo$,
        and" gives (6, [1, 2, 77, 9]), and "hi:no" gives (3, [1, 2]).
        """
        hasher, done, known = _hasher(), 0, None
        view = memoryview(text)
        for length in self._lengths:
            if length > len(text):
                break
            hasher.update(view[done:length])
            done = length
            if (position := self._positions.get(hasher.copy().digest())) is not None:
                known = length, position
        return (0, b"") if known is None else (known[0], self._tree.ids(known[1]))

    def replied(self, reply: bytes) -> bytes | None:
        """The ids (`int32`) of a conversation up to the end of a reply, by its digest."""
        position = self._replies.get(reply)
        return None if position is None else self._tree.ids(position)

    def _note(self, text: bytes, position: TreePosition) -> None:
        hasher = _hasher()
        hasher.update(text)
        self._positions[hasher.digest()] = position
        at = bisect_left(self._lengths, len(text))
        if self._lengths[at : at + 1] != [len(text)]:
            self._lengths.insert(at, len(text))
