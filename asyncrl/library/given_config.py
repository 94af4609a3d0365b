"""The configuration that a function of the library is given."""

from __future__ import annotations

from typing import Any

from asyncrl.config import Config, ConfigError


def as_config(role: str, config: Any) -> Config:
    """Check that this is a configuration. Raises ConfigError.

    >>> as_config("train", "run.toml")
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: train: a str is not a configuration: give an rl.Config, or \
rl.Config(**table) of a table of run.toml.
    """
    if isinstance(config, Config):
        return config
    raise ConfigError(
        f"{role}: a {type(config).__name__} is not a configuration: give an rl.Config, or "
        "rl.Config(**table) of a table of run.toml."
    )
