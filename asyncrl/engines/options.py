"""Sizes that every engine is built with."""

from __future__ import annotations

import msgspec

from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.schema import Config


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of an engine: `slots` rollouts are decoded at a time, each of at most
    `context_tokens` tokens (prompt and response), and a chunk is sent about every `chunk_tokens`
    decode steps. All are at least 1.

    >>> from asyncrl.config import load
    >>> EngineOptions.of(load(None, ["engine.slots=16"], {}))
    EngineOptions(slots=16, context_tokens=256, chunk_tokens=8)
    """

    slots: int
    context_tokens: int
    chunk_tokens: int

    @classmethod
    def of(cls, config: Config) -> EngineOptions:
        """The sizes of the engines of a run."""
        return EngineOptions(
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=chunk_tokens(config),
        )
