"""The weights that engines are sent: their type, their bytes, and the time that these may take."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config

SLOWEST = 80e6
"""Bytes a second at which a phase of a publication has to go on, whatever it is. The slowest is to
hash weights in host memory, by one thread, in each of three layouts: 90 MB/s."""


def engine_dtype(config: Config) -> str:
    """The type of the weights that engines hold: that in which they are sent, unless they widen
    it."""
    if capabilities(config.engine.kind).widens:
        return config.model.dtype
    return config.publication.sent_dtype(config.model)


def computed_dtype(config: Config) -> str:
    """The coarsest type in which engines compute: fp8 where their servers multiply in it."""
    apart = capabilities(config.engine.kind).serves_apart
    return "fp8" if apart and config.publication.dtype == "fp8" else engine_dtype(config)


def phase_s(least_s: float, weight_bytes: int) -> float:
    """Seconds that a phase of a publication of so many bytes may take.

    >>> phase_s(60.0, 16_000_000_000)
    260.0
    """
    return least_s + weight_bytes / SLOWEST


def sent_bytes(config: Config) -> int:
    """Most bytes of the weights that an engine is sent, by the sizes of the model's files; 0 for
    the bundled model, and where there are none."""
    if not config.model.path:
        return 0
    try:
        stored = sum(path.stat().st_size for path in Path(config.model.path).glob("*.safetensors"))
    except OSError:
        return 0
    return stored * (2 if engine_dtype(config) == "float32" else 1)


def publication_s(config: Config) -> float:
    """Seconds that a phase of a publication may take, for a process without the model."""
    return phase_s(config.publication.deadline_s, sent_bytes(config))
