"""The calls of a server. Invariant: an engine and its weights do not depend on the kind of server;
every call returns a typed answer, or raises a ServerError in bounded time.

Nothing is retried here: only the caller knows whether that is safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import httpx2
import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.http_connection import READY_WITHIN_S, HttpConnection
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.servers.server_types import (
    SAID,
    Mode,
    ModelInfo,
    RankChecksums,
    ServerInfo,
    StreamEvent,
    StreamEvents,
    StreamFailure,
)
from asyncrl.escape import escaped


class Served(Protocol):
    """The calls that an engine makes: to one server, or to several behind a router."""

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
        routing: RoutingLayout | None = ...,
        adapter: str = ...,
        images: Sequence[str] = ...,
        expanded: int = ...,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request, whose last event has an `ending`."""
        ...

    async def abort(self, rid: str) -> None:
        """Abort this request; it has ended when its stream has."""
        ...


class KeepsVersions(Protocol):
    """A `Served` that samples with several versions side by side."""

    def generate_of(
        self, version: int, rid: str, ids: NDArray[np.int32], **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request of a version that was loaded last, or is pinned."""
        ...

    def pin(self, version: int) -> None:
        """Keep the version that was loaded last until it is unpinned."""
        ...

    def unpin(self, version: int) -> None:
        """Let the next load forget a version that was pinned, if no stream uses it."""
        ...


class AskedTokens(NamedTuple):
    """One request, as `ServerClient.generate` takes it."""

    rid: str
    ids: NDArray[np.int32]
    max_new_tokens: int
    temperature: float
    stream_interval: int
    stop_ids: Sequence[int]
    extra_key: str
    routing: RoutingLayout | None = None
    adapter: str = ""
    images: Sequence[str] = ()


class Increments(Protocol):
    """The events of one request, each reduced to its new tokens."""

    def read(self, data: bytes) -> StreamEvent | StreamFailure | None:
        """The new tokens of one event; None for an event without any. Raises Garbled where its
        tokens cannot be determined, or lack log-probabilities."""
        ...


class ServerClient(ABC):
    """One server, through `open`. Every method raises ServerError: ServerGone, RequestRefused or
    Misread. A subclass defines the endpoints and fields of one kind of server."""

    READY: ClassVar[str]
    """The path that answers with 200 while the server takes requests."""
    GENERATE: ClassVar[str]
    """The path that a request is posted to."""
    BEGIN_UPDATE: ClassVar[str]
    END_UPDATE: ClassVar[str]
    """The paths that begin and end a transaction of weights."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection, self.url = connection, connection.url

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        api_key: str = "",
        socket: str = "",
        deadline_s: float = 60.0,
        silence_s: float = 600.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> AsyncIterator[Self]:
        """The server at `url` (`http://host:port`), or at the Unix socket `socket` where that is
        given, which need not exist yet.

        `deadline_s` bounds each answer; `silence_s` bounds slow ones: the time between two pieces
        of a stream, a pause, and transfers of weights (seconds). `transport` stands for the network
        in tests.
        """
        if socket:
            transport = httpx2.AsyncHTTPTransport(
                uds=socket, limits=httpx2.Limits(max_connections=None)
            )
        async with HttpConnection.open(
            url,
            api_key=api_key,
            deadline_s=deadline_s,
            silence_s=silence_s,
            transport=transport,
        ) as connection:
            yield cls(connection)

    # ---------------------------------------------------------------------------------- what it is

    async def ready(self) -> bool:
        """True if it takes requests now."""
        try:
            return await self._connection.status(self.READY, READY_WITHIN_S) == 200
        except ServerGone:
            return False

    async def answers(self) -> bool:
        """True if it answers; it may be paused."""
        return await self.ready()

    async def wait_ready(self, seconds: float) -> None:
        """Wait until it is ready. Raises ServerGone after `seconds`."""
        await self._connection.until(self.ready, "was not ready", seconds)

    async def wait_there(self, seconds: float) -> None:
        """Wait until it answers, since a server that a dead process paused would never be ready.
        Raises ServerGone after `seconds`."""
        await self._connection.until(self.answers, "did not answer", seconds)

    @abstractmethod
    async def model_info(self) -> ModelInfo:
        """The model that it serves, and the version of its weights."""

    @abstractmethod
    async def server_info(self) -> ServerInfo:
        """The options that it was started with."""

    # ---------------------------------------------------------------------------------- generation

    async def generate(
        self,
        rid: str,
        ids: NDArray[np.int32],
        *,
        max_new_tokens: int,
        temperature: float,
        stream_interval: int = 1,
        stop_ids: Sequence[int] = (),
        extra_key: str = "",
        routing: RoutingLayout | None = None,
        adapter: str = "",
        images: Sequence[str] = (),
        expanded: int = 0,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request; to stop early, use `contextlib.aclosing`. Closing the stream closes
        the connection, which ends the request on the server within seconds.

        `ids` (int32) must lie in the vocabulary: another id kills the server. `rid` must be as long
        as all others: an abort may match beginnings. An event comes at the first token and then
        about every `stream_interval` tokens, unless the server has that from its start; `extra_key`
        names the part of the prefix cache that this request shares. With a layout of `routing` the
        last event has the experts of the new tokens. With an `adapter` the tokens are sampled by
        the base with the adapter that was loaded under that name. `images` are files in base64, for
        each of which `ids` have one placeholder; the server puts as many there as it reads, and
        Misread is raised where this does not make `expanded` ids in all. The last event has an
        `ending`; a stream that breaks off without one raises ServerGone.
        """
        asked = AskedTokens(
            rid,
            ids,
            max_new_tokens,
            temperature,
            stream_interval,
            stop_ids,
            extra_key,
            routing,
            adapter,
            images,
        )
        sent = routing.sent(max_new_tokens) if routing is not None else 0
        events, increments = StreamEvents(max_new_tokens, sent), self._increments(routing)
        with self._connection.named(self.GENERATE):
            async with self._connection.stream(self.GENERATE, self._generation(asked)) as parts:
                async for data in parts:
                    for text in events.feed(data):
                        event = increments.read(text)
                        if event is None:
                            continue
                        if isinstance(event, StreamFailure):
                            raise self._refused(rid, "refused", event.message, event.code)
                        end = event.ending
                        if end is not None and (end.status_code or 0) >= 400:
                            raise self._refused(rid, "ended", end.message, end.status_code or 0)
                        if images and event.prompt_tokens != expanded:
                            raise Misread(
                                f"{self.url} made {event.prompt_tokens} ids of a request with "
                                f"images, and the model's own processor {expanded}"
                            )
                        yield event
                        if end is not None:
                            return
        raise ServerGone(f"{self.url} broke off the stream of request {rid}")

    def _refused(self, rid: str, did: str, message: str, status: int) -> RequestRefused:
        return RequestRefused(f"{self.url} {did} request {rid}: {escaped(message, SAID)}", status)

    @abstractmethod
    def _generation(self, asked: AskedTokens) -> Mapping[str, object]:
        """The body of a request for a stream with the log-probability of each token under the whole
        distribution. It sets every option, because a server may have been started with others, and
        its log-probabilities ignore truncation of the distribution."""

    @abstractmethod
    def _increments(self, routing: RoutingLayout | None) -> Increments:
        """The reader of one stream, which was asked for this routing."""

    @abstractmethod
    async def score(
        self, ids: NDArray[np.int32], *, extra_key: str = "", adapter: str = ""
    ) -> list[float]:
        """The log-probability of each id given those before it, at temperature 1, from one prefill:
        `len(ids) - 1` numbers."""

    @abstractmethod
    async def abort(self, rid: str) -> None:
        """Abort this request; it has ended when its stream has."""

    @abstractmethod
    async def abort_all(self) -> None:
        """Abort every request."""

    async def clear(self) -> None:
        """Clean up after an actor that died."""
        await self.abort_all()

    @abstractmethod
    async def pause(self, mode: Mode) -> None:
        """Stop decoding; new requests wait. With `abort` this returns when the server holds no
        request."""

    @abstractmethod
    async def resume(self) -> None:
        """Resume after `pause`; does nothing if it was not paused."""

    # ------------------------------------------------------------------------------------- weights

    @abstractmethod
    async def init_group(
        self, address: str, port: int, world: int, name: str, backend: str, *, first: int = 1
    ) -> None:
        """Join a group of `world` processes as its ranks from `first` on; rank 0 joins at
        `address`:`port` at the same time."""

    @abstractmethod
    async def destroy_group(self, name: str) -> None:
        """Leave the group."""

    async def begin_update(self) -> None:
        """Begin the transaction in which all parameters are updated."""
        await self._connection.control(self.BEGIN_UPDATE, {})

    async def end_update(self) -> None:
        """End the transaction."""
        await self._connection.control(self.END_UPDATE, {})

    @abstractmethod
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
        bytes), and call the weights `version`, or as before where that is None. Unknown names may
        be ignored silently, and a refusal may come after some or all weights changed."""

    async def update_from_disk(self, path: str, version: int, *, flush: bool) -> None:
        """Load a model directory that the server can see, and call the weights `version`. Raises
        ValueError where this kind of server cannot load from a disk."""
        raise ValueError(f"{self.url} cannot load weights from a disk")

    @abstractmethod
    async def checksums(self) -> list[RankChecksums]:
        """Checksums of the weights of each rank, in the order of ranks."""

    # ------------------------------------------------------------------------------------ adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load the adapter of a folder in peft's format, which the server can see. Raises
        RequestRefused, and ValueError where this kind of server takes none."""
        raise ValueError(f"{self.url} takes no adapters")

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter, when no request uses it any more."""
        raise ValueError(f"{self.url} takes no adapters")

    async def adapters(self) -> list[str]:
        """The names of the adapters that it has loaded."""
        return []
