"""The calls of one vLLM server, which must have been started as `vllm_launch.command` does; other
options are rejected before a run (`vllm_fit`)."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.http_connection import CHECKSUM_BYTES, HttpConnection
from asyncrl.engines.servers.served import AskedTokens, ServerClient
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.servers.server_types import (
    Mode,
    ModelInfo,
    RankChecksums,
    ServedModels,
    ServerInfo,
    StreamEvent,
    largest_event,
)
from asyncrl.engines.vllm.vllm_types import (
    Paused,
    ScoredPrompt,
    VllmChecksums,
    VllmConfigs,
    VllmIncrements,
    VllmStart,
    VllmVersion,
    WeightInfo,
)
from asyncrl.runtime.ipc.waits import Pulse
from asyncrl.words import whole

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
"""Options of each request."""


class VllmClient(ServerClient):
    """One vLLM server, through `open`."""

    READY = "/health"
    GENERATE = "/inference/v1/generate"
    BEGIN_UPDATE = "/start_weight_update"
    END_UPDATE = "/finish_weight_update"

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__(connection)
        self._version = ""  # of the weights that are served; queried if it was not set here
        self._open = set[str]()  # requests whose stream is read
        self._unheard = set[str]()  # those of them without an event yet
        self._changed = Pulse()
        self._going = trio.Event()  # unset from a pause on until the end of it
        self._going.set()

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
        self, rid: str, ids: NDArray[np.int32], **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Generate as on any server; it waits for the end of a pause, also of one that another
        client began, in which vLLM 0.33 refuses what 0.32 lets wait. The server's start options set
        the interval of events: `stream_interval` has no effect."""
        if not self._version:
            self._version = (await self.model_info()).weight_version
        begun = asked_again = False
        while True:
            while not self._going.is_set():
                await self._going.wait()
            try:
                async with aclosing(self._generated(rid, ids, options)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except RequestRefused as refusal:
                if begun or not refusal.later:
                    raise
                if not await self._waited_for_resume():
                    if asked_again:
                        raise
                    asked_again = True  # the pause may just have ended

    async def _generated(
        self, rid: str, ids: NDArray[np.int32], options: Mapping[str, Any]
    ) -> AsyncGenerator[StreamEvent, None]:
        """One try of a request, which a pause waits for."""
        self._open.add(rid)
        self._unheard.add(rid)
        try:
            async with aclosing(super().generate(rid, ids, **options)) as events:
                async for event in events:
                    self._unheard.discard(rid)
                    self._changed.set()
                    yield event
        finally:
            self._open.discard(rid)
            self._unheard.discard(rid)
            self._changed.set()

    async def _waited_for_resume(self) -> bool:
        """Wait while the server is paused; False where it is not. Raises ServerGone after the
        longest silence."""
        if not await self._paused():
            return False

        async def resumed() -> bool:
            return not await self._paused()

        failed = "is paused by another client, and was not resumed"
        await self._connection.until(resumed, failed, self._connection.silence_s)
        return True

    async def _paused(self) -> bool:
        return (await self._connection.get("/is_paused", Paused)).is_paused

    def _generation(self, asked: AskedTokens) -> Mapping[str, object]:
        sampling = {
            "max_tokens": asked.max_new_tokens,
            "temperature": asked.temperature,
            "stop_token_ids": list(asked.stop_ids),
            "ignore_eos": True,  # only the stop ids above end a response, not those of the model
            "logprobs": 0,
            "detokenize": False,
        } | WHOLE_DISTRIBUTION
        if asked.routing is not None:
            # at the last position the first new token is predicted
            sampling["routed_experts_prompt_start"] = len(asked.ids) - 1
        return {
            "request_id": asked.rid,
            "token_ids": asked.ids.tolist(),
            "sampling_params": sampling,
            "stream": True,
            **_of(asked.adapter),
        } | _salt(asked.extra_key)

    def _increments(self, routing: RoutingLayout | None) -> VllmIncrements:
        return VllmIncrements(self._version, routing)

    async def score(
        self, ids: NDArray[np.int32], *, extra_key: str = "", adapter: str = ""
    ) -> list[float]:
        body = {
            "token_ids": ids.tolist(),
            "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
            **_of(adapter),
        } | _salt(extra_key)
        most = largest_event(2 * len(ids))
        answer = await self._connection.post(self.GENERATE, body, ScoredPrompt, most)
        entries = [
            (entry or {}).get(str(id))
            for entry, id in zip(answer.prompt_logprobs[1:], body["token_ids"][1:], strict=False)
        ]
        if len(answer.prompt_logprobs) != len(ids) or None in entries:
            raise Misread(
                f"{self.url} scored other ids than the {len(ids)} it was given: "
                f"{len(answer.prompt_logprobs)} came back"
            )
        return [
            math.nan if entry is None or entry.logprob is None else entry.logprob
            for entry in entries
        ]

    async def abort(self, rid: str) -> None:
        await self._connection.tell(
            "/inference/v1/abort_requests", {"request_ids": [OF_REQUEST + rid]}
        )

    async def abort_all(self) -> None:
        await self._connection.tell("/abort_requests", {})

    async def clear(self) -> None:
        await self.resume()
        await self.abort_all()

    async def pause(self, mode: Mode) -> None:
        """Abort every request and pause; returns when the server holds none, and each stream was
        read to its end. Only the mode `abort` is supported.

        A request that reached the server after the pause would wait there, be sampled by the next
        version, and be counted under the old one: vLLM reports versions only at a request's end. So
        the server is paused once each request had an event, and no other is sent before `resume`.
        """
        if mode != "abort":
            raise ValueError(f"a vLLM server is paused by abort, not by {mode}")
        self._going = trio.Event()
        await self._until_none(self._unheard, "did not begin")
        await self._connection.tell("/pause?mode=abort", {}, slow=True)
        await self._until_none(self._open, "did not end")

    async def _until_none(self, requests: set[str], failed: str) -> None:
        """Wait until `requests` is empty. Raises ServerGone after the longest silence."""
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
        """End the update as on any server. The pause cleared the prefix cache, so `flush` is
        ignored."""
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

    async def checksums(self) -> list[RankChecksums]:
        asked = {"action": "checksum"}
        answer = await self._connection.post(
            "/weight_checker", asked, VllmChecksums, CHECKSUM_BYTES
        )
        ranks: dict[str, dict[str, str]] = {}
        for name, digest in answer.checksums.items():
            rank, _, tensor = name.rpartition(":")
            ranks.setdefault(rank, {})[tensor] = digest[:HASH_DIGITS]
        return [RankChecksums(ranks[rank], "") for rank in sorted(ranks, key=_numbers)]

    # ------------------------------------------------------------------------------------ adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        body = {"lora_name": name, "lora_path": folder}
        await self._connection.tell("/v1/load_lora_adapter", body, slow=True)

    async def unload_adapter(self, name: str) -> None:
        await self._connection.tell("/v1/unload_lora_adapter", {"lora_name": name}, slow=True)

    async def adapters(self) -> list[str]:
        served = await self._connection.get("/v1/models", ServedModels)
        return [each.id for each in served.data if each.parent is not None]


def _of(adapter: str) -> dict[str, str]:
    """The name of a request's model, which is its base's own unless it names an adapter."""
    return {"model": adapter} if adapter else {}


def _salt(extra_key: str) -> dict[str, str]:
    """The name of a part of the prefix cache as vLLM accepts it, without `/`."""
    return {"cache_salt": extra_key.replace("/", "-")} if extra_key else {}


def _numbers(rank: str) -> list[int]:
    """The sort key of a rank.

    >>> sorted(["dp0:pp0:tp10", "dp0:pp0:tp2"], key=_numbers)
    ['dp0:pp0:tp2', 'dp0:pp0:tp10']
    """
    return [whole(re.sub(r"[^0-9]", "", part)) or 0 for part in rank.split(":")]
