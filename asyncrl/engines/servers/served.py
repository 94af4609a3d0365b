"""Protocols of the calls that are made of a server. Invariant: an engine and its weights know
nothing of whose server it is; every call raises ServerError, and returns in bounded time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.server_types import (
    Mode,
    ModelInfo,
    RankChecksums,
    ServerInfo,
    StreamEvent,
)


class Served(Protocol):
    """The calls that an engine makes of who serves it: one server, or several behind a router."""

    @property
    def url(self) -> str: ...

    async def ready(self) -> bool:
        """True if it takes requests now."""
        ...

    def generate(
        self,
        rid: str,
        ids: NDArray[np.int32],
        *,
        max_new_tokens: int,
        temperature: float,
        stream_interval: int = ...,
        stop_ids: Sequence[int] = ...,
        extra_key: str = ...,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request, whose last event has an `ending`."""
        ...

    async def abort(self, rid: str) -> None:
        """Ask that this request end; it has ended when its stream has."""
        ...


class ServerClient(Served, Protocol):
    """The calls by which one server is given weights."""

    async def model_info(self) -> ModelInfo: ...

    async def server_info(self) -> ServerInfo: ...

    async def pause(self, mode: Mode) -> None:
        """Have it stand still until `resume`."""
        ...

    async def resume(self) -> None: ...

    async def score(self, ids: NDArray[np.int32], *, extra_key: str = "") -> list[float]:
        """The log-probability of each id given those before it, at temperature 1: `len(ids) - 1`
        numbers."""
        ...

    async def checksums(self) -> list[RankChecksums]:
        """Checksums of what each rank holds now, in the order of ranks."""
        ...

    async def init_group(
        self, address: str, port: int, world: int, name: str, backend: str, *, first: int = 1
    ) -> None:
        """Join a group of `world` processes as its ranks from `first` on; rank 0 meets it at
        `address`:`port` at the same time."""
        ...

    async def destroy_group(self, name: str) -> None: ...

    async def begin_update(self) -> None: ...

    async def end_update(self) -> None: ...

    async def update(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        group: str,
        version: int | None,
        flush: bool,
    ) -> None:
        """Take these parameters, in this order, from one broadcast of rank 0 (a flattened bucket of
        bytes), and call the weights `version`, or as before where that is None."""
        ...

    async def update_from_disk(self, path: str, version: int, *, flush: bool) -> None:
        """Load a model directory that the server can see, and call the weights `version`."""
        ...
