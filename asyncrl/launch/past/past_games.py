"""The coordinator's side of a frozen policy's games. Pure: the messages of its gateway go in, and
the requests of the engine come out.

There is no journal, as nothing here is trained: an attempt at a game is forgotten with the process,
and the next one starts over. Its draws are the same, and its host has noted what was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from asyncrl.engines.protocol import Chunk, Request
from asyncrl.launch.play.one_episode import OneEpisode
from asyncrl.messages import Ask, Enough, KeepGame, Play, Played, Reply, Seek, StopPlaying


@dataclass(eq=False)
class PastAttempt:
    """An attempt at a game, which `version` plays. `state` is what its host is told of it."""

    episode: OneEpisode
    version: int
    state: Literal["live", "ended", "over"] = "live"


class PastGames:
    """The games that a frozen policy plays, each with `tokens`, `max_calls` and `context_tokens`
    as in a run.

    >>> from asyncrl.messages import Standing
    >>> games = PastGames(tokens=8, temperature=1.0, max_calls=4, context_tokens=16)
    >>> seek = Seek(1, 5, Standing(8, [4], []))
    >>> games.begin(seek, 40), games.begin(seek, 40).attempt
    (Play(rollout=5, attempt=1, split='train', prompt_index=0, seed=5, max_new_tokens=8, \
temperature=1.0, notes={}, game=None, ticket=1), 2)
    >>> games.ask(Ask(5, 2, 0, 4, []), np.array([11], np.int32)).version
    40
    """

    def __init__(
        self, *, tokens: int, temperature: float, max_calls: int, context_tokens: int
    ) -> None:
        self._tokens, self._temperature = tokens, temperature
        self._max_calls, self._context_tokens = max_calls, context_tokens
        self._attempts = dict[int, PastAttempt]()
        self._requests = dict[int, tuple[PastAttempt, int]]()
        self._numbers = count()

    def stopped(self, seek: Seek) -> StopPlaying | None:
        """The end of the attempt before the one that is sought, if there is one."""
        old = self._attempts.get(seek.key)
        if old is None or old.state != "live":
            return None
        return StopPlaying(seek.key, old.episode.play.attempt)

    def begin(self, seek: Seek, version: int) -> Play:
        """Begin the attempt that is sought. Games that its host will not play again are
        forgotten."""
        oldest = min([*seek.standing.live, seek.key])
        for key in [key for key in self._attempts if key < oldest]:
            del self._attempts[key]
        old = self._attempts.get(seek.key)
        play = Play(
            rollout=seek.key,
            attempt=1 if old is None else old.episode.play.attempt + 1,
            split="train",
            prompt_index=0,
            seed=seek.key,
            max_new_tokens=self._tokens,
            temperature=self._temperature,
            notes={},
            ticket=seek.ticket,
        )
        episode = OneEpisode(play, max_calls=self._max_calls, context_tokens=self._context_tokens)
        self._attempts[seek.key] = PastAttempt(episode, version)
        return play

    def attempt(self, rollout: int, attempt: int) -> PastAttempt | None:
        """This attempt; None if it is not the newest at its game."""
        found = self._attempts.get(rollout)
        return found if found is not None and found.episode.play.attempt == attempt else None

    def ask(self, message: Ask, context: NDArray[np.int32]) -> Request | Reply | None:
        """The engine's request for a call, or the reply that refuses it; None for one of an attempt
        that is over."""
        if (found := self.attempt(message.rollout, message.attempt)) is None:
            return None
        asked = found.episode.ask(message, context)
        if isinstance(asked, Reply):
            return asked
        number = next(self._numbers)
        self._requests[number] = found, message.number
        return replace(asked, rollout=number, version=found.version)

    def refuse(self, request: Request, why: str) -> Reply:
        """The reply to a call whose request the engine does not take."""
        found, number = self._requests.pop(request.rollout)
        found.episode.turns.pop()
        play = found.episode.play
        return Reply(play.rollout, play.attempt, number, 0, "", why)

    def take(self, chunk: Chunk) -> Reply | None:
        """The reply that passes a chunk on; None if nobody waits for it."""
        if (known := self._requests.get(chunk.rollout)) is None:
            return None
        found, number = known
        if chunk.finish:
            del self._requests[chunk.rollout]
        return found.episode.take(replace(chunk, rollout=number))

    def enough(self, message: Enough) -> Sequence[int]:
        """Cut an answer. Returns what the engine must stop sampling."""
        found = self.attempt(message.rollout, message.attempt)
        if found is None or not found.episode.enough(message):
            return []
        return [
            number for number, known in self._requests.items() if known == (found, message.number)
        ]

    def keep(self, message: KeepGame) -> Literal["live", "ended", "over"]:
        """The state of an attempt."""
        found = self.attempt(message.rollout, message.attempt)
        return "over" if found is None else found.state

    def played(self, message: Played) -> PastAttempt | None:
        """The attempt that has ended well; None if it has not. One that failed may begin again."""
        if (found := self.attempt(message.rollout, message.attempt)) is None:
            return None
        found.state = "over" if message.failed else "ended"
        return None if message.failed else found

    @property
    def playing(self) -> set[int]:
        """The versions that play now."""
        return {one.version for one in self._attempts.values() if one.state == "live"}
