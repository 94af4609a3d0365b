"""The key of a judge."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.config.api_keys import read_key
from asyncrl.config.judging import asks
from asyncrl.config.schema import JudgeConfig


def check_judge(config: Config) -> None:
    """Check that this machine has the judge's key, if a judge will be asked. The judge is asked
    nothing. Raises ConfigError."""
    if asks(config):
        read_judge_key(config.judge)


def read_judge_key(judge: JudgeConfig) -> str:
    """The judge's key; empty if it needs none. Raises ConfigError."""
    return read_key("judge", judge.api_key_env, judge.api_key_file)
