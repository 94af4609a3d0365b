"""The coordinator's side of one episode. Pure: the gateway's messages go in, the engine's requests
and replies come out.

There is no journal and no second attempt. The budgets of an episode are those of a run, and a call
beyond them is refused in the same words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.coordinator.attempts import over_budget
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.messages import Ask, Enough, Finish, Play, Reply


@dataclass(eq=False)
class PlayedTurn:
    """One call of the agent: its context and its response so far, int32, how the response ended
    ("" until then), and the role that it named."""

    number: int
    context: NDArray[np.int32]
    response: NDArray[np.int32]
    finish: Finish = ""
    role: str = ""


class OneEpisode:
    """An episode that is played once, within the budgets of `play`, `max_calls` and
    `context_tokens` (of a call, given and sampled).

    A budget of three tokens, two of which are sampled by the first call:

    >>> play = Play(0, 1, "train", 0, 7, 3, 1.0, {})
    >>> episode = OneEpisode(play, max_calls=4, context_tokens=16)
    >>> request = episode.ask(Ask(0, 1, 0, 2, []), np.array([11, 12], np.int32))
    >>> request.max_new_tokens
    2
    >>> two = np.array([21, 0], np.int32)
    >>> episode.take(Chunk(0, 1, 0, 0, two, np.zeros(2, np.float32), "stop")).finish, episode.left
    ('stop', 1)
    """

    def __init__(self, play: Play, *, max_calls: int, context_tokens: int) -> None:
        self.play = play
        self._max_calls, self._context_tokens = max_calls, context_tokens
        self.turns: list[PlayedTurn] = []
        """The calls that were given to the engine."""
        self._asked = 0

    @property
    def left(self) -> int:
        """Tokens that the agent may still sample."""
        return self.play.max_new_tokens - sum(len(turn.response) for turn in self.turns)

    def ask(self, message: Ask, context: NDArray[np.int32]) -> Request | Reply:
        """The engine's request for a call, or the reply that refuses it."""
        self._asked += 1
        budget = min(message.max_new_tokens, self.left, self._context_tokens - len(context))
        if self._asked > self._max_calls or budget < 1:
            why = over_budget(self._max_calls, tokens=budget < 1)
            return Reply(message.rollout, message.attempt, message.number, 0, "length", why)
        self.turns.append(
            PlayedTurn(message.number, context, np.empty(0, np.int32), "", message.role)
        )
        return Request(
            rollout=message.number,
            attempt=1,
            key=_key(self.play.seed, message.number),
            ids=context,
            prefix_tokens=0,
            max_new_tokens=budget,
            temperature=self.play.temperature,
            images=message.images,
        )

    def take(self, chunk: Chunk) -> Reply | None:
        """The reply that passes a chunk on; None if the agent needs no more of this answer."""
        turn = self.turn(chunk.rollout)
        if turn.finish:
            return None
        turn.response = np.concatenate([turn.response, chunk.ids])
        turn.finish = chunk.finish
        return Reply(
            self.play.rollout,
            self.play.attempt,
            turn.number,
            chunk.version,
            chunk.finish,
            chunk.why,
        )

    def enough(self, message: Enough) -> Sequence[int]:
        """Cut an answer after the tokens that the agent needs. Returns what the engine must stop
        sampling."""
        known = [t for t in self.turns if t.number == message.number and not t.finish]
        for turn in known:
            turn.response, turn.finish = turn.response[: message.tokens], "stop"
        return [turn.number for turn in known]

    def turn(self, number: int) -> PlayedTurn:
        """The call of this number. Raises StopIteration if it was not given to the engine."""
        return next(turn for turn in self.turns if turn.number == number)


def _key(seed: int, number: int) -> int:
    """The key that the draws of a call follow from: of the episode's seed and the call's number."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
