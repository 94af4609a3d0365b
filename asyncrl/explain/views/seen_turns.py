"""The turns of an agent's episode as a tree, while it is played and when it is over: pure functions
of what the state has of it. Invariant: a turn comes behind the one that it goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncrl.experience.episode import Episode, Strand, Turn
from asyncrl.experience.sequence import ID_BYTES
from asyncrl.messages import Finish


class SeenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that goes on from turn `parent` (None: from the prompt). It was `given` these `int32`
    ids besides, and sampled `tokens`. `reward` is what its agent gave it; `failed` the tool whose
    failed call it was, empty where it was none. Before what it was given there was the prompt where
    it was `prompted`."""

    parent: int | None
    given: bytes
    tokens: int
    finish: Finish
    reward: float | None
    failed: str
    prompted: bool = False


def turns_of(turns: Sequence[Turn], strands: Sequence[Strand], prompt: bytes) -> list[SeenTurn]:
    """The turns of an episode that is over, by their numbers. The prompt is given to none.

    Example: turn 2 hangs behind the fifth token of a strand in which turn 0 ends with the fourth
    and turn 1 with the seventh token, so it goes on from turn 0.
    """
    found: dict[int, SeenTurn] = {}
    ends: list[list[tuple[int, int]]] = []  # of each strand: where turns end, in tokens
    for strand in strands:
        last = None if strand.parent is None else _before(ends, strands, strand)
        at, given = strand.tokens, b""
        own: list[tuple[int, int]] = []
        for piece in strand.pieces:
            if isinstance(piece, bytes):
                given += piece
                at += len(piece) // ID_BYTES
                continue
            turn = turns[piece]
            at += turn.tokens
            prompted = strand.parent is None and not own and given.startswith(prompt)
            if prompted:
                given = given.removeprefix(prompt)
            found[piece] = SeenTurn(
                parent=last,
                given=given,
                tokens=turn.tokens,
                finish=turn.finish,
                reward=turn.reward,
                failed=turn.failed,
                prompted=prompted,
            )
            last, given = piece, b""
            own.append((at, piece))
        ends.append(own)
    return [found[number] for number in sorted(found)]


def _before(
    ends: Sequence[Sequence[tuple[int, int]]], strands: Sequence[Strand], strand: Strand
) -> int | None:
    """The last turn that ends where a strand hangs, or before; None where none does."""
    tokens = strand.tokens
    while (parent := strand.parent) is not None:
        if before := [turn for end, turn in ends[parent] if end <= tokens]:
            return before[-1]
        strand = strands[parent]
        tokens = min(tokens, strand.tokens)
    return None


def calls_of(episode: Episode, prompt: bytes) -> list[SeenTurn]:
    """The calls of an episode that is played, in the order in which they were made first."""
    places = {call.id: number for number, call in enumerate(episode.calls)}
    found = []
    for call in episode.calls:
        after = call.after
        while (
            after is not None
        ):  # it shares with a call what that one was given, and not its answer
            other = episode.find(after[0])
            if after[1] * ID_BYTES > len(episode.context(other)):
                break
            after = None if other.after is None else (other.after[0], min(after[1], other.after[1]))
        prompted = call.after is None and call.given.startswith(prompt)
        found.append(
            SeenTurn(
                parent=None if after is None else places[after[0]],
                given=call.given.removeprefix(prompt) if prompted else call.given,
                tokens=call.tokens,
                finish=call.finish,
                reward=episode.rewards.get(call.id),
                failed=episode.failed.get(call.id, ""),
                prompted=prompted,
            )
        )
    return found
