"""vLLM servers of a rollout actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.actors.engines.server_kind import ServerKind
from asyncrl.config import Config, ConfigError
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
        records_routing=True,
        serves_adapters=True,
        tables=frozenset({table}),
    )

    @classmethod
    def program(cls) -> ServerProgram[Any]:
        from asyncrl.engines.vllm.vllm_launch import PROGRAM

        return PROGRAM

    @classmethod
    def check(cls, config: Config) -> Sequence[str]:
        """Check as of any servers, and that those that are started can record experts."""
        settings = config.engine.vllm
        if config.train.router_replay and settings.launch and settings.device == "cpu":
            raise ConfigError(
                "train.router_replay is true, and vLLM on a CPU records no experts of tokens, "
                "which takes Triton: set engine.kind to sglang or embedded, or router_replay to "
                "false."
            )
        if config.model.lora.alone:
            from asyncrl.engines.vllm.vllm_fit import lora_rank

            try:
                lora_rank(config.model.lora.rank)
            except ValueError as error:
                raise ConfigError(
                    f"model.lora.rank is {config.model.lora.rank}, and {error}: lower it, or set "
                    "model.lora.served to merged."
                ) from None
        return super().check(config)

    @classmethod
    async def takes(cls, client: Any, needs: Needs, *, shared: bool) -> None:
        """Resume before the check, because a paused server does not score ids."""
        if not shared:
            await client.clear()
        await cls.program().fits(client, needs)
