"""The calls of one vLLM server. Invariant: a call returns a typed answer or raises a named error in
bounded time.

Nothing is tried again here: who calls knows whether that is safe. The server must have been started
as `vllm_launch.command` does; what it does otherwise is found before a run (`vllm_fit`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx2
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.http_connection import (
    CHECKSUM_BYTES,
    READY_WITHIN_S,
    HttpConnection,
)
from asyncrl.engines.servers.server_types import (
    SAID,
    Mode,
    ModelInfo,
    RankChecksums,
    ServerInfo,
    StreamEvent,
    StreamEvents,
    largest_event,
)
from asyncrl.engines.vllm.vllm_types import (
    DONE,
    ScoredPrompt,
    VllmChecksums,
    VllmConfigs,
    VllmFailure,
    VllmIncrements,
    VllmStart,
    VllmVersion,
    WeightInfo,
)
from asyncrl.escape import escaped
from asyncrl.ipc.waits import Pulse

HASH_DIGITS = 16
"""Digits of SHA-256 that are compared, as of other servers."""
OF_REQUEST = "generate-tokens-"
"""The beginning that vLLM gives every request's id."""

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Options of each request: a model's `generation_config.json` may say others, and log-probabilities
are not those of what is cut."""


class VllmClient:
    """One server, through `open`. Every method raises ServerError: ServerGone, RequestRefused or
    Misread. It is a `ServerClient`."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection, self.url = connection, connection.url
        self._version = ""  # of the weights that are served; asked for where nobody said it here
        self._open = set[str]()  # requests whose stream is read
        self._unheard = set[str]()  # those of them of which the server has said nothing yet
        self._changed = Pulse()
        self._going = trio.Event()  # unset from a pause on until the end of it
        self._going.set()

    @staticmethod
    @asynccontextmanager
    async def open(
        url: str,
        *,
        api_key: str = "",
        socket: str = "",
        deadline_s: float = 60.0,
        silence_s: float = 600.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> AsyncIterator[VllmClient]:
        """The server at `url` (`http://host:port`), or at the Unix socket `socket` where that is
        given, which need not be there yet.

        `deadline_s` bounds each answer, and `silence_s` what may take long: the time between two
        pieces of a stream, a pause, and whatever moves weights (seconds). `transport` stands for
        the network in tests.
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
            yield VllmClient(connection)

    # ---------------------------------------------------------------------------------- what it is

    async def ready(self) -> bool:
        """True if it takes requests now."""
        try:
            return await self._connection.status("/health", READY_WITHIN_S) == 200
        except ServerGone:
            return False

    async def wait_ready(self, seconds: float) -> None:
        """Wait until it answers. Raises ServerGone after `seconds`."""
        await self._connection.until(self.ready, "was not ready", seconds)

    async def model_info(self) -> ModelInfo:
        start = (await self.start()).model_config
        info = await self._connection.get("/weight_info", WeightInfo)
        return ModelInfo(model_path=start.model, weight_version=info.weight_version)

    async def server_info(self) -> ServerInfo:
        start = await self.start()
        version = await self._connection.get("/version", VllmVersion)
        model, parallel = start.model_config, start.parallel_config
        return ServerInfo(
            version=version.version,
            model_path=model.model,
            dtype=model.dtype.removeprefix("torch."),
            device="cpu",  # everywhere it hashes what it has copied to the processor
            tp_size=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
            dp_size=parallel.data_parallel_size,
            skip_tokenizer_init=model.skip_tokenizer_init,
            context_length=model.max_model_len,
            max_running_requests=start.scheduler_config.max_num_seqs,
        )

    async def start(self) -> VllmConfigs:
        """The configuration that it was started with."""
        return (
            await self._connection.get("/server_info?config_format=json", VllmStart)
        ).vllm_config

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
        it closes the connection, which ends the request on the server.

        `ids` (int32) must lie in the vocabulary: another id kills the server. An event comes at the
        first token and then as often as the server was told at its start: `stream_interval` has no
        say. `extra_key` names the part of the prefix cache that this request shares. The last event
        has an `ending`; a stream that breaks off without one raises ServerGone.
        """
        sampling = {
            "max_tokens": max_new_tokens,
            "temperature": temperature,
            "stop_token_ids": list(stop_ids),
            "ignore_eos": True,  # what ends a response is said above, whatever the model says
            "logprobs": 0,
            "detokenize": False,
        } | WHOLE_DISTRIBUTION
        body = {
            "request_id": rid,
            "token_ids": ids.tolist(),
            "sampling_params": sampling,
            "stream": True,
        } | _salt(extra_key)
        path = "/inference/v1/generate"
        if not self._version:
            self._version = (await self.model_info()).weight_version
        while not self._going.is_set():
            await self._going.wait()
        # from here on a pause waits for this request
        events, increments = StreamEvents(max_new_tokens), VllmIncrements(self._version)
        self._open.add(rid)
        self._unheard.add(rid)
        try:
            with self._connection.named(path):
                async with self._connection.stream(path, body) as parts:
                    async for data in parts:
                        for text in events.feed(data):
                            if text == DONE:
                                continue
                            event = increments.read(text)
                            if isinstance(event, VllmFailure):
                                raise RequestRefused(
                                    f"{self.url} refused request {rid}: "
                                    f"{escaped(event.message, SAID)}",
                                    event.code,
                                )
                            self._unheard.discard(rid)
                            self._changed.set()
                            yield event
                            if event.ending is not None:
                                return
            raise ServerGone(f"{self.url} broke off the stream of request {rid}")
        finally:
            self._open.discard(rid)
            self._unheard.discard(rid)
            self._changed.set()

    async def score(self, ids: NDArray[np.int32], *, extra_key: str = "") -> list[float]:
        """The log-probability of each id given those before it, at temperature 1, from one prefill:
        `len(ids) - 1` numbers."""
        body = {
            "token_ids": ids.tolist(),
            "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
        } | _salt(extra_key)
        path = "/inference/v1/generate"
        found = await self._connection.post(path, body, ScoredPrompt, largest_event(2 * len(ids)))
        entries = [
            (entry or {}).get(str(id))
            for entry, id in zip(found.prompt_logprobs[1:], body["token_ids"][1:], strict=False)
        ]
        if len(found.prompt_logprobs) != len(ids) or None in entries:
            raise Misread(
                f"{self.url} scored other ids than the {len(ids)} it was given: "
                f"{len(found.prompt_logprobs)} came back"
            )
        return [
            math.nan if entry is None or entry.logprob is None else entry.logprob
            for entry in entries
        ]

    async def abort(self, rid: str) -> None:
        """Ask that this request end; it has ended when its stream has."""
        await self._connection.tell(
            "/inference/v1/abort_requests", {"request_ids": [OF_REQUEST + rid]}
        )

    async def abort_all(self) -> None:
        await self._connection.tell("/abort_requests", {})

    async def pause(self, mode: Mode) -> None:
        """End every request and stand still; returns when nothing is left on the server, and each
        stream has been read to its end. No other mode than `abort` is known here.

        A request that reached the server behind the pause would wait there, and be sampled by the
        next version, where its tokens are taken for the last one's: vLLM says versions at a
        request's end alone. So the server is paused when it has said something of each request, and
        no other is sent before `resume`.
        """
        if mode != "abort":
            raise ValueError(f"a vLLM server is paused by abort, not by {mode}")
        self._going = trio.Event()
        await self._until_none(self._unheard, "did not begin")
        await self._connection.tell("/pause?mode=abort", {}, slow=True)
        await self._until_none(self._open, "did not end")

    async def _until_none(self, requests: set[str], failed: str) -> None:
        """Wait until there is none of these. Raises ServerGone after the longest silence."""
        with trio.move_on_after(self._connection.silence_s) as scope:
            while requests:
                await self._changed.wait()
        if scope.cancelled_caught:
            raise ServerGone(f"{self.url} {failed} {len(requests)} of its requests, and is paused")

    async def resume(self) -> None:
        await self._connection.tell("/resume", {})
        self._going.set()

    # ------------------------------------------------------------------------------------- weights

    async def init_group(
        self, address: str, port: int, world: int, name: str, backend: str, *, first: int = 1
    ) -> None:
        """Join a group of `world` processes as its ranks from `first` on; rank 0 meets it at
        `address`:`port` at the same time."""
        meeting = {
            "address": address,
            "port": port,
            "world": world,
            "first": first,
            "name": name,
            "backend": backend,
        }
        await self._connection.control("/init_weight_transfer_engine", {"init_info": meeting})

    async def destroy_group(self, name: str) -> None:
        await self._connection.control("/shutdown_weight_transfer_engine", {})

    async def begin_update(self) -> None:
        await self._connection.control("/start_weight_update", {})

    async def end_update(self) -> None:
        await self._connection.control("/finish_weight_update", {})

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
        bytes), and call the weights `version`, or as before where that is None. The prefix cache
        was forgotten by the pause, so `flush` is."""
        bucket = {
            "names": list(names),
            "dtypes": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
        }
        await self._connection.control("/update_weights", {"update_info": bucket})
        if version is not None:
            self._version = str(version)
            named = {"new_version": self._version}
            await self._connection.control("/update_weight_version", named)

    async def update_from_disk(self, path: str, version: int, *, flush: bool) -> None:
        """Refuse: a vLLM server is given weights by broadcast alone."""
        raise ValueError("a vLLM server takes no weights from a disk here")

    async def checksums(self) -> list[RankChecksums]:
        """Checksums of what each rank holds now, in the order of ranks."""
        asked = {"action": "checksum"}
        found = await self._connection.post("/weight_checker", asked, VllmChecksums, CHECKSUM_BYTES)
        ranks: dict[str, dict[str, str]] = {}
        for name, digest in found.checksums.items():
            place, _, tensor = name.rpartition(":")
            ranks.setdefault(place, {})[tensor] = digest[:HASH_DIGITS]
        return [RankChecksums(ranks[place], "") for place in sorted(ranks, key=_numbers)]


def _salt(extra_key: str) -> dict[str, str]:
    """The part of the prefix cache as vLLM takes its name, which has no `/`."""
    return {"cache_salt": extra_key.replace("/", "-")} if extra_key else {}


def _numbers(place: str) -> list[int]:
    """The order of ranks.

    >>> sorted(["dp0:pp0:tp10", "dp0:pp0:tp2"], key=_numbers)
    ['dp0:pp0:tp2', 'dp0:pp0:tp10']
    """
    return [int("".join(filter(str.isdigit, part)) or 0) for part in place.split(":")]
