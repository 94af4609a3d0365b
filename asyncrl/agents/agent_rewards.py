"""Rewards of agents: one number, or several by name. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

LARGEST = 1e38
"""Largest reward of either sign. A larger one could not be trained."""
NAMES = 64
"""Most rewards that an agent may name."""
NAME = 64
"""Most characters of a reward's name."""
KEY = 1024
"""Most characters of a turn's key."""

WrongKind = Literal["not a number", "not finite", "too large", "not named"]


class WrongReward(ValueError):
    """A value is not a reward; the text says why, and `kind` is the reason in two words."""

    def __init__(self, kind: WrongKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def as_reward(value: Any, name: str = "") -> float:
    """Convert a value to a finite number. Raises WrongReward for anything else, also for True and
    "1": an agent that returns those has usually returned the wrong variable.

    >>> as_reward(1), as_reward(0.25)
    (1.0, 0.25)
    >>> as_reward(True)
    Traceback (most recent call last):
    asyncrl.agents.agent_rewards.WrongReward: the reward is a bool; give a finite number
    """
    which = f"the reward {name!r}" if name else "the reward"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WrongReward(
            "not a number", f"{which} is a {type(value).__name__}; give a finite number"
        )
    try:
        reward = float(value)
    except OverflowError:
        reward = LARGEST * 10
    if not math.isfinite(reward):
        raise WrongReward("not finite", f"{which} is {reward}; give a finite number")
    if abs(reward) > LARGEST:
        raise WrongReward("too large", f"{which} is larger than {LARGEST:g}, and cannot be trained")
    return reward


def as_key(value: Any) -> str:
    """Check the key of a turn. Raises ValueError for one that is no text, or too long.

    >>> as_key("page 7")
    'page 7'
    """
    if not isinstance(value, str) or len(value) > KEY:
        given = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise ValueError(
            f"the key of a turn is a text of at most {KEY} characters, and this one is of {given}; "
            "give a digest of a longer state"
        )
    return value


def as_outcome(value: Any) -> float | dict[str, float] | None:
    """The rewards that an agent returned; None if the task's verifier is to judge. Raises
    WrongReward.

    >>> as_outcome({"right": 1, "brief": 0.5})
    {'right': 1.0, 'brief': 0.5}
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return as_reward(value)
    for name in value:
        if not isinstance(name, str) or not 0 < len(name) <= NAME:
            raise WrongReward("not named", f"a reward's name is a text of 1 to {NAME} characters")
    if not 0 < len(value) <= NAMES:
        raise WrongReward("not named", f"{len(value)} rewards were named; name 1 to {NAMES}")
    named = {name: as_reward(number, name) for name, number in value.items()}
    as_reward(math.fsum(named.values()), "the sum of all")
    return named
