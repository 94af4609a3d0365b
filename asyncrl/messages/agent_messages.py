"""Messages between the coordinator and an agents actor."""

from __future__ import annotations

from typing import Literal

from asyncrl.messages.game_messages import Standing
from asyncrl.messages.parts import Finish, Message, Split


class Play(Message, frozen=True):
    """Coordinator to agents actor: have an agent play this rollout, for the `attempt`-th time.
    `seed` is the same in each attempt. The agent may sample `max_new_tokens` in all. `notes` are
    those of earlier attempts. In a game a host is told the `game` that its run has now, and a guest
    the `ticket` of the `Seek` that this answers."""

    rollout: int
    attempt: int
    split: Split
    prompt_index: int
    seed: int
    max_new_tokens: int
    temperature: float
    notes: dict[str, bytes]
    game: Standing | None = None
    ticket: int = 0


class Ask(Message, frozen=True):
    """Agents actor to coordinator: the agent of this attempt calls the model, at the temperature of
    its `Play`; `number` counts its calls from 0. `stops` are the strings that end the answer for
    it, `role` what it calls as (a planner, say); empty: it does not say. Buffer 0: `int32` context,
    in which an id `-1 - n` is a part of image `n` of `images`, by their hashes."""

    rollout: int
    attempt: int
    number: int
    max_new_tokens: int
    stops: list[str] = []
    role: str = ""
    images: tuple[str, ...] = ()


class Reply(Message, frozen=True):
    """Coordinator to agents actor: the next tokens of an answer, all sampled under `version`;
    `finish` is empty until its end. With `refused`, a sentence, there is no answer, or no more of
    it; with `length` other calls get none either, because the episode has reached its budget.
    Buffer 0: `int32` ids. Buffer 1: `float32` behaviour log-probabilities."""

    rollout: int
    attempt: int
    number: int
    version: int
    finish: Finish
    refused: str = ""


class Enough(Message, frozen=True):
    """Agents actor to coordinator: the agent needs only the first `tokens` tokens of an answer."""

    rollout: int
    attempt: int
    number: int
    tokens: int


class Note(Message, frozen=True):
    """Agents actor to coordinator: keep this result for later attempts."""

    rollout: int
    attempt: int
    name: str
    value: bytes


class GiveReward(Message, frozen=True):
    """Agents actor to coordinator: a reward for the turn of call `number`, or, with None, for the
    whole episode. `key` is the turn's, which advantages may compare by; empty: none."""

    rollout: int
    attempt: int
    number: int | None
    reward: float
    key: str = ""


class GiveFailure(Message, frozen=True):
    """Agents actor to coordinator: call `number` was a call of the tool `tool`, which failed."""

    rollout: int
    attempt: int
    number: int
    tool: str


class Played(Message, frozen=True):
    """Agents actor to coordinator: the agent has ended, by itself (`stop`) or cut off (`length`).
    With `failed`, the name of a reason, its attempt failed, and `text` says why: `then` another one
    is due; or the rollout `wait`s for another, which is no failure; or is `bury`ed."""

    rollout: int
    attempt: int
    finish: Finish
    failed: str = ""
    text: str = ""
    then: Literal["again", "wait", "bury"] = "again"


class StopPlaying(Message, frozen=True):
    """Coordinator to agents actor: this attempt is over; end its agent, and send nothing more about
    it."""

    rollout: int
    attempt: int


AgentMessage = Ask | Enough | Note | GiveReward | GiveFailure | Played
"""All messages of an agents actor about its episodes."""
