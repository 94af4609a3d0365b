"""Settings of the embedded engine, shared by engine, batcher and lanes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.schema import Config
from asyncrl.engines.options import EngineOptions


class EmbeddedOptions(EngineOptions, frozen=True, kw_only=True):
    """Sizes and the settings specific to the embedded engine.

    `stop_ids` end a rollout and are part of it. Draws are keyed by `run_seed` and the request
    (`sampler`). `kv` says whether unfinished rollouts keep their cache at a new version or have it
    recomputed; their recorded log-probabilities do not change. `compile` compiles what the decode
    step does outside of linear layers (5-12 s once a machine; without a C++ compiler a warning says
    that it has no effect). `packed_from` is the smallest number of rows for which it multiplies
    with packed weights; None measures which is faster. The two round differently, so engines of one
    run should have one. With `records_routing`, chunks have the experts of each token.
    """

    stop_ids: frozenset[int]
    run_seed: int
    kv: Literal["keep", "recompute"] = "keep"
    compile: bool = False
    packed_from: int | None = None
    records_routing: bool = False


def embedded_options(config: Config, stop_ids: Iterable[int]) -> EmbeddedOptions:
    """The options of an engine with a run's settings, which measures how it multiplies."""
    return EmbeddedOptions(
        slots=config.engine.slots,
        context_tokens=config.engine.context_tokens,
        chunk_tokens=chunk_tokens(config),
        stop_ids=frozenset(stop_ids),
        run_seed=config.run.seed,
        kv=config.engine.kv,
        compile=config.engine.compile,
    )
