"""Compatibility of a server with a run. Invariant: a server whose description does not fit the run
is a named error before it is sent anything."""

from __future__ import annotations

from asyncrl.engines.servers import server_versions
from asyncrl.engines.servers.other_model import Incompatible, Needs, refuse_other_model
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
    except ValueError as error:
        raise Incompatible(f"{client.url} does not fit this run: {error}") from None


def refuse_other_start(server: ServerInfo, *, context_tokens: int, slots: int) -> None:
    """Raise ValueError where the server is of another version, or its start options do not fit
    these contexts and slots."""
    if fault := server_versions.misfit("SGLang", server.version):
        raise ValueError(f"it is SGLang {server.version}; {fault}")
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
