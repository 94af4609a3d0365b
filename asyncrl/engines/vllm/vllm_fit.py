"""Compatibility of a vLLM server that was started elsewhere with a run. Invariant: a server whose
description does not fit the run is a named error before a rollout is sent."""

from __future__ import annotations

import numpy as np

from asyncrl.engines import canary
from asyncrl.engines.servers import server_versions
from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.other_model import NO_ROUTING, SERVES_ADAPTERS, Incompatible, Needs
from asyncrl.engines.servers.server_types import ServerInfo
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.engines.vllm.vllm_types import NONE, VllmConfigs, VllmLora

EXTENSION, BACKEND = "asyncrl_receiver.Extension", "asyncrl"
"""The class by which a server imports our module into its workers, and the name of the transfer
that this registers."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's `--max-lora-rank` may have."""
LOGPROBS = "processed_logprobs"
"""The requested log-probabilities: of the temperature-scaled distribution."""


async def check_vllm(client: VllmClient, needs: Needs) -> None:
    """Query and check a server, of which a paused one takes no ids yet. Raises Incompatible, or any
    other ServerError where it does not answer."""
    try:
        start, server = await client.start(), await client.server_info()
    except RequestRefused as error:
        raise Incompatible(
            f"{client.url} does not report its start options ({error}): start it with "
            "VLLM_SERVER_DEV_MODE=1, without which it cannot load weights either"
        ) from None
    try:
        refuse_start(start, server, needs)
    except ValueError as error:
        raise Incompatible(f"{client.url} does not fit this run: {error}") from None
    try:
        await client.score(np.array([0, 1], np.int32))
    except RequestRefused as error:
        if error.later:
            return
        raise Incompatible(
            f"{client.url} does not accept token ids ({error}): start it with --enable-scale-out"
        ) from None


def refuse_start(start: VllmConfigs, server: ServerInfo, needs: Needs) -> None:
    """Raise ValueError where the server's start options do not fit the run."""
    _, dtype, context_tokens, slots, routing, rank = needs
    if fault := server_versions.misfit("vLLM", server.version):
        raise ValueError(f"it is vLLM {server.version}; {fault}")
    if server.dtype not in ("", "auto", dtype):
        raise ValueError(
            f"it computes in {server.dtype}, and this run's servers in {dtype}: start it with "
            f"--dtype {dtype}"
        )
    if start.model_config.logprobs_mode != LOGPROBS:
        raise ValueError(
            f"its log-probabilities are {start.model_config.logprobs_mode}: start it with "
            f"--logprobs-mode {LOGPROBS}"
        )
    parallel, transfer = start.parallel_config, start.weight_transfer_config
    if parallel.pipeline_parallel_size > 1 or parallel.data_parallel_size > 1:
        raise ValueError("it has pipeline or data parallel ranks, which cannot load weights")
    if start.speculative_config != NONE:
        raise ValueError(
            "it decodes speculatively, and a draft is not trained: start it without "
            "--speculative-config"
        )
    if start.kv_transfer_config != NONE:
        raise ValueError(
            "it exchanges caches with other servers, which may have other weights: start it "
            "without --kv-transfer-config"
        )
    if transfer is None or transfer.backend != BACKEND:
        raise ValueError(
            f"it cannot receive weights: start it with --worker-extension-cls {EXTENSION} "
            f'--weight-transfer-config \'{{"backend": "{BACKEND}"}}\' (docs/servers.md)'
        )
    if routing and not start.aux_output_config.enable_return_routed_experts:
        raise ValueError(NO_ROUTING)
    refuse_other_adapters(start.lora_config, rank)
    context = max(context_tokens, canary.TOKENS + 1)
    if server.context_length is not None and server.context_length < context:
        raise ValueError(
            f"its context of {server.context_length} tokens is too short for "
            f"engine.context_tokens = {context_tokens}: start it with --max-model-len "
            f"{context}"
        )
    if server.max_running_requests is not None and server.max_running_requests <= slots:
        raise ValueError(
            f"it takes {server.max_running_requests} requests at a time, which is too few for "
            f"engine.slots = {slots}: start it with --max-num-seqs {slots + 1}"
        )


def refuse_other_adapters(lora: VllmLora | None, rank: int) -> None:
    """Raise ValueError where the server takes no adapters of this rank, or takes adapters where the
    run sends whole weights (0)."""
    if not rank and lora is not None:
        raise ValueError(SERVES_ADAPTERS)
    if rank and (lora is None or lora.max_lora_rank < rank):
        room = "none" if lora is None else f"adapters up to rank {lora.max_lora_rank}"
        raise ValueError(
            f"it takes {room}, and the run's have rank {rank}: start it with "
            f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank "
            f"{lora_rank(rank)}"
        )
    if rank and lora is not None and "lm_head" in (lora.target_modules or ["lm_head"]):
        raise ValueError(
            "its output layer takes adapters, and then it cannot score beside other requests: "
            "start it with --lora-target-modules and the names of the layers that the run adapts"
        )


def lora_rank(rank: int) -> int:
    """The least that vLLM's `--max-lora-rank` may be for adapters of this rank. Raises ValueError
    where they are larger than vLLM's.

    >>> lora_rank(4), lora_rank(512)
    (8, 512)
    """
    for enough in RANKS:
        if enough >= rank:
            return enough
    raise ValueError(f"vLLM takes adapters up to rank {RANKS[-1]}, and the run's have rank {rank}")
