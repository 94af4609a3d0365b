"""The embedded engine of a rollout actor: the model in its own process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from asyncrl.config.engines import Capabilities
from asyncrl.engines.protocol import Engine
from asyncrl.engines.spec import EngineContext, EngineKind
from asyncrl.files import read_regular, write_whole
from asyncrl.runtime.run_dir import IMAGES, PACKED
from asyncrl.tasks.images.vision_model import run_images

logger = logging.getLogger(__name__)


class Embedded(EngineKind):
    """`engine.kind = "embedded"`."""

    capabilities = Capabilities(
        keeps_averages=True,
        direct_transport="direct",
        widens=True,
        records_routing=True,
        sees_images=True,
    )

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        """An engine that multiplies in the way that the first one of this run measured as
        fastest."""
        import torch

        from asyncrl.engines.embedded.embedded_options import embedded_options
        from asyncrl.engines.embedded.engine import EmbeddedEngine
        from asyncrl.engines.embedded.engine_images import EngineImages

        config, run = context.config, context.run
        with torch.no_grad():
            for parameter in context.model.parameters():
                # any finite numbers, for the engine to try its fast paths with before the first
                # publication
                parameter.normal_(std=0.05)
        options = msgspec.structs.replace(
            embedded_options(config, context.tokenizer.stop_ids),
            packed_from=_packed_from(run),
            records_routing=config.train.router_replay,
        )
        images = run_images(run / IMAGES, context.initial)
        if images is not None:
            context.follow("image_bytes", images.read_bytes)
        engine = EmbeddedEngine(
            context.model,
            options,
            idle=context.waits.idle_for,
            images=None if images is None else EngineImages(images),
        )
        _remember(run, engine.packed_from)
        yield engine


def _packed_from(run: Path) -> int | None:
    """The number of rows that an engine of this run measured, None where none has yet."""
    try:
        return int(read_regular(run / PACKED, 32))
    except (FileNotFoundError, ValueError):
        return None


def _remember(run: Path, packed_from: int) -> None:
    """Store an engine's measurement atomically; on a full disk the next engine measures again."""
    try:
        write_whole(run / PACKED, f"{packed_from}\n", forced=False)
    except OSError as error:
        logger.warning("this engine's measurement is not stored: %s", error)
