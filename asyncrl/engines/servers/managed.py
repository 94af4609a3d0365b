"""A server of one kind on this machine: its program, and its start."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from asyncrl.config.gpus import visible
from asyncrl.engines.servers.kept_servers import ServerAddress
from asyncrl.engines.servers.other_model import Needs
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_environment import ServerPackage
from asyncrl.engines.servers.server_process import (
    TAKEN_OVER_S,
    Keeping,
    ServerLaunch,
    ServerProcess,
    ServerStart,
    server_process,
)
from asyncrl.runtime.ipc.keys import write_key

Client = TypeVar("Client", bound=ServerClient)

NOWHERE = ServerAddress("http://127.0.0.1:0")


class ServerProgram(NamedTuple, Generic[Client]):
    """Description of one kind of server, for its engine.

    `client` makes its calls. `fits` queries a server, and raises Incompatible where it does not fit
    a run. `address` is that of a new server with a folder of its own. `command` is the command line
    of a server at an address, with the file of its key where it has one; the launch's `arguments`
    come last, and so override the others. `environment` has the additional variables of a server on
    these cores; it also reads those of ours that begin with `prefix`. `package` is what must be
    installed for it.
    """

    client: type[Client]
    fits: Callable[[Client, Needs], Awaitable[None]]
    address: Callable[[Path], ServerAddress]
    command: Callable[[ServerLaunch, ServerAddress, Path], list[str]]
    environment: Callable[[ServerLaunch, Sequence[int]], dict[str, str]]
    prefix: str
    package: ServerPackage

    def open(
        self, address: ServerAddress | ServerProcess, deadline_s: float = 60.0
    ) -> AbstractAsyncContextManager[Client]:
        """A client of the server at this address, which has `deadline_s` for each answer."""
        return self.client.open(
            address.url, api_key=address.key, socket=address.socket, deadline_s=deadline_s
        )


def offline(launch: ServerLaunch) -> dict[str, str]:
    """The variables of any server: it downloads nothing, and uses its own GPUs."""
    always = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if launch.gpus:
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        always["CUDA_VISIBLE_DEVICES"] = visible(launch.gpus, allowed)
    return always


@asynccontextmanager
async def managed(
    program: ServerProgram[Client],
    launch: ServerLaunch,
    *,
    log: Path,
    name: str = "server",
    cores: Collection[int] | None = None,
    ready_s: float = 600.0,
    extra_environment: Mapping[str, str] | None = None,
    keeping: Keeping | None = None,
) -> AsyncIterator[ServerProcess]:
    """A server for the length of the block, started and ready within `ready_s` seconds, on `cores`
    alone where given; or a kept one that is taken over.

    Its output goes to `log`, and its key, if it has one, is in a file beside that until it is
    ready. Use it in the main thread. Raises ServerGone where it dies before it is ready, or is not
    ready in time; it leaves no process then. In the block, run `watch` concurrently.
    """
    heeded = {n: value for n, value in os.environ.items() if n.startswith(program.prefix)}
    variables = heeded | program.environment(launch, sorted(cores or os.sched_getaffinity(0)))
    variables |= extra_environment or {}
    key_file = log.with_name(f"{name}-key.yaml")  # SGLang reads no other kind

    def begin(files: Path) -> tuple[list[str], ServerAddress]:
        address = program.address(files)
        if address.key:
            write_key(key_file, msgspec.json.encode({"api-key": address.key}))
        return program.command(launch, address, key_file), address

    async def ready(server: ServerProcess) -> None:
        try:
            async with program.open(server) as client:
                await client.wait_ready(ready_s)
        finally:
            key_file.unlink(missing_ok=True)

    async def answers(server: ServerProcess) -> None:
        async with program.open(server) as client:
            await client.wait_there(TAKEN_OVER_S)

    start = ServerStart(
        name=name,
        log=log,
        cores=cores,
        environment=variables,
        like=program.command(launch, NOWHERE, Path()),
        begin=begin,
        ready=ready,
        answers=answers,
    )
    async with server_process(start, keeping) as server:
        yield server
