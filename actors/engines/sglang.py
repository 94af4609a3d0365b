"""SGLang servers of a rollout actor: one that it starts, one that runs already, or all that are
behind a router."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.engines.server_parts import broadcast, key_of, launched, load_all, weight_loader
from asyncrl.config import Config, ConfigError
from asyncrl.config.engines import Capabilities
from asyncrl.config.published import engine_dtype
from asyncrl.config.servers import Servers
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Engine
from asyncrl.engines.spec import EngineContext, EngineKind

if TYPE_CHECKING:
    from asyncrl.engines.servers.served import Served
    from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
    from asyncrl.engines.sglang.sglang_client import SglangClient
    from weightsync.servers.weight_loader import WeightLoader

SERVER_S = 10.0
"""Seconds that a server gets to say what it is, before a run."""
TABLE = "engine.sglang"
BUNDLED = "Qwen3ForCausalLM"
"""The class of the bundled model."""


class SglangServers(EngineKind):
    """`engine.kind = "sglang"`."""

    capabilities = Capabilities(
        keeps_versions=False,
        direct_transport="into_servers",
        serves_apart=True,
        compares_canary=True,
        tables=frozenset({TABLE}),
    )

    @classmethod
    def check(cls, config: Config) -> None:
        """Look at the program, the key, and what servers that are there already say of
        themselves."""
        key = _key(config)
        for url in config.engine.sglang.urls:
            trio.run(_check_server, url, key, config)

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        """One server, or all that are behind a router. A server's death ends the block with its
        name."""
        from asyncrl.engines.servers.server_engine import ServerEngine

        config, tokenizer = context.config, context.tokenizer
        async with AsyncExitStack() as stack:
            clients = await _clients(stack, context)
            if config.publication.path == "direct":
                served = await _served(stack, config, clients)
                yield _direct_engine(context, clients, served)
                return
            loaders = [
                await stack.enter_async_context(_weight_loader(context, client))
                for client in clients
            ]
            yield ServerEngine(
                await _served(stack, config, clients),
                partial(load_all, loaders),
                EngineOptions.of(config.engine),
                vocab_size=tokenizer.sampled,
                stop_ids=frozenset(tokenizer.stop_ids),
                idle=context.waits.spent,
            )


# ----------------------------------------------------------------------------------- before a run


def _key(config: Config) -> str:
    return key_of(Servers(TABLE, config.engine.sglang), "make sglang-cpu")


async def _check_server(url: str, key: str, config: Config) -> None:
    """Ask a server that is there already what it is. One that is not may come yet: its rollout
    actor waits for it."""
    from asyncrl.engines.servers.errors import ServerError, ServerGone
    from asyncrl.engines.sglang.compatibility import check_compatibility
    from asyncrl.engines.sglang.sglang_client import SglangClient

    engine, architecture = config.engine, _architecture(config)
    try:
        async with SglangClient.open(url, api_key=key, deadline_s=SERVER_S) as client:
            await check_compatibility(
                client,
                architecture=architecture,
                dtype=engine_dtype(config),
                context_tokens=engine.context_tokens,
                slots=engine.slots,
            )
    except ServerGone:
        return
    except ServerError as error:
        raise ConfigError(
            f"engine.sglang.urls names a server that cannot be used: {error}."
        ) from None


def _architecture(config: Config) -> str:
    """The class of the run's model; of the bundled one where none is given."""
    if not config.model.path:
        return BUNDLED
    try:
        found = json.loads((Path(config.model.path) / "config.json").read_bytes())["architectures"][
            0
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise ConfigError(
            f"model.path is {config.model.path!r}, and config.json in it does not say its "
            "architecture."
        ) from None
    return str(found)


# ---------------------------------------------------------------------------------------- servers


async def _clients(stack: AsyncExitStack, context: EngineContext) -> list[SglangClient]:
    """A client of each server of this actor, all of which fit the run and hold no request."""
    from asyncrl.engines.sglang.compatibility import check_compatibility

    config, index = context.config, context.index
    sglang = config.engine.sglang
    if sglang.launch:
        from asyncrl.engines.sglang.sglang_launch import managed

        server = await stack.enter_async_context(launched(context, Servers(TABLE, sglang), managed))
        client = await stack.enter_async_context(_client(config, server.url, server.key))
        if server.taken_over:
            await client.abort_all()  # what an actor that died has left there
        return [client]
    urls, key = sglang.urls if sglang.router else sglang.urls[index : index + 1], _key(config)
    clients = [await stack.enter_async_context(_client(config, url, key)) for url in urls]
    for client in clients:
        with context.waits.on(
            "server", owner=f"rollout-{index}", deadline_s=2 * config.supervision.start_s
        ):
            await client.wait_there(config.supervision.start_s)
        await check_compatibility(
            client,
            architecture=type(context.model).__name__,
            dtype=engine_dtype(config),
            context_tokens=config.engine.context_tokens,
            slots=config.engine.slots,
        )
        await client.abort_all()  # likewise
    return clients


async def _served(stack: AsyncExitStack, config: Config, clients: list[SglangClient]) -> Served:
    """The receiver of requests: the router, or the one server."""
    from asyncrl.engines.sglang.routed import Routed

    router = config.engine.sglang.router
    if not router:
        return clients[0]
    key = _key(config)
    return Routed(await stack.enter_async_context(_client(config, router, key)), clients)


def _direct_engine(
    context: EngineContext, clients: list[SglangClient], served: Served
) -> DirectSglangEngine:
    """The engine of servers to which the trainer sends weights itself."""
    from asyncrl.engines import canary
    from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
    from weightsync.servers.direct_server import DirectServer

    config, tokenizer = context.config, context.tokenizer
    sglang = config.engine.sglang
    servers = [
        DirectServer(
            client,
            dict(context.model.named_parameters()),
            type(context.model).__name__,
            canary.text(tokenizer.vocabulary, tokenizer.stop_ids),
            mode=sglang.interrupt,
            tolerance=sglang.canary or canary.TOLERANCE[engine_dtype(config)],
            deadline_s=config.publication.deadline_s,
        )
        for client in clients
    ]
    return DirectSglangEngine(
        served,
        servers,
        EngineOptions.of(config.engine),
        vocab_size=tokenizer.sampled,
        stop_ids=frozenset(tokenizer.stop_ids),
        idle=context.waits.spent,
    )


def _client(config: Config, url: str, key: str) -> AbstractAsyncContextManager[SglangClient]:
    from asyncrl.engines.sglang.sglang_client import SglangClient

    return SglangClient.open(url, api_key=key, deadline_s=config.publication.deadline_s)


@asynccontextmanager
async def _weight_loader(
    context: EngineContext, client: SglangClient
) -> AsyncIterator[WeightLoader]:
    """The loader of weights of one server."""
    from weightsync.servers.from_disk import FromDisk

    servers = Servers(TABLE, context.config.engine.sglang)
    mode = context.config.engine.sglang.interrupt
    if servers.by_broadcast:
        async with broadcast(context, servers) as way:
            yield weight_loader(context, client, way, servers, mode)
    else:
        files = FromDisk(context.run / "weights" / f"rollout-{context.index}")
        yield weight_loader(context, client, files, servers, mode)
