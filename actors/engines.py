"""The engine of a rollout actor, put together. Invariant: it lasts as long as the block, and so
does all that it started.

Only this file knows every kind of engine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from asyncrl.config import Config
from asyncrl.engines.protocol import Engine
from asyncrl.ipc.waits import Waits
from asyncrl.observe.logs import FOLDER
from asyncrl.observe.run_dir import PACKED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from asyncrl.engines.sglang.client import Client
    from asyncrl.engines.sglang.weight_loader import WeightLoader
    from asyncrl.tasks.text import Tokenizer

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_engine(
    config: Config,
    run: Path,
    initial: Path,
    index: int,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    waits: Waits,
) -> AsyncIterator[Engine]:
    """The engine of the rollout actor `index` of the run in directory `run`, which started from the
    model in `initial`; `model` is of the same shape, and its weights mean nothing."""
    match config.engine.kind:
        case "scripted":
            yield _scripted(config, tokenizer, waits)
        case "embedded":
            yield _embedded(config, run, model, tokenizer, waits)
        case "sglang":
            async with _sglang(config, run, initial, index, model, tokenizer, waits) as engine:
                yield engine


def _scripted(config: Config, tokenizer: Tokenizer, waits: Waits) -> Engine:
    from asyncrl.engines.scripted import ScriptedEngine, hashed

    return ScriptedEngine(
        hashed(
            vocab_size=tokenizer.vocabulary, stop_id=tokenizer.stop_ids[0], run_seed=config.run.seed
        ),
        slots=config.engine.slots,
        context_tokens=config.engine.context_tokens,
        chunk_tokens=config.engine.chunk_tokens,
        vocab_size=tokenizer.vocabulary,
        idle=waits.spent,
    )


# ---------------------------------------------------------------------------------------- embedded


def _embedded(
    config: Config, run: Path, model: PreTrainedModel, tokenizer: Tokenizer, waits: Waits
) -> Engine:
    import torch

    from asyncrl.engines.embedded.engine import EmbeddedEngine

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(
                std=0.05
                # any finite numbers, for the engine to try its fast paths with before the first
                # publication
            )
    engine = EmbeddedEngine(
        model,
        slots=config.engine.slots,
        context_tokens=config.engine.context_tokens,
        chunk_tokens=config.engine.chunk_tokens,
        stop_ids=frozenset(tokenizer.stop_ids),
        run_seed=config.run.seed,
        kv=config.engine.kv,
        compile=config.engine.compile,
        packed_from=_packed_from(run),
        idle=waits.spent,
    )
    _remember(run, engine.packed_from)
    return engine


def _packed_from(run: Path) -> int | None:
    """What an engine of this run measured, None where none has yet."""
    try:
        return int((run / PACKED).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _remember(run: Path, packed_from: int) -> None:
    """Keep what an engine measured, whole or not at all; a disk without room leaves it to the
    next."""
    partial = run / f"{PACKED}.{os.getpid()}"
    try:
        partial.write_text(f"{packed_from}\n")
        partial.replace(run / PACKED)
    except OSError as error:
        logger.warning("what this engine measured is not kept: %s", error)


# ------------------------------------------------------------------------------------------ sglang


@asynccontextmanager
async def _sglang(
    config: Config,
    run: Path,
    initial: Path,
    index: int,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    waits: Waits,
) -> AsyncIterator[Engine]:
    """One server, or all that are behind a router. A server's death ends the block with its
    name."""
    from asyncrl.engines.sglang.compatibility import examine
    from asyncrl.engines.sglang.engine import SglangEngine
    from asyncrl.engines.sglang.gather import gather
    from asyncrl.engines.sglang.routed import Routed, Served

    sglang = config.engine.sglang
    async with AsyncExitStack() as stack:
        if sglang.launch:
            urls = [await stack.enter_async_context(_launched(config, run, initial, index))]
        else:
            urls = list(sglang.urls) if sglang.router else [sglang.urls[index]]
        clients = [await stack.enter_async_context(_client(config, url)) for url in urls]
        for client in () if sglang.launch else clients:
            with waits.on(
                "server", owner=f"rollout-{index}", deadline_s=2 * config.supervision.start_s
            ):
                await client.wait_there(config.supervision.start_s)
            await examine(
                client,
                architecture=type(model).__name__,
                dtype=config.model.dtype,
                context_tokens=config.engine.context_tokens,
                slots=config.engine.slots,
            )
            await client.abort_all()  # what an actor that died has left there
        publishers = [
            await stack.enter_async_context(
                _publisher(config, run, index, client, model, tokenizer)
            )
            for client in clients
        ]
        served: Served = clients[0]
        if sglang.router:
            served = Routed(
                await stack.enter_async_context(_client(config, sglang.router)), clients
            )

        async def load(
            version: int, weights: Mapping[str, torch.Tensor], stop: Callable[[], None]
        ) -> float:
            """The longest pause of any."""
            loaded = await gather(
                *(partial(publisher.load, version, weights, stop) for publisher in publishers)
            )
            return max(one.pause_s for one in loaded)

        yield SglangEngine(
            served,
            load,
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=config.engine.chunk_tokens,
            vocab_size=tokenizer.sampled,
            stop_ids=frozenset(tokenizer.stop_ids),
            idle=waits.spent,
        )


@asynccontextmanager
async def _launched(config: Config, run: Path, initial: Path, index: int) -> AsyncIterator[str]:
    """The address of a server of this actor's own, for the length of the block."""
    from asyncrl.engines.sglang.servers import Launch, managed

    sglang = config.engine.sglang
    launch = Launch(
        python=sglang.launch,
        model=str(initial),
        dtype=config.model.dtype,
        device=sglang.device,
        slots=config.engine.slots,
        context_tokens=config.engine.context_tokens,
        tensor_parallel=sglang.tensor_parallel,
        seed=config.run.seed,
        arguments=sglang.arguments,
    )
    log = run / FOLDER / f"server-{index}.log"
    async with (
        managed(
            launch, log=log, name=f"server-{index}", ready_s=config.supervision.start_s
        ) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.watch)
        yield server.url
        nursery.cancel_scope.cancel()


def _client(config: Config, url: str) -> AbstractAsyncContextManager[Client]:
    from asyncrl.engines.sglang.client import Client

    path = config.engine.sglang.api_key_file
    return Client.open(
        url,
        api_key=Path(path).read_text().strip() if path else "",
        deadline_s=config.publication.deadline_s,
    )


@asynccontextmanager
async def _publisher(
    config: Config,
    run: Path,
    index: int,
    client: Client,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
) -> AsyncIterator[WeightLoader]:
    """What gives one server its weights."""
    from asyncrl.engines.sglang import canary
    from asyncrl.engines.sglang.weight_loader import WeightLoader
    from asyncrl.engines.sglang.weight_transfer import (
        BroadcastTransfer,
        DiskTransfer,
        WeightTransfer,
    )
    from weightsync.server_group import ServerGroup

    sglang, publication = config.engine.sglang, config.publication
    async with AsyncExitStack() as stack:
        way: WeightTransfer = DiskTransfer(run / "weights" / f"rollout-{index}")
        if sglang.transfer == "broadcast":
            device, size = "cuda" if sglang.backend == "nccl" else "cpu", publication.bucket_bytes
            opened = ServerGroup.open(
                sglang.host, sglang.tensor_parallel, bucket_bytes=size, device=device
            )
            way = BroadcastTransfer(await stack.enter_async_context(opened), publication.deadline_s)
        yield WeightLoader(
            client,
            way,
            model,
            canary.text(tokenizer.vocabulary, tokenizer.stop_ids),
            mode=sglang.interrupt,
            tolerance=sglang.canary or canary.TOLERANCE[config.model.dtype],
            deadline_s=publication.deadline_s,
        )
