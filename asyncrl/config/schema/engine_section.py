"""Settings of engines and their servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import fields

from asyncrl.config.engines import ENGINES, capabilities
from asyncrl.config.schema.section import BASIC, EVERY, PATH, Contradictions, Section
from asyncrl.messages.address import url_parts

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OURS = ("--api-key", "--config", "--uds")
"""Server arguments that the rollout actor sets."""


class ServersConfig(Section, frozen=True):
    """Engines that are servers, one for each rollout actor."""

    launch: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "command of a Python in which the server is installed; each rollout actor "
                "starts its server with it"
            )
        ),
    ] = ()
    urls: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "URLs of servers that already run, in place of launch: one for each rollout "
                "actor, or all servers behind the router"
            )
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        PATH,
        Meta(description="file with the servers' API key; empty: they require none"),
    ] = ""
    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="device of servers that are started")
    ] = "cpu"
    tensor_parallel: Annotated[
        int, Meta(ge=1, description=("devices per server (tensor parallelism)"))
    ] = 1
    arguments: Annotated[
        tuple[str, ...], Meta(description="further arguments for servers that are started")
    ] = ()
    backend: Annotated[
        Literal["gloo", "nccl"],
        Meta(
            description=(
                "torch.distributed backend of the broadcast from a rollout actor to its server"
            )
        ),
    ] = "gloo"
    host: Annotated[
        str, Meta(description="address of this machine at which servers join the broadcast")
    ] = "127.0.0.1"
    canary: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "largest accepted difference of a log-probability between server and model "
                "under new weights; 0: by model.dtype"
            ),
        ),
    ] = 0.0


class SglangConfig(ServersConfig, frozen=True):
    """Engines that are SGLang servers, one for each rollout actor (docs/servers.md)."""

    resumable = EVERY

    router: Annotated[
        str, Meta(description="address of a router in front of the servers; empty: none")
    ] = ""
    interrupt: Annotated[
        Literal["retract", "in_place", "abort"],
        Meta(
            description=(
                "unfinished rollouts at a new version: recompute their KV cache, keep it, or "
                "abort and resend them"
            )
        ),
    ] = "retract"
    transfer: Annotated[
        Literal["broadcast", "disk"],
        Meta(description="how a rollout actor sends weights to its server"),
    ] = "broadcast"


class VllmConfig(ServersConfig, frozen=True):
    """Engines that are vLLM servers, one for each rollout actor (docs/servers.md)."""

    resumable = EVERY


class Servers(NamedTuple):
    """The servers of a run: their `table` in run.toml, and its settings."""

    table: str
    settings: ServersConfig

    @property
    def by_broadcast(self) -> bool:
        """True if weights come by broadcast, not as files."""
        return not isinstance(self.settings, SglangConfig) or self.settings.transfer == "broadcast"

    @property
    def router(self) -> str:
        """The address of the router in front of all of them; empty if there is none."""
        return self.settings.router if isinstance(self.settings, SglangConfig) else ""


class EngineConfig(Section, frozen=True):
    """The engines that generate."""

    resumable = ("slots", "chunk_tokens", "compile")

    kind: Annotated[
        str,
        ENGINES.named,
        BASIC,
        Meta(
            description=(
                "embedded: transformers in the rollout process; sglang, vllm: one server per "
                "rollout actor"
            )
        ),
    ] = "embedded"
    slots: Annotated[
        int, BASIC, Meta(ge=1, description="rollouts that each rollout actor decodes at a time")
    ] = 64
    chunk_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="decode steps between streamed chunks; 0: 8, or more above 512 slots",
        ),
    ] = 0
    context_tokens: Annotated[
        int,
        BASIC,
        Meta(
            ge=8,
            description=(
                "most tokens of prompt and response together (2,048 with an agent, if "
                "rollout.max_new_tokens is not set either)"
            ),
        ),
    ] = 256
    kv: Annotated[
        Literal["keep", "recompute"],
        Meta(
            description=(
                "embedded: keep or recompute the KV cache of unfinished rollouts at a new version"
            )
        ),
    ] = "keep"
    compile: Annotated[
        bool,
        Meta(
            description=(
                "embedded: compile the decode kernels (needs a C++ compiler; takes 5-12 s, "
                "once per machine)"
            )
        ),
    ] = False
    sglang: SglangConfig = SglangConfig()
    vllm: VllmConfig = VllmConfig()

    @property
    def servers(self) -> Servers | None:
        """The servers of the chosen engine; None for an engine without servers."""
        declared = capabilities(self.kind).tables
        return next(
            (
                Servers(f"engine.{name}", settings)
                for name in self.__struct_fields__
                if isinstance(settings := getattr(self, name), ServersConfig)
                and f"engine.{name}" in declared
            ),
            None,
        )

    def contradictions(self, whole: Config) -> Contradictions:
        if self.context_tokens <= whole.rollout.max_new_tokens:
            yield (
                ("engine.context_tokens", "rollout.max_new_tokens"),
                "prompt and response share the context: context_tokens must be larger than "
                "max_new_tokens",
            )
        if (servers := self.servers) is not None:
            yield from _servers(whole, servers)


SERVER_TABLES = tuple(
    f"engine.{field.name}"
    for field in fields(EngineConfig)
    if isinstance(field.default, ServersConfig)
)
"""Tables of run.toml for servers."""


def _servers(whole: Config, servers: Servers) -> Contradictions:
    table, settings = servers
    if bool(settings.launch) == bool(settings.urls):
        yield (
            ("engine.kind", f"{table}.launch", f"{table}.urls"),
            "set launch for servers that rollout actors start, or urls for servers that "
            "already run",
        )
    if settings.urls and whole.cluster.kind != "local":
        yield (
            ("cluster.kind", f"{table}.urls"),
            "on other machines an actor starts its own server: set launch instead of urls, or "
            "kind to local",
        )
    if settings.launch and settings.api_key_file:
        yield (
            (f"{table}.launch", f"{table}.api_key_file"),
            "the run makes a key for servers that it starts: remove api_key_file",
        )
    if any(word.partition("=")[0] in OURS for word in settings.arguments):
        yield (
            (f"{table}.arguments",),
            "the run sets the key and the socket of servers that it starts: remove "
            f"{', '.join(OURS[:-1])} and {OURS[-1]} from them",
        )
    if isinstance(settings, SglangConfig):
        yield from _sglang(whole, settings)
    if settings.urls and not servers.router and len(settings.urls) != whole.rollout.actors:
        yield (
            (f"{table}.urls", "rollout.actors"),
            f"each server has one rollout actor: set rollout.actors to {len(settings.urls)}",
        )
    if len(set(settings.urls)) != len(settings.urls):
        yield (f"{table}.urls",), "a server is listed twice: list each once"
    for key, urls in ((f"{table}.urls", settings.urls), (f"{table}.router", (servers.router,))):
        if any(not _address(url) for url in urls if url):
            yield (key,), "an address is http://host:port"
    elsewhere = [url for url in settings.urls if url_parts(url).hostname not in LOOPBACK]
    if elsewhere and servers.by_broadcast and settings.host in LOOPBACK:
        yield (
            (f"{table}.urls", f"{table}.host"),
            f"{elsewhere[0]} would fetch weights from its own loopback: set host to an address "
            "of this machine that servers can reach",
        )
    if settings.backend == "nccl" and settings.device == "cpu" and settings.launch:
        yield (
            (f"{table}.backend", f"{table}.device"),
            "nccl needs GPUs: set backend to gloo, or device to cuda",
        )


def _address(url: str) -> bool:
    """True for `http://host:port`."""
    return url_parts(url).scheme in ("http", "https") and bool(url_parts(url).hostname)


def _sglang(whole: Config, sglang: SglangConfig) -> Contradictions:
    """Yield contradictions of settings that only SGLang has."""
    direct = whole.publication.path == "direct"
    if direct and sglang.transfer == "disk":
        yield (
            ("publication.path", "engine.sglang.transfer"),
            "with path direct the trainer broadcasts into the servers: set path to staged, or "
            "transfer to broadcast",
        )
    if direct and sglang.backend == "nccl" and whole.train.device != "cuda":
        yield (
            ("publication.path", "engine.sglang.backend", "train.device"),
            "with path direct the trainer broadcasts from its own device: set backend to gloo, "
            "or device to cuda",
        )
    if sglang.router and whole.rollout.actors != 1:
        yield (
            ("engine.sglang.router", "rollout.actors"),
            "all servers behind a router share one rollout actor: set rollout.actors to 1",
        )
    if sglang.router and not sglang.urls:
        yield (
            ("engine.sglang.router", "engine.sglang.urls"),
            "a router is for servers that already run: list them in urls too",
        )
