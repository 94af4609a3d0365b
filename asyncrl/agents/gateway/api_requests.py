"""Requests about an episode, parsed from JSON: rewards, failed calls, things to open, notes.
Dialects parse the calls of the model. Invariant: a request that cannot be carried out gets a 400
that names the parameter."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from asyncrl.agents.agent_rewards import KEY, LARGEST
from asyncrl.agents.gateway.dialects.parameters import decode
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.sandbox.opened import Opened


class TurnReward(msgspec.Struct, forbid_unknown_fields=True):
    """A reward for a turn, or without one for the whole episode. Advantages may compare turns that
    have the same `key`."""

    reward: float
    turn: Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)] | None = None
    key: Annotated[str, msgspec.Meta(max_length=KEY)] = ""


class TurnFailed(msgspec.Struct, forbid_unknown_fields=True):
    """A turn whose tool call failed."""

    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    turn: Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)] = -1


class FailedAttempt(msgspec.Struct, forbid_unknown_fields=True):
    """The end of a failed attempt, with the reason if the agent gives one."""

    reason: str = ""


class SoughtGame(msgspec.Struct, forbid_unknown_fields=True):
    """The key of the game that a host's agent plays now, and the host's other games."""

    key: Annotated[int, msgspec.Meta(ge=0)]
    next: Annotated[int, msgspec.Meta(ge=0)]
    live: list[int]
    buried: list[int]


class EndedGame(msgspec.Struct, forbid_unknown_fields=True):
    """The reward with which a game ends."""

    reward: float


class _Noted(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw


_Rewarded = TypeVar("_Rewarded", TurnReward, EndedGame)


def turn_reward(body: bytes) -> TurnReward:
    """The reward in `body`. Raises GatewayError (400, 422)."""
    return _finite(decode(body, TurnReward))


def turn_failed(body: bytes) -> TurnFailed:
    """The failed call in `body`. Raises GatewayError (400)."""
    return decode(body, TurnFailed)


def sought(body: bytes) -> SoughtGame:
    """The game in `body`. Raises GatewayError (400)."""
    return decode(body, SoughtGame)


def ended_game(body: bytes) -> EndedGame:
    """The end of a game in `body`. Raises GatewayError (400, 422)."""
    return _finite(decode(body, EndedGame))


def _finite(asked: _Rewarded) -> _Rewarded:
    """Return a body whose reward is a number that float32 holds. Raises GatewayError (422)."""
    if not abs(asked.reward) <= LARGEST:
        raise GatewayError(
            422,
            "invalid_value",
            f"a reward must be a finite number of at most {LARGEST:g}",
            param="reward",
        )
    return asked


def given_up(body: bytes) -> FailedAttempt:
    """The failed attempt in `body`, which may be empty. Raises GatewayError (400)."""
    return decode(body, FailedAttempt) if body else FailedAttempt()


def opened(body: bytes) -> Opened:
    """The thing in `body` that was opened or has ended. Raises GatewayError (400)."""
    return decode(body, Opened)


def note(body: bytes) -> bytes:
    """The JSON of the value in `body`. Raises GatewayError (400)."""
    return bytes(decode(body, _Noted).value)
