"""Texts whose tokens are known. Invariant: a text that is found was added, byte for byte (by its
128-bit digest).

A template renders a conversation anew for each call, and the same text may have other tokens than
were sampled. So a call's text is looked up first: as far as it is a text that the model saw or
said, its tokens are those. Of a text only its length and its digest are kept, and a lookup reads
the text once, however many are known.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left

from asyncrl.experience.call_tree import TreePosition


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class Texts:
    """Each text added leads to the place of its last token; the latest, where two have the same
    text."""

    def __init__(self) -> None:
        self._places: dict[bytes, TreePosition] = {}
        self._lengths: list[int] = []

    def add(self, text: bytes, place: TreePosition) -> None:
        hasher = _hasher()
        hasher.update(text)
        self._places[hasher.digest()] = place
        at = bisect_left(self._lengths, len(text))
        if self._lengths[at : at + 1] != [len(text)]:
            self._lengths.insert(at, len(text))

    def longest(self, text: bytes) -> tuple[int, TreePosition] | None:
        """The longest known text that `text` starts with: its length in bytes, and its place."""
        hasher, done, found = _hasher(), 0, None
        view = memoryview(text)
        for length in self._lengths:
            if length > len(text):
                break
            hasher.update(view[done:length])
            done = length
            if (place := self._places.get(hasher.copy().digest())) is not None:
                found = length, place
        return found
