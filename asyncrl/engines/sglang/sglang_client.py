"""The calls of one SGLang server.

Requests to a paused server wait for the end of the pause, and an abort during a pause is lost, so
the engine sends neither while its server is paused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerGone
from asyncrl.engines.servers.http_connection import CHECKSUM_BYTES
from asyncrl.engines.servers.served import AskedTokens, ServerClient
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.servers.server_types import (
    Mode,
    ModelInfo,
    RankChecksums,
    ServedModels,
    ServerInfo,
    largest_event,
)
from asyncrl.engines.sglang.http_types import (
    Entry,
    Loads,
    PromptScores,
    ServerLoad,
    SglangIncrements,
)

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Options of each request."""


class SglangClient(ServerClient):
    """One SGLang server, through `open`."""

    READY = "/ready"  # which a paused server refuses
    GENERATE = "/generate"
    BEGIN_UPDATE = "/begin_weight_update"
    END_UPDATE = "/end_weight_update"

    async def answers(self) -> bool:
        try:
            await self.model_info()
        except (ServerGone, RequestRefused):
            return False
        return True

    async def model_info(self) -> ModelInfo:
        return await self._connection.get("/model_info", ModelInfo)

    async def server_info(self) -> ServerInfo:
        return await self._connection.get("/server_info", ServerInfo)

    async def load(self) -> ServerLoad:
        """The number of requests that it holds, as of its last report to itself."""
        answer = await self._connection.get("/v1/loads?include=core", Loads)
        return ServerLoad(
            sum(rank.num_running_reqs for rank in answer.loads),
            sum(rank.num_waiting_reqs for rank in answer.loads),
        )

    # ---------------------------------------------------------------------------------- generation

    def _generation(self, asked: AskedTokens) -> Mapping[str, object]:
        sampling = {
            "max_new_tokens": asked.max_new_tokens,
            "temperature": asked.temperature,
            "stream_interval": asked.stream_interval,
            "stop_token_ids": list(asked.stop_ids),
        } | WHOLE_DISTRIBUTION
        body = {
            "rid": asked.rid,
            "input_ids": asked.ids.tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": True,
            "extra_key": asked.extra_key or None,
        }
        if asked.adapter:
            body["lora_path"] = asked.adapter  # the name of one that is loaded
        if asked.images:
            body["image_data"] = list(asked.images)
        if asked.routing is None:
            return body
        start = len(asked.ids) - 1  # at the last position the first new token is predicted
        return body | {"return_routed_experts": True, "routed_experts_start_len": start}

    def _increments(self, routing: RoutingLayout | None) -> SglangIncrements:
        return SglangIncrements(routing)

    async def score(
        self, ids: NDArray[np.int32], *, extra_key: str = "", adapter: str = ""
    ) -> list[float]:
        of = {"lora_path": adapter} if adapter else {}
        entries = await self._prefilled(ids, extra_key=extra_key or None, **of)
        return [math.nan if entry[0] is None else entry[0] for entry in entries[1:]]

    async def texts(self, ids: NDArray[np.int32]) -> list[str | None]:
        """The text of each id in the server's vocabulary; None from a server without a tokenizer.
        An unknown id may crash the server."""
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
        """Abort as on any server. An abort that arrives before its request reached the scheduler is
        lost, and later ones of the same request are ignored."""
        await self._connection.tell("/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        await self._connection.tell("/abort_request", {"abort_all": True})

    async def pause(self, mode: Mode) -> None:
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
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flush}
        await self._connection.control("/update_weights_from_disk", body)

    async def checksums(self) -> list[RankChecksums]:
        asked = {"action": "checksum"}
        return (await self._connection.control("/weights_checker", asked, CHECKSUM_BYTES)).ranks

    # ------------------------------------------------------------------------------------ adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        body = {"lora_name": name, "lora_path": folder}
        await self._connection.control("/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        await self._connection.control("/unload_lora_adapter", {"lora_name": name})

    async def adapters(self) -> list[str]:
        served = await self._connection.get("/v1/models", ServedModels)
        return [each.id for each in served.data if each.parent is not None]
