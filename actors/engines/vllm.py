"""vLLM servers of a rollout actor: one that it starts, or one that runs already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
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
    from asyncrl.engines.vllm.vllm_client import VllmClient

SERVER_S = 10.0
"""Seconds that a server gets to say what it is, before a run."""
TABLE = "engine.vllm"


class VllmServers(EngineKind):
    """`engine.kind = "vllm"`."""

    capabilities = Capabilities(
        keeps_versions=False,
        serves_apart=True,
        compares_canary=True,
        tables=frozenset({TABLE}),
    )

    @classmethod
    def check(cls, config: Config) -> None:
        """Look at the program, the key, and what servers that are there already say of
        themselves."""
        key = key_of(Servers(TABLE, config.engine.vllm), "make vllm-cpu")
        for url in config.engine.vllm.urls:
            trio.run(_check_server, url, key, config)

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        """One server, whose death ends the block with its name."""
        from asyncrl.engines.servers.server_engine import ServerEngine

        config, tokenizer = context.config, context.tokenizer
        servers = Servers(TABLE, config.engine.vllm)
        async with AsyncExitStack() as stack:
            client = await _client(stack, context)
            way = await stack.enter_async_context(broadcast(context, servers))
            loader = weight_loader(context, client, way, servers, "abort")
            yield ServerEngine(
                client,
                partial(load_all, [loader]),
                EngineOptions.of(config.engine),
                vocab_size=tokenizer.sampled,
                stop_ids=frozenset(tokenizer.stop_ids),
                idle=context.waits.spent,
            )


async def _check_server(url: str, key: str, config: Config) -> None:
    """Ask a server that is there already what it is. One that is not may come yet: its rollout
    actor waits for it."""
    from asyncrl.engines.servers.errors import ServerError, ServerGone
    from asyncrl.engines.vllm.vllm_client import VllmClient

    try:
        async with VllmClient.open(url, api_key=key, deadline_s=SERVER_S) as client:
            await _check(client, config)
    except ServerGone:
        return
    except ServerError as error:
        raise ConfigError(f"{TABLE}.urls names a server that cannot be used: {error}.") from None


async def _check(client: VllmClient, config: Config) -> None:
    from asyncrl.engines.vllm.vllm_fit import check_vllm

    engine = config.engine
    await check_vllm(
        client,
        dtype=engine_dtype(config),
        context_tokens=engine.context_tokens,
        slots=engine.slots,
    )


async def _client(stack: AsyncExitStack, context: EngineContext) -> VllmClient:
    """A client of this actor's server, which fits the run and holds no request."""
    config, index = context.config, context.index
    vllm = config.engine.vllm
    if vllm.launch:
        from asyncrl.engines.vllm.vllm_launch import managed

        server = await stack.enter_async_context(launched(context, Servers(TABLE, vllm), managed))
        opened = _opened(config, server.url, socket=server.socket)
        client = await stack.enter_async_context(opened)
        if server.taken_over:
            await _clear(client)
        return client
    url, key = vllm.urls[index], key_of(Servers(TABLE, vllm), "make vllm-cpu")
    client = await stack.enter_async_context(_opened(config, url, key=key))
    with context.waits.on(
        "server", owner=f"rollout-{index}", deadline_s=2 * config.supervision.start_s
    ):
        await client.wait_ready(config.supervision.start_s)
    await _clear(client)
    await _check(client, config)
    return client


async def _clear(client: VllmClient) -> None:
    """Undo what an actor that died may have left: a pause, and requests of its own."""
    await client.resume()
    await client.abort_all()


def _opened(
    config: Config, url: str, *, key: str = "", socket: str = ""
) -> AbstractAsyncContextManager[VllmClient]:
    from asyncrl.engines.vllm.vllm_client import VllmClient

    deadline_s = config.publication.deadline_s
    return VllmClient.open(url, api_key=key, socket=socket, deadline_s=deadline_s)
