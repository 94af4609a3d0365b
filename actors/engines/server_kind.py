"""Servers of a rollout actor, of any kind: one that it starts, or some that run already."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from asyncrl.actors.engines.server_parts import (
    broadcast,
    key_of,
    launched,
    load_all,
    routing_layout,
    served_adapters,
    server_images,
    weight_loader,
)
from asyncrl.config import Config, ConfigError
from asyncrl.config.fields import lookup
from asyncrl.config.published import engine_dtype, publication_s
from asyncrl.config.schema.engine_section import Servers
from asyncrl.config.shared_servers import shares_servers
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Engine
from asyncrl.engines.spec import EngineContext, EngineKind
from asyncrl.files import JSON_BYTES, read_regular

if TYPE_CHECKING:
    from asyncrl.engines.servers.kept_servers import ServerAddress
    from asyncrl.engines.servers.managed import ServerProgram
    from asyncrl.engines.servers.other_model import Needs
    from asyncrl.engines.servers.served import Served
    from asyncrl.engines.servers.server_process import ServerProcess
    from asyncrl.weightsync.servers.served_adapters import ServedAdapters
    from asyncrl.weightsync.servers.weight_loader import WeightLoader

SERVER_S = 10.0
"""Seconds that a server gets to describe itself, before a run."""
BUNDLED = "Qwen3ForCausalLM"
"""The class of the bundled model."""


class ServerKind(EngineKind):
    """Base of engines that are servers. A kind has its `table` of run.toml, the `make` target that
    builds one for a CPU, and its `program`."""

    table: ClassVar[str]
    built_by: ClassVar[str]

    @classmethod
    @abstractmethod
    def program(cls) -> ServerProgram[Any]:
        """The program of this kind; imported in here, because every process imports this class,
        and few need the program."""

    @classmethod
    def servers(cls, config: Config) -> Servers:
        """The settings of the servers."""
        return Servers(cls.table, lookup(config, cls.table))

    @classmethod
    def check(cls, config: Config) -> Sequence[str]:
        """Check the program, the key, and the descriptions of servers that run already."""
        key = cls.key(config)
        settings = cls.servers(config).settings
        cls._check_entries(config)
        notes = cls._check_environment(config) if settings.launch else []
        for url in settings.urls:
            trio.run(cls._check_server, url, key, config)
        return notes

    @classmethod
    def _check_entries(cls, config: Config) -> None:
        """Check that config.json has what the server reads in those that are published, and that
        the model divides among the server's devices."""
        from asyncrl.engines.servers.config_entries import missing_entry
        from asyncrl.engines.servers.tensor_parts import indivisible

        title, settings = cls.program().package.title, cls.servers(config).settings
        parts = settings.tensor_parallel, settings.arguments
        if config.model.path and (fault := indivisible(_described(config), *parts)):
            raise ConfigError(
                f"model.path is {config.model.path!r}, which {fault}: change "
                f"{cls.table}.{'arguments' if '--e' in fault else 'tensor_parallel'}."
            )
        if config.model.path and (entry := missing_entry(_described(config), title)):
            raise ConfigError(
                f"model.path is {config.model.path!r}, and its config.json lacks {entry}, which "
                f"{title} reads and transformers 5 leaves out: add it."
            )

    @classmethod
    def _check_environment(cls, config: Config) -> list[str]:
        """Check that the environment of `launch` has the server, and this one the model's class.
        Where it cannot be looked into, the start of the server says why. Returns notes."""
        from asyncrl.engines.servers.server_environment import doubt, look, misfit, nccl_here

        settings, package = cls.servers(config).settings, cls.program().package
        architecture = _architecture(config)
        environment = look(settings.launch, package, architecture)
        if environment is None:
            return []
        nccl = nccl_here() if settings.backend == "nccl" else None
        if fault := misfit(environment, package, architecture, nccl=nccl):
            raise ConfigError(
                f"{cls.table}.launch begins with {settings.launch[0]!r}, whose environment {fault}."
            )
        return [note] if (note := doubt(environment, package, architecture)) else []

    @classmethod
    def key(cls, config: Config) -> str:
        """The key of servers that run already. Raises ConfigError where it cannot be read."""
        return key_of(cls.servers(config), cls.built_by)

    @classmethod
    async def _check_server(cls, url: str, key: str, config: Config) -> None:
        """Check a server that runs already. One that does not answer may still start: its rollout
        actor waits for it."""
        from asyncrl.engines.servers.errors import ServerError, ServerGone
        from asyncrl.engines.servers.kept_servers import ServerAddress

        needs, program = needs_of(config, _architecture(config)), cls.program()
        try:
            async with program.open(ServerAddress(url, key), SERVER_S) as client:
                await program.fits(client, needs)
        except ServerGone:
            return
        except ServerError as error:
            raise ConfigError(
                f"{cls.table}.urls names a server that cannot be used: {error}."
            ) from None

    # -------------------------------------------------------------------------------------- a run

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        """The engine of this actor's servers. A server's death ends the block with its name."""
        async with AsyncExitStack() as stack:
            clients = await cls._clients(stack, context)
            yield await cls.engine(stack, context, clients)

    @classmethod
    async def engine(
        cls, stack: AsyncExitStack, context: EngineContext, clients: list[Any]
    ) -> Engine:
        """The engine of these servers, into each of which the actor loads weights."""
        from asyncrl.engines.servers.server_engine import LoadWeights, ServerEngine

        served: Served
        keeps: ServedAdapters | None = None
        load: LoadWeights
        if context.adapted is not None:
            (client,) = clients
            served = keeps = served_adapters(context, client, cls.servers(context.config))
            load = keeps.load
        else:
            loaders = [
                await stack.enter_async_context(cls.loader(context, client)) for client in clients
            ]
            served = await cls.served(stack, context.config, clients)
            load = partial(load_all, loaders)
        return ServerEngine(
            served,
            load,
            EngineOptions.of(context.config),
            vocab_size=context.tokenizer.sampled,
            stop_ids=frozenset(context.tokenizer.stop_ids),
            idle=context.waits.idle_for,
            routing=routing_layout(context),
            keeps=keeps,
            images=server_images(context) if cls.capabilities.sees_images else None,
        )

    @classmethod
    def urls(cls, config: Config, index: int) -> tuple[str, ...]:
        """The addresses of an actor's servers among those that run already."""
        return cls.servers(config).settings.urls[index : index + 1]

    @classmethod
    async def served(cls, stack: AsyncExitStack, config: Config, clients: list[Any]) -> Served:
        """The receiver of requests."""
        served: Served = clients[0]
        return served

    @classmethod
    def loader(cls, context: EngineContext, client: Any) -> AbstractAsyncContextManager[Any]:
        """The loader of weights of one server, by broadcast, in whose pauses requests end."""
        return _by_broadcast(context, client, cls.servers(context.config))

    @classmethod
    async def _clients(cls, stack: AsyncExitStack, context: EngineContext) -> list[Any]:
        """A client of each server of this actor, all of which fit the run and hold no request."""
        config, servers = context.config, cls.servers(context.config)
        if servers.settings.launch:
            from asyncrl.engines.servers.managed import managed

            start = partial(managed, cls.program())
            server = await stack.enter_async_context(launched(context, servers, start))
            client = await stack.enter_async_context(cls.client(config, server))
            if server.taken_over:
                await client.clear()
            return [client]
        from asyncrl.engines.servers.kept_servers import ServerAddress

        key = cls.key(config)
        clients = [
            await stack.enter_async_context(cls.client(config, ServerAddress(url, key)))
            for url in cls.urls(config, context.index)
        ]
        needs = needs_of(config, type(context.model).__name__)
        start_s = config.supervision.start_s
        for client in clients:
            owner = f"rollout-{context.index}"
            with context.waits.on("server", owner=owner, deadline_s=2 * start_s):
                await client.wait_there(start_s)
            await cls.takes(client, needs, shared=shares_servers(config))
        return clients

    @classmethod
    async def takes(cls, client: Any, needs: Needs, *, shared: bool) -> None:
        """Check that a server that runs already fits, and clear it. A `shared` one may have
        requests of other policies; those of an actor that died ended with its connection."""
        await cls.program().fits(client, needs)
        if not shared:
            await client.clear()

    @classmethod
    def client(
        cls, config: Config, address: ServerAddress | ServerProcess
    ) -> AbstractAsyncContextManager[Any]:
        """A client of one server."""
        return cls.program().open(address, publication_s(config))


@asynccontextmanager
async def _by_broadcast(
    context: EngineContext, client: Any, servers: Servers
) -> AsyncIterator[WeightLoader]:
    async with broadcast(context, servers) as way:
        yield weight_loader(context, client, way, servers, "abort")


def needs_of(config: Config, architecture: str) -> Needs:
    """The requirements of this run."""
    from asyncrl.engines.servers.other_model import Needs

    engine, lora = config.engine, config.model.lora
    return Needs(
        architecture,
        engine_dtype(config),
        engine.context_tokens,
        engine.slots,
        config.train.router_replay,
        lora.rank if lora.alone else 0,
    )


def _architecture(config: Config) -> str:
    """The class of the run's model; of the bundled one where none is given."""
    if not config.model.path:
        return BUNDLED
    try:
        architecture = _described(config)["architectures"][0]
    except (LookupError, TypeError):
        raise ConfigError(
            f"model.path is {config.model.path!r}, and config.json in it does not say its "
            "architecture."
        ) from None
    return str(architecture)


def _described(config: Config) -> dict[str, Any]:
    """The config.json of the run's model; empty where it cannot be read."""
    try:
        text = read_regular(Path(config.model.path) / "config.json", JSON_BYTES)
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
