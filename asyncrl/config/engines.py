"""Engines by name, and their capabilities, which are known before one is opened.

Nothing asks for an engine by its name: who needs to know something of it asks its `Capabilities`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncrl.config.plugins import Registry


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a kind of engine that settings, coordinator and checks depend on."""

    keeps_versions: bool = True
    """True if it serves a version that was loaded with `pin` beside each later one, until `unpin`.
    Without it a load ends the requests of the version before, evaluation delays the next version,
    and `staleness.finish_on = "own"` is refused."""

    keeps_averages: bool = False
    """True if it is an `AveragingEngine` (`asyncrl.engines.protocol`), which also keeps an average
    of the weights beside the version that it is of. Without it `evaluation.weights = "ema"` is
    refused."""

    direct_transport: str = ""
    """The transport (`asyncrl.weightsync.transport.TRANSPORTS`) of its direct publications:
    "direct" if it is a `DirectEngine` (`asyncrl.engines.protocol`), whose own weights a publication
    may write while it stands still; "into_servers" if these are in its servers. Without one
    `publication.path = "direct"` is refused."""

    serves_apart: bool = False
    """True if servers of its own decode."""

    widens: bool = False
    """True if it holds weights in `model.dtype`, whatever type they are sent in
    (`publication.dtype`). Without it they stay of the type that they are sent in."""

    compares_canary: bool = False
    """True if it is a `CanaryEngine` (`asyncrl.engines.protocol`), which compares what it computes
    with what the trainer does. Without it the trainer computes no canary."""

    tables: frozenset[str] = frozenset()
    """Tables of run.toml that are its own, such as `engine.sglang`. What is set in the table of an
    engine that is not chosen does nothing, which is said."""


def _wrong(found: Any) -> str:
    """The fault of what is to be an engine, in words; empty where there is none. By the class's
    attributes, because `EngineKind` is above the settings, and may not be imported here."""
    if not isinstance(getattr(found, "capabilities", None), Capabilities):
        return "derive it from asyncrl.engines.spec.EngineKind"
    missing = sorted(getattr(found, "__abstractmethods__", ()))
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
    """Return what the engine that `engine.kind` names declares. Raises ConfigError.

    >>> capabilities("embedded").keeps_versions, capabilities("sglang").keeps_versions
    (True, False)
    """
    declared: Capabilities = ENGINES.find(kind).capabilities
    return declared
