"""Configurations that contradict themselves, for tests of what finds that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.config import Config


@contextmanager
def without_rules() -> Iterator[None]:
    """Let a Config that is made in the block contradict itself; its ranges are checked all the
    same."""
    rules = Config.rules[:]
    Config.rules.clear()
    try:
        yield
    finally:
        Config.rules[:] = rules
