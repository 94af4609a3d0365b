"""SGLang servers of a rollout actor: one that it starts, one that runs already, or all that are
behind a router."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from asyncrl.actors.engines.server_kind import ServerKind
from asyncrl.actors.engines.server_parts import (
    broadcast,
    deadline_s,
    routing_layout,
    server_images,
    weight_loader,
)
from asyncrl.config import Config
from asyncrl.config.engines import Capabilities
from asyncrl.config.published import computed_dtype
from asyncrl.config.schema.engine_section import Servers
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Engine
from asyncrl.engines.spec import EngineContext

if TYPE_CHECKING:
    from asyncrl.engines.servers.managed import ServerProgram
    from asyncrl.engines.servers.served import Served
    from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
    from asyncrl.engines.sglang.sglang_client import SglangClient
    from asyncrl.weightsync.servers.weight_loader import WeightLoader

TABLE = "engine.sglang"


class SglangServers(ServerKind):
    """`engine.kind = "sglang"`."""

    table, built_by = TABLE, "make sglang-cpu"
    capabilities = Capabilities(
        keeps_versions=False,
        direct_transport="into_servers",
        serves_apart=True,
        compares_canary=True,
        records_routing=True,
        serves_adapters=True,
        sees_images=True,
        tables=frozenset({TABLE}),
    )

    @classmethod
    def program(cls) -> ServerProgram[Any]:
        from asyncrl.engines.sglang.sglang_launch import PROGRAM

        return PROGRAM

    @classmethod
    def check(cls, config: Config) -> Sequence[str]:
        """Check as of any servers, and note which records of experts will be lost."""
        notes = super().check(config)
        if not config.train.router_replay or config.engine.sglang.interrupt != "retract":
            return notes
        return [
            *notes,
            "tokens that a new version finds in an unfinished rollout lose their experts with "
            'engine.sglang.interrupt = "retract": "abort" keeps them',
        ]

    @classmethod
    async def engine(
        cls, stack: AsyncExitStack, context: EngineContext, clients: list[Any]
    ) -> Engine:
        """That of any servers, or of those to which the trainer sends weights itself."""
        if context.config.publication.path == "direct":
            return _direct_engine(
                context, clients, await cls.served(stack, context.config, clients)
            )
        return await super().engine(stack, context, clients)

    @classmethod
    def urls(cls, config: Config, index: int) -> tuple[str, ...]:
        """All of them behind a router, else one."""
        return (
            config.engine.sglang.urls
            if config.engine.sglang.router
            else super().urls(config, index)
        )

    @classmethod
    async def served(cls, stack: AsyncExitStack, config: Config, clients: list[Any]) -> Served:
        """The router, or the one server."""
        from asyncrl.engines.servers.kept_servers import ServerAddress
        from asyncrl.engines.sglang.routed import Routed

        router = config.engine.sglang.router
        if not router:
            return await super().served(stack, config, clients)
        opened = cls.client(config, ServerAddress(router, cls.key(config)))
        return Routed(await stack.enter_async_context(opened), clients)

    @classmethod
    def loader(
        cls, context: EngineContext, client: Any
    ) -> AbstractAsyncContextManager[WeightLoader]:
        """By broadcast or from a disk."""
        return _weight_loader(context, client)


def _direct_engine(
    context: EngineContext, clients: list[SglangClient], served: Served
) -> DirectSglangEngine:
    """The engine of servers to which the trainer sends weights itself."""
    from asyncrl.engines import canary
    from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
    from asyncrl.weightsync.servers.direct_server import DirectServer
    from asyncrl.weightsync.servers.fp8_checkpoint import checkpoint_of

    config, tokenizer = context.config, context.tokenizer
    sglang = config.engine.sglang
    parameters = dict(context.model.named_parameters())
    tensors = dict(checkpoint_of(context.model, config.publication.dtype).tensors(parameters))
    servers = [
        DirectServer(
            client,
            tensors,
            type(context.model).__name__,
            canary.text(tokenizer.vocabulary, tokenizer.stop_ids),
            mode=sglang.interrupt,
            tolerance=sglang.canary or canary.TOLERANCE[computed_dtype(config)],
            deadline_s=deadline_s(context),
        )
        for client in clients
    ]
    return DirectSglangEngine(
        served,
        servers,
        EngineOptions.of(config),
        vocab_size=tokenizer.sampled,
        stop_ids=frozenset(tokenizer.stop_ids),
        idle=context.waits.idle_for,
        routing=routing_layout(context),
        images=server_images(context),
    )


@asynccontextmanager
async def _weight_loader(
    context: EngineContext, client: SglangClient
) -> AsyncIterator[WeightLoader]:
    """The loader of weights of one server."""
    from asyncrl.weightsync.servers.from_disk import FromDisk

    servers = Servers(TABLE, context.config.engine.sglang)
    mode = context.config.engine.sglang.interrupt
    if servers.by_broadcast:
        async with broadcast(context, servers) as way:
            yield weight_loader(context, client, way, servers, mode)
    else:
        files = FromDisk(context.run / "weights" / f"rollout-{context.index}")
        yield weight_loader(context, client, files, servers, mode)
