"""A policy that is a number. Invariant: everything here is exact, so two runs end with equal
weights only if each of their steps trained the same tokens, sampled under the same weights.

The weights of version 0 are a hash of the seed. A token is a function of the weights that sample
it, of whose token it is (`key`: prompt and member of the group) and of its index. A step adds up a
hash of every token trained - a sum, so that order and packing do not matter - and hashes it into
the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.draws import stream, uniforms
from asyncrl.ipc.messages import Split

VOCABULARY = 512
MASK = 2**64 - 1
_ID, _INDEX, _MIX = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
_SHIFT = np.uint64(29)


def initial(seed: int) -> int:
    """The weights of version 0."""
    return stream(seed, 0)


def key(split: Split, prompt_index: int, member: int) -> int:
    """The key of a rollout, the `member`-th of the group of this prompt: whose its tokens are."""
    return stream(stream(1 + (split == "evaluation"), prompt_index), member)


def length(key: int, most: int) -> int:
    """Number of tokens of a response, 1 to `most`; an eighth of all responses have `most`."""
    draw = stream(3, key)
    return most if not draw & 7 else 1 + (draw >> 3) % most


def sampled(
    weights: int, key: int, start: int, end: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens `[start, end)`, and their log-probabilities, which differ wherever the tokens' draws
    do."""
    drawn = uniforms(
        np.array([stream(weights, key)], np.uint64), np.arange(start, end, dtype=np.int64)
    )
    return (drawn * VOCABULARY).astype(np.int32), (-1.0 - drawn).astype(np.float32)


def reward(prompt_index: int, ids: bytes) -> float:
    """The reward of an answer: 0, 1/3, 2/3 or 1."""
    return float(stream(int.from_bytes(ids[-8:], "little"), prompt_index) % 4) / 3.0


def contribution(key: int, ids: NDArray[np.int32], mask: NDArray[np.uint8], reward: float) -> int:
    """The number that training these tokens adds, modulo 2**64."""
    indices = np.arange(1, len(ids) + 1, dtype=np.uint64)
    z = ids.astype(np.uint64) * _ID + indices * _INDEX + np.uint64(stream(int(reward * 3), key))
    z = (z ^ (z >> _SHIFT)) * _MIX
    return int(z[mask != 0].sum(dtype=np.uint64)) & MASK


def accuracy(weights: int, items: Sequence[int], most: int) -> float:
    """The share of held-out prompts, of which there is one at least, that these weights answer
    rightly."""
    right = 0
    for prompt_index in items:
        whose = key("evaluation", prompt_index, 0)
        ids, _ = sampled(weights, whose, 0, length(whose, most))
        right += reward(prompt_index, ids.tobytes()) == 1.0
    return right / len(items)


def stepped(weights: int, added: int) -> int:
    """The weights after a step that trained tokens which add up to `added`."""
    return stream(weights, added)


def synchronous(seed: int, steps: Sequence[Iterable[int]], group_size: int, most: int) -> list[int]:
    """The weights of each version where every step trains all groups of the given prompts, sampled
    under the version it starts from: what a run at lag 0 has to come to, whatever happens to it."""
    versions = [initial(seed)]
    for items in steps:
        added = 0
        for prompt_index in items:
            for member in range(group_size):
                whose = key("train", prompt_index, member)
                ids, _ = sampled(versions[-1], whose, 0, length(whose, most))
                added += contribution(
                    whose, ids, np.ones(len(ids), np.uint8), reward(prompt_index, ids.tobytes())
                )
        versions.append(stepped(versions[-1], added & MASK))
    return versions
