"""Trees of rollouts that fork, grown a second time: each whole, one after another. Invariant: no
code is shared with `asyncrl.experience` or with the coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asyncrl.config import Config
from asyncrl.simulation import policy


def forks_after(config: Config, logs: NDArray[np.float32]) -> bool:
    """True if a rollout forks that has sampled tokens of these log-probabilities itself."""
    if config.rollout.fork == "depths":
        return True
    every, own = config.rollout.fork_after, logs.astype(np.float64)
    return len(own) > every and bool(own[-every:].mean() < own[:-every].mean())


def group_of_trees(
    config: Config, weights: int, prompt: bytes, first: int
) -> Iterator[tuple[bytes, NDArray[np.int32]]]:
    """Each member of a group whose first key is `first`, as a version of these weights samples it:
    the ids that it continues, and its own."""
    rollout = config.rollout
    for root in range(rollout.group_size // rollout.fork_leaves):
        leaves, slot = rollout.fork_leaves, root * rollout.fork_leaves
        yield from _grown(config, weights, prompt, first, slot, leaves, b"")


def _grown(
    config: Config, weights: int, prompt: bytes, first: int, slot: int, leaves: int, shared: bytes
) -> Iterator[tuple[bytes, NDArray[np.int32]]]:
    rollout, before = config.rollout, len(shared) // 4
    whose = policy.draws(prompt + shared, first + slot, rollout.temperature)
    tokens = policy.length(whose, rollout.max_new_tokens - before)
    ids, logs = policy.sampled(weights, whose, 0, tokens)
    yield prompt + shared, ids
    for at in range(before + 1, before + tokens):
        own = at - before
        if leaves > 1 and at % rollout.fork_after == 0 and forks_after(config, logs[:own]):
            given = leaves // 2
            leaves -= given
            begun = shared + ids[:own].tobytes()
            yield from _grown(config, weights, prompt, first, slot + leaves, given, begun)
