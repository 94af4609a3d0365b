"""The key of a judge. Invariant: a key comes from a variable or a file, and goes into the header of
a request alone: no message, log or file of a run holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from asyncrl.config import Config
from asyncrl.config.api_keys import key_of_file, right_key
from asyncrl.config.errors import ConfigError
from asyncrl.config.judging import asks
from asyncrl.config.schema import JudgeConfig


def read_key(judge: JudgeConfig, environment: Mapping[str, str] = os.environ) -> str:
    """The judge's key; empty if it needs none. Raises ConfigError if it is not where the settings
    say.

    >>> read_key(JudgeConfig(api_key_env="JUDGE_KEY"), {})
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: judge.api_key_env is 'JUDGE_KEY', and that variable is not \
set: export it where the run, and each machine that judges for it, is started.
    """
    if judge.api_key_env:
        where = f"judge.api_key_env is {judge.api_key_env!r}"
        key = environment.get(judge.api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"{where}, and that variable is not set: export it where the run, and each machine "
                "that judges for it, is started."
            )
        return right_key(where, key)
    if judge.api_key_file:
        return key_of_file("judge.api_key_file", judge.api_key_file)
    return ""


def check_judge(config: Config) -> None:
    """Check that this machine has the judge's key, if a judge will be asked. The judge is asked
    nothing. Raises ConfigError."""
    if asks(config):
        read_key(config.judge)
