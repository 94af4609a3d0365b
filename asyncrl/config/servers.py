"""Settings of the servers that decode, whoever wrote them."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import fields

from asyncrl.config.engines import capabilities
from asyncrl.config.fields import lookup
from asyncrl.config.schema import Config, EngineConfig, ServersConfig, SglangConfig
from asyncrl.config.schema.section import Contradictions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TABLES = tuple(
    f"engine.{field.name}"
    for field in fields(EngineConfig)
    if isinstance(field.default, ServersConfig)
)
"""Tables of run.toml that are of servers."""
OURS = ("--api-key", "--config", "--uds")
"""Arguments of a server that the rollout actor that starts it gives."""


class Servers(NamedTuple):
    """The servers of a run: the `table` of run.toml that they are in, and what it says."""

    table: str
    settings: ServersConfig

    @property
    def by_broadcast(self) -> bool:
        """True if weights come by broadcast, not as files."""
        return not isinstance(self.settings, SglangConfig) or self.settings.transfer == "broadcast"

    @property
    def router(self) -> str:
        """The address of what stands before all of them; empty where nothing does."""
        return self.settings.router if isinstance(self.settings, SglangConfig) else ""


def servers_of(config: Config) -> Servers | None:
    """The servers of the engine that is chosen; None for one that has none."""
    declared = capabilities(config.engine.kind).tables
    return next(
        (Servers(table, lookup(config, table)) for table in TABLES if table in declared), None
    )


def server_contradictions(config: Config) -> Contradictions:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    if (servers := servers_of(config)) is None:
        return
    table, given = servers
    if bool(given.launch) == bool(given.urls):
        yield (
            ("engine.kind", f"{table}.launch", f"{table}.urls"),
            "say who runs the servers: launch for one that each rollout actor starts, or urls "
            "for those that run already",
        )
    if given.urls and config.cluster.kind != "local":
        yield (
            ("cluster.kind", f"{table}.urls"),
            "an actor starts its server on its own machine: set launch in place of urls, or kind "
            "to local",
        )
    if given.launch and given.api_key_file:
        yield (
            (f"{table}.launch", f"{table}.api_key_file"),
            "a server that is started gets a key of its own: remove api_key_file",
        )
    if any(word.partition("=")[0] in OURS for word in given.arguments):
        yield (
            (f"{table}.arguments",),
            "a server that is started gets its key, or its socket, from the run: remove "
            f"{', '.join(OURS[:-1])} and {OURS[-1]} from them",
        )
    if isinstance(given, SglangConfig):
        yield from _sglang(config, given)
    if given.urls and not servers.router and len(given.urls) != config.rollout.actors:
        yield (
            (f"{table}.urls", "rollout.actors"),
            f"each server has one rollout actor: set rollout.actors to {len(given.urls)}",
        )
    if len(set(given.urls)) != len(given.urls):
        yield (f"{table}.urls",), "a server is named twice: name each once"
    for key, urls in ((f"{table}.urls", given.urls), (f"{table}.router", (servers.router,))):
        if any(not _address(url) for url in urls if url):
            yield (key,), "an address is http://host:port"
    elsewhere = [url for url in given.urls if urlsplit(url).hostname not in LOOPBACK]
    if elsewhere and servers.by_broadcast and given.host in LOOPBACK:
        yield (
            (f"{table}.urls", f"{table}.host"),
            f"{elsewhere[0]} would look for weights at its own loopback: set host to an address "
            "of this machine that servers can reach",
        )
    if given.backend == "nccl" and given.device == "cpu" and given.launch:
        yield (
            (f"{table}.backend", f"{table}.device"),
            "nccl is between GPUs: set backend to gloo, or device to cuda",
        )


def _address(url: str) -> bool:
    """True for `http://host:port`."""
    return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)


def _sglang(config: Config, sglang: SglangConfig) -> Contradictions:
    """Contradictions of what SGLang alone has."""
    direct = config.publication.path == "direct"
    if direct and sglang.transfer == "disk":
        yield (
            ("publication.path", "engine.sglang.transfer"),
            "the trainer broadcasts straight into servers: set path to staged, or transfer to "
            "broadcast",
        )
    if direct and sglang.backend == "nccl" and config.train.device != "cuda":
        yield (
            ("publication.path", "engine.sglang.backend", "train.device"),
            "the trainer broadcasts, from its own device: set backend to gloo, or device to cuda",
        )
    if sglang.router and config.rollout.actors != 1:
        yield (
            ("engine.sglang.router", "rollout.actors"),
            "all servers behind a router have one rollout actor: set rollout.actors to 1",
        )
    if sglang.router and not sglang.urls:
        yield (
            ("engine.sglang.router", "engine.sglang.urls"),
            "a router stands before servers that run already: name them in urls too",
        )
