"""A rollout actor's parts for servers of any kind."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from asyncrl.config import ConfigError
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.cluster import joined
from asyncrl.config.gpus import actor_gpus
from asyncrl.config.published import computed_dtype, engine_dtype, phase_s
from asyncrl.config.schema.engine_section import Servers
from asyncrl.engines.spec import EngineContext
from asyncrl.files import SMALL_BYTES, read_regular
from asyncrl.runtime.logs import FOLDER
from asyncrl.runtime.run_dir import IMAGES, SERVERS
from asyncrl.tasks.images.vision_model import run_images

if TYPE_CHECKING:
    import torch

    from asyncrl.engines.servers.served import ServerClient
    from asyncrl.engines.servers.server_images import ServerImages
    from asyncrl.engines.servers.server_process import AdapterRoom, ServerProcess
    from asyncrl.engines.servers.server_routing import RoutingLayout
    from asyncrl.engines.servers.server_types import Mode
    from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
    from asyncrl.weightsync.servers.served_adapters import ServedAdapters
    from asyncrl.weightsync.servers.weight_loader import IntoServer, WeightLoader


def key_of(servers: Servers, built_by: str) -> str:
    """The key of servers that run already, empty where they require none. Raises ConfigError where
    it cannot be read, or the program that starts servers does not exist; `built_by` builds it."""
    table, settings = servers
    if settings.launch and shutil.which(settings.launch[0]) is None:
        raise ConfigError(
            f"{table}.launch begins with {settings.launch[0]!r}, but there is no such program; "
            f"give the Python of an environment that has the server ({built_by} builds one for a "
            "CPU)."
        )
    if not settings.api_key_file:
        return ""
    try:
        return read_regular(Path(settings.api_key_file), SMALL_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{table}.api_key_file is {settings.api_key_file!r}, which cannot be read ({error})."
        ) from None


async def load_all(
    loaders: list[WeightLoader],
    version: int,
    weights: Mapping[str, torch.Tensor],
    reference: Sequence[float],
    stop: Callable[[], None],
) -> float:
    """Load into every server; the longest pause of any, in seconds."""
    from asyncrl.engines.servers.gather import gather

    loads = (partial(loader.load, version, weights, reference, stop) for loader in loaders)
    loaded = await gather(*loads)
    return max(one.pause_s for one in loaded)


@asynccontextmanager
async def launched(
    context: EngineContext,
    servers: Servers,
    managed: Callable[..., AbstractAsyncContextManager[ServerProcess]],
) -> AsyncIterator[ServerProcess]:
    """A server of this actor's own, for the length of the block, which its death ends. `managed` is
    its kind's. It may still have requests of an earlier actor, and be paused."""
    from asyncrl.engines.servers.server_process import Keeping, ServerLaunch

    config, index, settings = context.config, context.index, servers.settings
    launch = ServerLaunch(
        python=settings.launch,
        model=str(context.initial),
        dtype=engine_dtype(config),
        device=settings.device,
        slots=config.engine.slots,
        context_tokens=config.engine.context_tokens,
        tensor_parallel=settings.tensor_parallel,
        seed=config.run.seed,
        arguments=settings.arguments,
        gpus=actor_gpus(config, index).server,
        chunk_tokens=chunk_tokens(config),
        weights="dummy" if joined(config) else "auto",  # a machine that joins gets no files
        routing=config.train.router_replay,
        adapters=adapter_room(context),
    )
    name = f"server-{index}"
    log = context.run / FOLDER / f"{name}.log"
    limits = config.supervision
    keeping = Keeping(context.run / SERVERS, limits.keep_servers_s, context.takes_over)
    opened = managed(launch, log=log, name=name, ready_s=limits.start_s, keeping=keeping)
    async with (
        opened as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.watch)
        yield server
        nursery.cancel_scope.cancel()


def server_images(context: EngineContext) -> ServerImages | None:
    """The run's images, for the requests of this actor; None for a model of text."""
    from asyncrl.engines.servers.server_images import ServerImages

    images = run_images(context.run / IMAGES, context.initial)
    if images is None:
        return None
    context.follow("image_bytes", images.read_bytes)
    return ServerImages(images)


LEAST_VERSIONS = 8
"""The adapters that a server may decode with at a time, at least: as many as SGLang's default."""


def adapter_room(context: EngineContext) -> AdapterRoom | None:
    """The room that a server needs for the run's adapters; None where it gets whole weights. Each
    version that an unfinished rollout may have is one, and the newest, and the base."""
    if context.adapted is None:
        return None
    from asyncrl.engines.servers.server_process import AdapterRoom
    from asyncrl.training.adapters import adapted_names

    config = context.config
    versions = max(LEAST_VERSIONS, config.staleness.max_lag + 3)
    return AdapterRoom(config.model.lora.rank, adapted_names(context.adapted), versions)


def served_adapters(
    context: EngineContext, client: ServerClient, servers: Servers
) -> ServedAdapters:
    """The adapters of one server."""
    from asyncrl.engines import canary
    from asyncrl.weightsync.servers.served_adapters import ServedAdapters

    config, tokenizer = context.config, context.tokenizer
    assert context.adapted is not None, "engines get adapters alone"
    return ServedAdapters(
        client,
        context.adapted,
        context.model,
        canary.text(tokenizer.vocabulary, tokenizer.stop_ids),
        context.run / "weights" / f"rollout-{context.index}",
        tolerance=servers.settings.canary or canary.TOLERANCE[computed_dtype(config)],
        deadline_s=deadline_s(context),
        policy=config.game.policy,
    )


def routing_layout(context: EngineContext) -> RoutingLayout | None:
    """The layout of the experts that servers return; None where they are not asked for them.
    Raises ConfigError where servers cannot tell them for this model."""
    if not context.config.train.router_replay:
        return None
    from asyncrl.engines.servers.routing_layout import layout_of

    try:
        return layout_of(context.model)
    except ValueError as error:
        raise ConfigError(
            f"train.router_replay is true, and {error}, by which servers could return the experts "
            "of tokens: set engine.kind to embedded, or router_replay to false."
        ) from None


def deadline_s(context: EngineContext) -> float:
    """Seconds for each phase of a publication of the model."""
    weight_bytes = sum(parameter.nbytes for parameter in context.model.parameters())
    return phase_s(context.config.publication.deadline_s, weight_bytes)


@asynccontextmanager
async def broadcast(context: EngineContext, servers: Servers) -> AsyncIterator[ByBroadcast]:
    """The way into one server by broadcast, for the length of the block."""
    from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
    from asyncrl.weightsync.servers.server_group import ServerGroup

    publication = context.config.publication
    sender = actor_gpus(context.config, context.index).sender
    async with ServerGroup.open(
        servers.settings.host,
        servers.settings.tensor_parallel,
        bucket_bytes=publication.bucket_bytes,
        device=f"cuda:{sender[0]}" if sender else "cpu",
    ) as group:
        yield ByBroadcast(group, deadline_s(context))


def weight_loader(
    context: EngineContext,
    client: ServerClient,
    way: IntoServer,
    servers: Servers,
    mode: Mode,
) -> WeightLoader:
    """The loader of weights of one server."""
    from asyncrl.engines import canary
    from asyncrl.weightsync.servers.fp8_checkpoint import checkpoint_of
    from asyncrl.weightsync.servers.weight_loader import WeightLoader

    config, tokenizer = context.config, context.tokenizer
    return WeightLoader(
        client,
        way,
        context.model,
        canary.text(tokenizer.vocabulary, tokenizer.stop_ids),
        mode=mode,
        tolerance=servers.settings.canary or canary.TOLERANCE[computed_dtype(config)],
        deadline_s=deadline_s(context),
        names=checkpoint_of(context.model, config.publication.dtype),
    )
