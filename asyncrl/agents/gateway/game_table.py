"""The table of a game at its host: the seats of the other policies. Pure.

Each answer that an attempt gets, and its game's end before any other run ends, are noted with the
host's episode under the attempt's name. So a later attempt that finds that a guest has ended is
answered from those notes, and ends as that attempt did.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from asyncrl.messages.game_messages import OUTCOME


class GuestSeat(msgspec.Struct, frozen=True):
    """An episode of a guest, as its gateway gives it to the host."""

    session: str
    base_url: str
    api_key: str
    reward_key: str

    @property
    def session_url(self) -> str:
        """The URL of the episode's end: `http://…/v1/sessions/NAME`."""
        before = self.base_url.rpartition("/sessions/")[0]
        return f"{before}/v1/sessions/{self.session}"


class GameOutcome(msgspec.Struct, frozen=True):
    """The end of an attempt at a game: the reward of each policy."""

    attempt: int
    rewards: dict[str, float]


class Table(msgspec.Struct, frozen=True):
    """The seats of the guests that play, by policy. With an `outcome`, the other guests have ended
    with it, and are answered from the notes of its attempt."""

    seats: dict[str, GuestSeat]
    outcome: GameOutcome | None = None


def outcome_of(notes: Mapping[str, bytes]) -> GameOutcome | None:
    """The last outcome that was noted; None if there is none.

    >>> outcome_of({"asyncrl/outcome/2": b'{"attempt": 2, "rewards": {"solver": 1.0}}'}).attempt
    2
    """
    noted = [name for name in notes if name.startswith(OUTCOME)]
    if not noted:
        return None
    last = max(noted, key=lambda name: int(name.removeprefix(OUTCOME)))
    return msgspec.json.decode(notes[last], type=GameOutcome)


def answer_note(attempt: int, asked: str, number: int) -> str:
    """The name under which the answer to the n-th of equal calls of an attempt is noted."""
    return f"asyncrl/game/{attempt}/{asked}/{number}"
