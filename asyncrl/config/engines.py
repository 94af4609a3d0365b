"""Engines by name, and their capabilities, which are known before one is opened. No code depends on
an engine's name: it checks its `Capabilities`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncrl.config.plugins import Registry


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a kind of engine that settings, coordinator and checks depend on."""

    keeps_versions: bool = True
    """True if it serves a version that was loaded with `pin` beside each later one, until `unpin`.
    Without it a load ends the requests of the previous version, evaluation delays the next version,
    and `staleness.finish_on = "own"` is refused."""

    keeps_averages: bool = False
    """True if it is an `AveragingEngine` (`asyncrl.engines.protocol`), which also keeps an average
    of the weights beside its version. Without it `evaluation.weights = "ema"` is refused."""

    direct_transport: str = ""
    """The transport (`asyncrl.weightsync.transport.TRANSPORTS`) of its direct publications:
    "direct" if it is a `DirectEngine` (`asyncrl.engines.protocol`), into whose weights a
    publication may write while it is paused; "into_servers" if these are in its servers. Without
    one `publication.path = "direct"` is refused."""

    serves_apart: bool = False
    """True if its own servers decode."""

    widens: bool = False
    """True if it converts weights to `model.dtype` from the type in which they are sent
    (`publication.dtype`). Without it they keep the type in which they are sent."""

    serves_adapters: bool = False
    """True if it can decode with adapters that it gets without their base (docs/lora.md). Without
    it `model.lora.served = "adapters"` is refused."""

    compares_canary: bool = False
    """True if it is a `CanaryEngine` (`asyncrl.engines.protocol`), which compares its
    log-probabilities with the trainer's. Without it the trainer computes no canary."""

    records_routing: bool = False
    """True if its chunks bring the experts of tokens (`Chunk.routing`). Without it
    `train.router_replay` is refused."""

    sees_images: bool = False
    """True if it shows a prompt's images (`Request.images`) to its model. Without it prompts with
    images are refused."""

    tables: frozenset[str] = frozenset()
    """Tables of run.toml for it alone, such as `engine.sglang`. Settings of another engine's table
    have no effect, which is reported."""


def _wrong(candidate: Any) -> str:
    """The reason why a candidate is not an engine; empty if it is one. It checks the class's
    attributes, because `EngineKind` is above the settings, and may not be imported here."""
    if not isinstance(getattr(candidate, "capabilities", None), Capabilities):
        return "derive it from asyncrl.engines.spec.EngineKind"
    missing = sorted(getattr(candidate, "__abstractmethods__", ()))
    return f"it must define {', '.join(missing)}" if missing else ""


ENGINES: Registry[Any] = Registry(
    "engine",
    {
        "embedded": "asyncrl.actors.engines.embedded:Embedded",
        "scripted": "asyncrl.actors.engines.scripted:Scripted",
        "sglang": "asyncrl.actors.engines.sglang:SglangServers",
        "vllm": "asyncrl.actors.engines.vllm:VllmServers",
    },
    _wrong,
)
"""Names that `engine.kind` may have: classes derived from `asyncrl.engines.spec.EngineKind`."""


def capabilities(kind: str) -> Capabilities:
    """Return the capabilities of the engine that `engine.kind` names. Raises ConfigError.

    >>> capabilities("embedded").keeps_versions, capabilities("sglang").keeps_versions
    (True, False)
    """
    declared: Capabilities = ENGINES.find(kind).capabilities
    return declared


def keeps_versions(kind: str, *, adapters: bool) -> bool:
    """True if engines of this kind serve a version beside later ones: they hold several, or
    `adapters` beside one base.

    >>> keeps_versions("sglang", adapters=False), keeps_versions("sglang", adapters=True)
    (False, True)
    """
    return capabilities(kind).keeps_versions or adapters
