"""Turns of an episode, and those that lie above them. Invariant: a turn lies below every earlier
one, except where the tokens show that the two are in different branches.

Branches begin where an agent calls twice from one context, or goes on from one reply in two ways. A
call lies below the reply that its context ends with, or the longest one that its context begins
with. Where a reply came back in other tokens (it was edited, or the template renders it otherwise),
the tokens do not show which one it was: such a call lies below all that it may have been, and a
call in a context of its own below all before it. So nothing that a turn may have caused is missing
below it, and in an episode without branches every turn lies below the one before.
"""

from __future__ import annotations

from hashlib import blake2b


class TurnsAbove:
    """The turns of one episode, in the order of their calls.

    Two replies to one context, and the second goes on:

    >>> turns = TurnsAbove()
    >>> turns.add(b"ask ", b"yes "), turns.add(b"ask ", b"no  ")
    (None, ())
    >>> turns.add(b"ask no  why ", b"so  "), turns.add(b"ask yes why ", b"so  ")
    (None, (0,))
    """

    def __init__(self) -> None:
        self._above: list[tuple[int, ...]] = []
        self._children: list[int] = []
        self._contexts, self._paths = _TextsByLength(), _TextsByLength()

    def add(self, context: bytes, sampled: bytes) -> tuple[int, ...] | None:
        """Add a turn, with the ids of its context and its sampled tokens. Returns the turns
        directly above it; None: the one before it, or none for the first."""
        number = len(self._above)
        above = self._of(context)
        for turn in above:
            self._children[turn] += 1
        self._above.append(above)
        self._children.append(0)
        self._contexts.add(context, number)
        self._paths.add(context + sampled, number)
        return None if above == tuple(range(number)[-1:]) else above

    def _of(self, context: bytes) -> tuple[int, ...]:
        size, replies = len(context), self._paths.beginning(context)
        asked = self._contexts.beginning(context)
        same = asked.pop(size, [])
        if replies:
            longest = max(replies)
            # equal replies are one: what goes on from them is shared out
            reply = [min(replies[longest], key=lambda turn: self._children[turn])]
        else:
            longest = 0
            if not same:
                return tuple(t for t, below in enumerate(self._children) if not below)
            reply = list(self._above[same[0]])
        unsure = [turn for at, turns in asked.items() if at >= longest for turn in turns]
        return tuple(sorted({*reply, *unsure}))


class _TextsByLength:
    """Contents of turns, found by any longer content that begins with them."""

    def __init__(self) -> None:
        self._turns: dict[int, dict[bytes, list[int]]] = {}

    def add(self, content: bytes, turn: int) -> None:
        digest = blake2b(content, digest_size=16).digest()
        self._turns.setdefault(len(content), {}).setdefault(digest, []).append(turn)

    def beginning(self, content: bytes) -> dict[int, list[int]]:
        """The turns whose content begins this one, or is equal to it, by its length."""
        found, read, at = dict[int, list[int]](), blake2b(digest_size=16), 0
        for size in sorted(size for size in self._turns if size <= len(content)):
            read.update(content[at:size])
            at = size
            if turns := self._turns[size].get(read.copy().digest()):
                found[size] = turns
        return found
