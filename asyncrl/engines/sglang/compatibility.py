"""Compatibility of a server with a run. Invariant: a server whose description does not fit the run
is a named error before it is sent anything."""

from __future__ import annotations

from asyncrl.engines.servers import server_versions
from asyncrl.engines.servers.other_model import (
    NO_ROUTING,
    SERVES_ADAPTERS,
    Incompatible,
    Needs,
    refuse_other_model,
)
from asyncrl.engines.servers.server_types import ServerInfo
from asyncrl.engines.sglang.sglang_client import SglangClient

KEPT_BACK = 8
"""Positions of its context that a server does not use, and a few more."""
CANARIES = 1
"""Our own requests beside the rollouts."""


async def check_compatibility(client: SglangClient, needs: Needs) -> None:
    """Query and check a server. Raises Incompatible, or any other ServerError where it does not
    answer."""
    model, server = await client.model_info(), await client.server_info()
    try:
        refuse_other_model(model, server, architecture=needs.architecture, dtype=needs.dtype)
        refuse_other_start(server, context_tokens=needs.context_tokens, slots=needs.slots)
        if needs.routing and not server.enable_return_routed_experts:
            raise ValueError(NO_ROUTING)
        refuse_other_adapters(server, needs.adapters)
    except ValueError as error:
        raise Incompatible(f"{client.url} does not fit this run: {error}") from None


def refuse_other_adapters(server: ServerInfo, rank: int) -> None:
    """Raise ValueError where the server takes no adapters of this rank, or takes adapters where the
    run sends whole weights (0)."""
    if not rank and server.enable_lora:
        raise ValueError(SERVES_ADAPTERS)
    if rank and (not server.enable_lora or (server.max_lora_rank or 0) < rank):
        room = f"adapters up to rank {server.max_lora_rank}" if server.enable_lora else "none"
        raise ValueError(
            f"it takes {room}, and the run's have rank {rank}: start it with --enable-lora "
            f"--max-lora-rank {rank} --lora-target-modules and the run's layers"
        )


def refuse_other_start(server: ServerInfo, *, context_tokens: int, slots: int) -> None:
    """Raise ValueError where the server is of another version, or its start options do not fit
    these contexts and slots."""
    if fault := server_versions.misfit("SGLang", server.version):
        raise ValueError(f"it is SGLang {server.version}; {fault}")
    if server.dp_size > 1:
        raise ValueError(
            f"it has {server.dp_size} data-parallel replicas, and SGLang sends weights to one: "
            "start a server for each replica, and name each in engine.sglang.urls"
        )
    if server.pp_size > 1:
        raise ValueError(
            f"it divides its layers among {server.pp_size} pipeline ranks, and a broadcast "
            "reaches one: start it with --pp-size 1, and with a larger --tp-size"
        )
    if server.speculative_algorithm:
        raise ValueError(
            f"it decodes speculatively ({server.speculative_algorithm}), and a draft is not "
            "trained: start it without --speculative-algorithm"
        )
    if server.disaggregation_mode != "null":
        raise ValueError(
            f"it only does the {server.disaggregation_mode} part of a request: start it without "
            "--disaggregation-mode"
        )
    if not server.skip_tokenizer_init:
        raise ValueError(
            "it has a tokenizer, but asyncrl exchanges token ids: start it with "
            "--skip-tokenizer-init"
        )
    if server.context_length is not None and server.context_length < context_tokens + KEPT_BACK:
        raise ValueError(
            f"its context of {server.context_length} tokens is too short for "
            f"engine.context_tokens = {context_tokens}: "
            f"start it with --context-length {context_tokens + KEPT_BACK}"
        )
    if server.max_running_requests is not None and server.max_running_requests < slots + CANARIES:
        raise ValueError(
            f"it takes {server.max_running_requests} requests at a time, which is too few for "
            f"engine.slots = {slots}: "
            f"start it with --max-running-requests {slots + CANARIES}"
        )
