"""The engine `sglang` whose servers' weights the trainer writes. Invariant: while it is paused, the
gate is shut: no request and no abort goes to a server, and no chunk leaves.

The trainer manages the weights of a paused server (`asyncrl.weightsync.servers`); this file pauses
and resumes it. Resuming after an aborted publication takes calls, so it is done in `run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Emit, Idle
from asyncrl.engines.servers.gather import gather
from asyncrl.engines.servers.served import Served
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.servers.server_images import ServerImages
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.runtime.ipc.waits import Pulse

if TYPE_CHECKING:
    import torch


class StandingServer(Protocol):
    """One server whose weights the trainer writes (`asyncrl.weightsync.servers.direct_server`)."""

    async def pause(self) -> None: ...

    async def adopt(self, version: int, reference: Sequence[float]) -> None: ...

    async def resume(self) -> None: ...


class DirectSglangEngine(ServerEngine):
    """A `DirectEngine` and `CanaryEngine` (see `protocol`) of one or several `servers`, with
    requests through `client`. The weights are the servers': `quiesce` returns none."""

    def __init__(
        self,
        client: Served,
        servers: Sequence[StandingServer],
        options: EngineOptions,
        *,
        vocab_size: int,
        stop_ids: frozenset[int],
        idle: Idle = nullcontext,
        routing: RoutingLayout | None = None,
        images: ServerImages | None = None,
    ) -> None:
        super().__init__(
            client,
            _refused,
            options,
            vocab_size=vocab_size,
            stop_ids=stop_ids,
            idle=idle,
            routing=routing,
            images=images,
        )
        self.servers = servers
        self._still, self._since = False, 0.0
        self._going_on = Pulse()

    async def quiesce(self) -> Mapping[str, torch.Tensor]:
        """Pause all servers."""
        async with self._loads:
            if not self._still:
                # with the gate shut none can end, and all of them were aborted already
                while self._gate.is_set() and (
                    pinned := [live for live in self._live if live.request.version is not None]
                ):
                    self._stop(lambda request: request.version is not None)
                    await pinned[0].ended.wait()
                self._shut()
                self._still, self._since = True, trio.current_time()  # also one that is cancelled
                await self._all(lambda server: server.pause())
        return {}

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        """Resume as the protocol says; `pin` is not honoured. Raises HalfLoaded."""
        async with self._loads:
            canary = self._expected(version)
            await self._all(lambda server: server.adopt(version, canary))
            self._still = False
            self._serve(version)
            return trio.current_time() - self._since

    def resume(self) -> None:
        """Resume with the old weights, soon."""
        if self._still:
            self._still = False
            self._going_on.set()

    async def run(self, emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._go_on)
            await super().run(emit)

    async def _go_on(self) -> None:
        while True:
            await self._going_on.wait()
            async with self._loads:
                if not self._still:  # else it must be paused again
                    await self._all(lambda server: server.resume())
                    self._serve(self._version)

    async def _all(self, call: Callable[[StandingServer], Awaitable[None]]) -> None:
        await gather(*(partial(call, server) for server in self.servers))


async def _refused(
    version: int, weights: object, canary: Sequence[float], stop: Callable[[], None]
) -> float:
    raise ValueError(f"version {version} was staged, but these servers take direct publications")
