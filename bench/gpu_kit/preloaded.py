"""Modules that every check needs. The process that checks are forked from imports this once: to
import them takes a check longer than its work in the small form. Invariant: nothing here touches
CUDA, computes, or starts a thread."""

from __future__ import annotations

import transformers.models.qwen3.modeling_qwen3

from . import bounds, checkpoints, numerics, ranks, runs, servers, speed, weights

assert transformers.models.qwen3 and bounds and checkpoints and numerics
assert ranks and runs and servers and speed and weights
