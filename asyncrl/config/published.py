"""The type of the weights that engines hold."""

from __future__ import annotations

from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config


def engine_dtype(config: Config) -> str:
    """The type of the weights that engines hold: that in which they are sent, unless they widen
    it."""
    if capabilities(config.engine.kind).widens:
        return config.model.dtype
    return config.publication.sent_dtype(config.model)
