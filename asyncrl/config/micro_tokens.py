"""Tokens of a micro-batch: the setting, or enough for the longest rollout."""

from __future__ import annotations

from asyncrl.config.schema import Config

USUAL = 8192
"""Tokens of a micro-batch where neither the setting nor a rollout asks for more."""


def micro_tokens(config: Config) -> int:
    """Return the most tokens of a micro-batch, prompts included: `train.micro_tokens`, or where
    that is 0 `USUAL`, and at least `engine.context_tokens`, which a rollout may have.

    >>> from asyncrl.config import load
    >>> long = ["engine.context_tokens=32768"]
    >>> [micro_tokens(load(None, sets, {})) for sets in ([], long, ["train.micro_tokens=4096"])]
    [8192, 32768, 4096]
    """
    return config.train.micro_tokens or max(USUAL, config.engine.context_tokens)
