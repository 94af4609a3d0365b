"""Settings of engines, and of the endpoint that they may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import ENGINES
from asyncrl.config.schema.section import BASIC, EVERY, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class ServersConfig(Section, frozen=True):
    """Engines that are servers, one for each rollout actor."""

    launch: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "command of a Python that has the server, with which each rollout actor starts "
                "one of its own"
            )
        ),
    ] = ()
    urls: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "servers that somebody else runs, instead: one for each rollout actor, or "
                "all that are behind the router"
            )
        ),
    ] = ()
    api_key_file: Annotated[
        str, Meta(description="file with the key that servers ask for; empty: they ask for none")
    ] = ""
    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="what servers that are started run on")
    ] = "cpu"
    tensor_parallel: Annotated[int, Meta(ge=1, description="devices of a server")] = 1
    arguments: Annotated[
        tuple[str, ...], Meta(description="further arguments of a server that is started")
    ] = ()
    backend: Annotated[
        Literal["gloo", "nccl"],
        Meta(description="of the broadcast by which a rollout actor gives weights to its server"),
    ] = "gloo"
    host: Annotated[
        str, Meta(description="address of this machine at which servers join that broadcast")
    ] = "127.0.0.1"
    canary: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "largest difference of a log-probability under new weights, server against "
                "model; 0: by model.dtype"
            ),
        ),
    ] = 0.0


class SglangConfig(ServersConfig, frozen=True):
    """Engines that are SGLang servers, one for each rollout actor (docs/servers.md)."""

    resumable = EVERY

    router: Annotated[
        str, Meta(description="address of a router that requests to them go through; empty: none")
    ] = ""
    interrupt: Annotated[
        Literal["retract", "in_place", "abort"],
        Meta(
            description=(
                "unfinished rollouts at a new version: their cache is recomputed, or kept, "
                "or they are ended and sent again"
            )
        ),
    ] = "retract"
    transfer: Annotated[
        Literal["broadcast", "disk"],
        Meta(description="how a rollout actor gives weights to its server"),
    ] = "broadcast"


class VllmConfig(ServersConfig, frozen=True):
    """Engines that are vLLM servers, one for each rollout actor (docs/servers.md)."""

    resumable = EVERY


class EngineConfig(Section, frozen=True):
    """The engines that generate."""

    resumable = ("slots", "chunk_tokens", "compile")

    kind: Annotated[
        str,
        ENGINES.named,
        BASIC,
        Meta(
            description=(
                "embedded: transformers in the rollout process; sglang, vllm: a server for each "
                "rollout actor"
            )
        ),
    ] = "embedded"
    slots: Annotated[
        int, BASIC, Meta(ge=1, description="rollouts decoded at a time, for each rollout actor")
    ] = 64
    chunk_tokens: Annotated[
        int, Meta(ge=1, description="decode steps between two streamed chunks")
    ] = 8
    context_tokens: Annotated[
        int, BASIC, Meta(ge=8, description="prompt and response together, at most")
    ] = 256
    kv: Annotated[
        Literal["keep", "recompute"],
        Meta(description="embedded: the cache of unfinished rollouts at a new version"),
    ] = "keep"
    compile: Annotated[
        bool,
        Meta(
            description=(
                "embedded: compiled decode kernels (needs a C++ compiler; 5-12 s, once a machine)"
            )
        ),
    ] = False
    sglang: SglangConfig = SglangConfig()
    vllm: VllmConfig = VllmConfig()

    def contradictions(self, whole: Config) -> Contradictions:
        if self.context_tokens <= whole.rollout.max_new_tokens:
            yield (
                ("engine.context_tokens", "rollout.max_new_tokens"),
                "prompt and response share the context: context_tokens must be larger than "
                "max_new_tokens",
            )
