"""Sizes that every engine is built with."""

from __future__ import annotations

import msgspec

from asyncrl.config.schema import EngineConfig


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of an engine: `slots` rollouts are decoded at a time, each of at most
    `context_tokens` tokens (prompt and response), and a chunk is sent about every `chunk_tokens`
    decode steps. All are at least 1.

    >>> EngineOptions.of(EngineConfig(slots=8, chunk_tokens=4, context_tokens=64))
    EngineOptions(slots=8, context_tokens=64, chunk_tokens=4)
    """

    slots: int
    context_tokens: int
    chunk_tokens: int

    @classmethod
    def of(cls, config: EngineConfig) -> EngineOptions:
        """The sizes in `[engine]`."""
        return EngineOptions(
            slots=config.slots,
            context_tokens=config.context_tokens,
            chunk_tokens=config.chunk_tokens,
        )
