"""vLLM servers of a rollout actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.actors.engines.server_kind import ServerKind
from asyncrl.config.engines import Capabilities

if TYPE_CHECKING:
    from asyncrl.engines.servers.managed import ServerProgram
    from asyncrl.engines.servers.other_model import Needs


class VllmServers(ServerKind):
    """`engine.kind = "vllm"`."""

    table, built_by = "engine.vllm", "make vllm-cpu"
    capabilities = Capabilities(
        keeps_versions=False,
        serves_apart=True,
        compares_canary=True,
        tables=frozenset({table}),
    )

    @classmethod
    def program(cls) -> ServerProgram[Any]:
        from asyncrl.engines.vllm.vllm_launch import PROGRAM

        return PROGRAM

    @classmethod
    async def takes(cls, client: Any, needs: Needs) -> None:
        """Resume before the check, because a paused server does not score ids."""
        await client.clear()
        await cls.program().fits(client, needs)
