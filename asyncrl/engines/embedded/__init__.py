"""A transformers causal language model in this process, with a slot cache and continuous
batching."""

from asyncrl.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
