"""The calls of one SGLang server. Invariant: a call returns a typed answer or raises a named error
in bounded time.

Nothing is tried again here: who calls knows whether that is safe. Requests to a server that is
paused wait for as long as it is paused, and an abort that meets one is lost, so the engine sends
neither while it has its server paused.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import httpx2
import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.http_connection import (
    CHECKSUM_BYTES,
    READY_WITHIN_S,
    HttpConnection,
)
from asyncrl.engines.servers.server_types import (
    SAID,
    ModelInfo,
    RankChecksums,
    ServerInfo,
    StreamEvent,
    StreamEvents,
    largest_event,
)
from asyncrl.engines.sglang.http_types import (
    Entry,
    Increments,
    Loads,
    PromptScores,
    ServerFailure,
    ServerLoad,
)
from asyncrl.escape import escaped

Mode = Literal["retract", "in_place", "abort"]
"""The effect of a pause on unfinished requests: they go back to the queue and are recomputed, are
frozen with their cache, or end."""

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Options of each request: a server may have been started with others, and its log-probabilities
are not those of what is cut."""


class SglangClient:
    """One server, through `open`. Every method raises ServerError: ServerGone, RequestRefused or
    Misread."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection, self.url = connection, connection.url

    @staticmethod
    @asynccontextmanager
    async def open(
        url: str,
        *,
        api_key: str = "",
        deadline_s: float = 60.0,
        silence_s: float = 600.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> AsyncIterator[SglangClient]:
        """The server at `url` (`http://host:port`), which need not be there yet.

        `deadline_s` bounds each answer, and `silence_s` what may take long: the time between two
        pieces of a stream, a pause, and whatever moves weights (seconds). `transport` stands for
        the network in tests.
        """
        async with HttpConnection.open(
            url,
            api_key=api_key,
            deadline_s=deadline_s,
            silence_s=silence_s,
            transport=transport,
        ) as connection:
            yield SglangClient(connection)

    # ---------------------------------------------------------------------------------- what it is

    async def ready(self) -> bool:
        """True if it takes requests now: it is there, healthy and not paused."""
        try:
            return await self._connection.status("/ready", READY_WITHIN_S) == 200
        except ServerGone:
            return False

    async def answers(self) -> bool:
        """True if it says what it serves: it is there, and may be paused."""
        try:
            await self.model_info()
        except (ServerGone, RequestRefused):
            return False
        return True

    async def wait_ready(self, seconds: float) -> None:
        """Wait until it is ready. Raises ServerGone after `seconds`."""
        await self._connection.until(self.ready, "was not ready", seconds)

    async def wait_there(self, seconds: float) -> None:
        """Wait until it answers: one that was paused by somebody who died would never be ready.
        Raises ServerGone after `seconds`."""
        await self._connection.until(self.answers, "did not answer", seconds)

    async def model_info(self) -> ModelInfo:
        return await self._connection.get("/model_info", ModelInfo)

    async def server_info(self) -> ServerInfo:
        return await self._connection.get("/server_info", ServerInfo)

    async def load(self) -> ServerLoad:
        """The number of requests that it holds, as of its last report to itself."""
        found = await self._connection.get("/v1/loads?include=core", Loads)
        return ServerLoad(
            sum(rank.num_running_reqs for rank in found.loads),
            sum(rank.num_waiting_reqs for rank in found.loads),
        )

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
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request; where you may stop early, do so inside `contextlib.aclosing`. Closing
        it closes the connection, which ends the request on the server within seconds.

        `ids` (int32) must lie in the vocabulary: another id kills the server. `rid` must be as long
        as all others: an abort matches beginnings. An event comes at the first token and then about
        every `stream_interval` tokens; `extra_key` names the part of the prefix cache that this
        request shares. The last event has an `ending`; a stream that breaks off without one raises
        ServerGone.
        """
        sampling = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "stream_interval": stream_interval,
            "stop_token_ids": list(stop_ids),
        } | WHOLE_DISTRIBUTION
        body = {
            "rid": rid,
            "input_ids": ids.tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": True,
            "extra_key": extra_key or None,
        }
        events, increments = StreamEvents(max_new_tokens), Increments()
        with self._connection.named("/generate"):
            async with self._connection.stream("/generate", body) as parts:
                async for data in parts:
                    for text in events.feed(data):
                        event = increments.read(text)
                        if isinstance(event, ServerFailure):
                            raise RequestRefused(
                                f"{self.url} refused request {rid}: {escaped(event.message, SAID)}",
                                event.code,
                            )
                        if (
                            event.ending is not None
                            and event.ending.status_code is not None
                            and event.ending.status_code >= 400
                        ):
                            raise RequestRefused(
                                f"{self.url} ended request {rid}: "
                                f"{escaped(event.ending.message, SAID)}",
                                event.ending.status_code,
                            )
                        yield event
                        if event.ending is not None:
                            return
        raise ServerGone(f"{self.url} broke off the stream of request {rid}")

    async def score(self, ids: NDArray[np.int32], *, extra_key: str = "") -> list[float]:
        """The log-probability of each id given those before it, at temperature 1, from one prefill:
        `len(ids) - 1` numbers."""
        entries = await self._prefilled(ids, extra_key=extra_key or None)
        return [math.nan if entry[0] is None else entry[0] for entry in entries[1:]]

    async def texts(self, ids: NDArray[np.int32]) -> list[str | None]:
        """The text of each id in the server's vocabulary; None from a server without a tokenizer.
        An id that it does not have may end the server."""
        entries = await self._prefilled(ids, return_text_in_logprobs=True)
        return [text if isinstance(text := entry[2], str) else None for entry in entries]

    async def _prefilled(self, ids: NDArray[np.int32], **more: object) -> list[Entry]:
        """One entry for each id, from one prefill."""
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        } | more
        most = largest_event(len(ids))
        entries = (
            await self._connection.post("/generate", body, PromptScores, most)
        ).meta_info.input_token_logprobs
        if [entry[1] for entry in entries] != body["input_ids"]:
            raise Misread(
                f"{self.url} scored other ids than the {len(ids)} it was given: {len(entries)} "
                "came back"
            )
        return entries

    async def abort(self, rid: str) -> None:
        """Ask that this request end; it has ended when its stream has. An abort that comes before
        its request reached the scheduler is lost, and others of the same request are then ignored.
        """
        await self._connection.tell("/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        await self._connection.tell("/abort_request", {"abort_all": True})

    async def pause(self, mode: Mode) -> None:
        """Stop decoding; new requests wait. With `abort` this returns when nothing is left on the
        server."""
        await self._connection.tell("/pause_generation", {"mode": mode}, slow=True)

    async def resume(self) -> None:
        await self._connection.tell("/continue_generation", {})

    async def flush(self) -> None:
        """Forget the prefix cache. Refused while requests are running or frozen."""
        await self._connection.tell("/flush_cache", {})

    # ------------------------------------------------------------------------------------- weights

    async def init_group(
        self, address: str, port: int, world: int, name: str, backend: str, *, first: int = 1
    ) -> None:
        """Join a group of `world` processes as its ranks from `first` on; rank 0 meets it at
        `address`:`port` at the same time."""
        meeting = {
            "master_address": address,
            "master_port": port,
            "rank_offset": first,
            "world_size": world,
        }
        await self._connection.control(
            "/init_weights_update_group", meeting | {"group_name": name, "backend": backend}
        )

    async def destroy_group(self, name: str) -> None:
        await self._connection.control("/destroy_weights_update_group", {"group_name": name})

    async def begin_update(self) -> None:
        await self._connection.control("/begin_weight_update", {})

    async def end_update(self) -> None:
        await self._connection.control("/end_weight_update", {})

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
        bytes), and call the weights `version`, or as before where that is None. Unknown names are
        taken without a word, and a refusal may come after some or all was changed."""
        body = {
            "names": list(names),
            "dtypes": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
            "group_name": group,
            "weight_version": None if version is None else str(version),
            "flush_cache": flush,
            "load_format": "flattened_bucket",
        }
        await self._connection.control("/update_weights_from_distributed", body)

    async def update_from_disk(self, path: str, version: int, *, flush: bool) -> None:
        """Load a model directory that the server can see, and call the weights `version`."""
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flush}
        await self._connection.control("/update_weights_from_disk", body)

    async def checksums(self) -> list[RankChecksums]:
        """Checksums of what each rank holds now, in the order of ranks."""
        asked = {"action": "checksum"}
        return (await self._connection.control("/weights_checker", asked, CHECKSUM_BYTES)).ranks
