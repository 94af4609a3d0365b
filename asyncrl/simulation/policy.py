"""A policy that is a number. Invariant: everything here is exact, so two runs end with equal
weights only if each of their steps trained the same tokens, sampled under the same weights.

The weights of version 0 are a hash of the seed. A token is a function of the weights that sample
it, of its rollout's draws (`draws`), and of its index. A step adds up a hash of every token
trained - a sum, so that order and packing do not matter - and hashes it into the weights.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.draws import stream, uniforms
from asyncrl.messages import Scored

VOCABULARY = 512
MASK = 2**64 - 1
_ID, _INDEX, _MIX = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
_SHIFT = np.uint64(29)
_SCORES = 5
_AVERAGE = 7


def initial(seed: int) -> int:
    """The weights of version 0."""
    return stream(seed, 0)


def _text(prompt: bytes) -> int:
    return stream(zlib.crc32(prompt), len(prompt))


def draws(prompt: bytes, key: int, temperature: float) -> int:
    """Identity of the draws of a response to `prompt` (int32 ids): of a greedy one (temperature 0)
    the prompt's alone, else of the prompt, the temperature and the `key` that was asked for."""
    text = _text(prompt)
    if not temperature:
        return stream(text, 0)
    warmth = int.from_bytes(struct.pack("<d", temperature), "little")
    return stream(stream(text, warmth), key)


def length(draws: int, most: int) -> int:
    """Number of tokens of a response, 1 to `most`; an eighth of all responses have `most`."""
    draw = stream(3, draws)
    return most if not draw & 7 else 1 + (draw >> 3) % most


def sampled(
    weights: int, draws: int, start: int, end: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens `[start, end)`, and their log-probabilities, which differ wherever the tokens' draws
    do."""
    drawn = uniforms(
        np.array([stream(weights, draws)], np.uint64), np.arange(start, end, dtype=np.int64)
    )
    return (drawn * VOCABULARY).astype(np.int32), (-1.0 - drawn).astype(np.float32)


def scores(weights: int, ids: NDArray[np.int32], start: int) -> NDArray[np.float32]:
    """Log-probabilities of given tokens, of which the first is response token `start`, under any
    weights: float32 [tokens]."""
    places = (start + np.arange(len(ids), dtype=np.int64)) * VOCABULARY + ids
    drawn = uniforms(np.array([stream(weights, _SCORES)], np.uint64), places)
    return (-1.0 - drawn).astype(np.float32)


class Rewards(NamedTuple):
    """The rewards of a world's verifiers: `equal` ones give every answer the same, but for every
    `but`-th prompt, if that is not 0. `parts` is the number of rewards that each is made of, 0 for
    one that has none. With `errors` verifiers find some tokens of most answers wrong."""

    equal: bool = False
    but: int = 0
    parts: int = 0
    errors: bool = False

    def scored(self, prompt_index: int, ids: bytes) -> Scored:
        """The verdict on an answer: 0, 1/3, 2/3 or 1."""
        wrong = self.wrong(ids)
        if self.equal and (not self.but or prompt_index % self.but):
            return Scored(0.0, [0.0] * self.parts, errors=wrong)
        drawn = stream(int.from_bytes(ids[-8:], "little"), prompt_index)
        reward = float(drawn % 4) / 3.0
        parts = [reward, *(float(n) for n in range(1, self.parts))][: self.parts]
        return Scored(reward, parts, errors=wrong)

    def wrong(self, ids: bytes) -> list[tuple[int, int]]:
        """The tokens [start, end) of an answer that are wrong: of a few kinds, all among them."""
        tokens = len(ids) // 4
        kind = int.from_bytes(ids[:4], "little") % 4 if self.errors else 0
        found = [[], [(0, tokens)], [(tokens // 2, tokens)], [(0, 1), (2, 3)]][kind]
        return [(start, end) for start, end in found if start < end <= tokens]


def penalty(tokens: int, most: int, band: int) -> float:
    """The reward that a response of so many tokens loses, as a negative number, where it sinks over
    the last `band` of `most` tokens; none where `band` is 0."""
    soft = most - band
    if not band or tokens <= soft:
        return 0.0
    return (soft - tokens) / band


def contribution(
    prompt: bytes, ids: NDArray[np.int32], mask: NDArray[np.uint8], reward: float
) -> int:
    """The number that training these tokens adds, modulo 2**64: those whose `mask` is 1."""
    indices = np.arange(1, len(ids) + 1, dtype=np.uint64)
    whose = stream(int(reward * 3 * 64), _text(prompt))
    z = ids.astype(np.uint64) * _ID + indices * _INDEX + np.uint64(whose)
    z = (z ^ (z >> _SHIFT)) * _MIX
    return int(z[mask == 1].sum(dtype=np.uint64)) & MASK


def accuracy(
    weights: int, prompts: Sequence[bytes], most: int, rewards: Rewards, first: int = 0
) -> float:
    """The share of held-out prompts, of which there is one at least, that these weights answer
    rightly where they answer greedily. A prompt's index is its place; those before the `first` do
    not count."""
    right = 0
    for prompt_index, prompt in enumerate(prompts[first:], first):
        right += answers_rightly(weights, draws(prompt, 0, 0.0), prompt_index, most, rewards)
    return right / (len(prompts) - first)


def answers_rightly(
    weights: int, draws: int, prompt_index: int, most: int, rewards: Rewards
) -> bool:
    """True if the answer to a prompt that these weights sample, of these draws, is right."""
    ids, _ = sampled(weights, draws, 0, length(draws, most))
    return rewards.scored(prompt_index, ids.tobytes()).reward == 1.0


def stepped(weights: int, added: int) -> int:
    """The weights after a step that trained tokens which add up to `added`."""
    return stream(weights, added)


def average(weights: int) -> int:
    """The average of the weights at the version that has these: a function of them, as a version
    has one history."""
    return stream(weights, _AVERAGE)


def synchronous(
    seed: int,
    steps: Sequence[Sequence[tuple[int, bytes]]],
    *,
    group_size: int,
    longest: int,
    temperature: float,
    rewards: Rewards,
    masked: bool = False,
    band: int = 0,
    most: int = 0,
    grown: Callable[[int, Sequence[float], int], int] = lambda size, rewards, solved: size,
    trees: Callable[[int, bytes, int], Iterable[tuple[bytes, NDArray[np.int32]]]] | None = None,
) -> list[int]:
    """The weights of each version where every step trains all groups of the given prompts (their
    indices and ids), sampled under the version it starts from: what a run at lag 0 has to come to,
    whatever happens to it. A rollout's key is its place in the order of the data. Responses of
    `longest` tokens are `masked` or not; over `longest - band` tokens a reward sinks, by 1 at the
    end. A group of so many, with these rewards and so many fully right, has `grown` members then,
    of `most` keys. Where rollouts fork, `trees` are the members of a group by weights, prompt and
    first key: what each continues, and its own ids."""
    versions, first = [initial(seed)], 0
    for prompts in steps:
        added = 0
        for prompt_index, prompt in prompts:
            rewarded, solved, size = list[float](), 0, group_size
            for context, ids in trees(versions[-1], prompt, first) if trees else ():
                response = context[len(prompt) :] + ids.tobytes()
                reward = rewards.scored(prompt_index, response).reward
                reward += penalty(len(response) // 4, longest, band)
                added += contribution(context, ids, np.ones(len(ids), np.uint8), reward)
            while not trees and len(rewarded) < size:
                whose = draws(prompt, first + len(rewarded), temperature)
                ids, _ = sampled(versions[-1], whose, 0, length(whose, longest))
                reward = rewards.scored(prompt_index, ids.tobytes()).reward
                solved += reward == 1.0
                reward += penalty(len(ids), longest, band)
                rewarded.append(reward)
                lets = np.full(len(ids), 2 if masked and len(ids) == longest else 1, np.uint8)
                for start, end in rewards.wrong(ids.tobytes()):
                    lets[start:end] = 3
                added += contribution(prompt, ids, lets, reward)
                if len(rewarded) == size:
                    size = grown(size, rewarded, solved)
            first += most or group_size
        versions.append(stepped(versions[-1], added & MASK))
    return versions
