"""The scripted engine of a rollout actor: tokens by a hash, no model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.config.engines import Capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Engine
from asyncrl.engines.scripted import ScriptedEngine, hashed
from asyncrl.engines.spec import EngineContext, EngineKind


class Scripted(EngineKind):
    """`engine.kind = "scripted"`."""

    capabilities = Capabilities(keeps_averages=True, direct_transport="direct")

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        """An engine that plays `hashed` with the run's seed."""
        config, tokenizer = context.config, context.tokenizer
        yield ScriptedEngine(
            hashed(
                vocab_size=tokenizer.vocabulary,
                stop_id=tokenizer.stop_ids[0],
                run_seed=config.run.seed,
            ),
            EngineOptions.of(config),
            vocab_size=tokenizer.vocabulary,
            idle=context.waits.idle_for,
        )
