"""Types of weights on their way, as they follow from settings: those that are sent, and those that
engines hold."""

from __future__ import annotations

from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config


def published_dtype(config: Config) -> str:
    """The type of the weights that are sent.

    >>> published_dtype(Config())
    'float32'
    """
    publication, model = config.publication, config.model
    return model.dtype if publication.dtype == "model" else publication.dtype


def engine_dtype(config: Config) -> str:
    """The type of the weights that engines hold: what they are sent, unless they widen it."""
    if capabilities(config.engine.kind).widens:
        return config.model.dtype
    return published_dtype(config)


def rounded(config: Config) -> bool:
    """True if engines are sent weights of a smaller type than the trainer computes with."""
    return published_dtype(config) != config.model.dtype
