"""Rollouts that fork, beside independent ones.

Exactly, on a toy (four binary tokens, tabular policy, 16 rewards): cosine of the mean to the true
gradient, and total variance, over every group that can be sampled. Two roots that part in the
middle decode 12 tokens, as three independent rollouts do:

    2 roots of 2 leaves    `rollout.fork = "depths"`, with the product's advantages
    3 independent          leave-one-out
    4 independent          16 tokens

And with `--steps`, held-out accuracy of the main job at equal generated tokens: groups of 8 by 4
roots, beside plain groups of 8 and of 6, which decode about as much.

    python bench/branching.py [--steps 40] [--seeds 0] [--ways plain_8,plain_6,depths]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pruning
from numpy.typing import NDArray

from asyncrl.algorithms.advantages import Rloo
from asyncrl.algorithms.advantages.by_root import by_stretch
from asyncrl.messages import ForkedMembers

Vector = NDArray[np.float64]
DEPTH = 4
LEAF_REWARDS = 2**DEPTH
PLAIN = ("train.advantage=rloo", "train.objective=clip")
FORKS = (*PLAIN, "rollout.group_size=8", "rollout.fork_leaves=2", "rollout.fork_after=10")
WAYS: dict[str, tuple[str, ...]] = {
    "plain_8": (*PLAIN, "rollout.group_size=8"),
    "plain_6": (*PLAIN, "rollout.group_size=6"),
    "depths": (*FORKS, "rollout.fork=depths"),
    "surprise": (*FORKS, "rollout.fork=surprise", "rollout.fork_after=5"),
}


class BinaryToy:
    """A policy over four binary tokens, and the reward of each of its 16 responses."""

    def __init__(self, seed: int = 3) -> None:
        draw = np.random.default_rng(seed)
        self.chance = 1 / (1 + np.exp(-draw.normal(0, 0.8, LEAF_REWARDS - 1)))
        self.rewards = draw.permutation((draw.random(LEAF_REWARDS) < 0.35).astype(float))

    def stretch(self, node: int, tokens: int) -> list[tuple[float, int, Vector]]:
        """Each way to go on from a node of the heap: its chance, its end, and its score."""
        ways = [(1.0, node, np.zeros(LEAF_REWARDS - 1))]
        for _ in range(tokens):
            ways = [
                (p * (self.chance[at] if a else 1 - self.chance[at]), 2 * at + 1 + a, score.copy())
                for p, at, score in ways
                for a in (0, 1)
            ]
            for _, end, score in ways:
                before = (end - 1) // 2
                score[before] = (end - 1) % 2 - self.chance[before]
        return ways

    def reward(self, end: int) -> float:
        return float(self.rewards[end - (LEAF_REWARDS - 1)])

    @property
    def gradient(self) -> Vector:
        whole = self.stretch(0, DEPTH)
        return np.sum([p * self.reward(end) * score for p, end, score in whole], axis=0)


class Measured(NamedTuple):
    """The cosine of an estimator's mean, its length over the gradient's, and its variance."""

    cosine: float
    length: float
    variance: float


def measured(toy: BinaryToy, groups: Iterator[tuple[float, Vector]]) -> Measured:
    """The moments of an estimate, from each group's chance and estimate."""
    mean, square, g = np.zeros(LEAF_REWARDS - 1), 0.0, toy.gradient
    for chance, estimate in groups:
        mean += chance * estimate
        square += chance * float(estimate @ estimate)
    length = float(np.linalg.norm(mean) / np.linalg.norm(g))
    cosine = float(mean @ g / np.linalg.norm(mean) / np.linalg.norm(g))
    return Measured(cosine, length, square - float(mean @ mean))


def forked(toy: BinaryToy) -> Iterator[tuple[float, Vector]]:
    """Groups of two roots that part after two tokens."""
    trees = ForkedMembers([0, 0, 1, 1], [1] * 4, [[(1, 2)], [], [(3, 2)], []])
    halves = toy.stretch(0, 2)
    ends = {end: toy.stretch(end, 2) for _, end, _ in halves}
    for roots in product(halves, repeat=2):
        pair = [ends[end] for _, end, _ in roots for _ in (0, 1)]
        for leaves in product(*pair):
            rewards = [toy.reward(end) for _, end, _ in leaves]
            values = by_stretch(0, rewards, trees)
            chance = np.prod([p for p, _, _ in (*roots, *leaves)])
            scores = [values[n][-1] * score for n, (_, _, score) in enumerate(leaves)]
            scores += [values[2 * n][0] * score for n, (_, _, score) in enumerate(roots)]
            yield float(chance), np.sum(scores, axis=0) / 4


def independent(toy: BinaryToy, size: int) -> Iterator[tuple[float, Vector]]:
    """Groups of independent rollouts."""
    for group in product(toy.stretch(0, DEPTH), repeat=size):
        values = Rloo().of_group([toy.reward(end) for _, end, _ in group])
        chance = np.prod([p for p, _, _ in group])
        scores = [value * score for value, (_, _, score) in zip(values, group, strict=True)]
        yield float(chance), np.sum(scores, axis=0) / size


def exact(toy: BinaryToy) -> dict[str, tuple[int, Measured]]:
    """Each way, with the tokens that it decodes and its moments."""
    return {
        "2 roots of 2 leaves": (12, measured(toy, forked(toy))),
        "3 independent": (12, measured(toy, independent(toy, 3))),
        "4 independent": (16, measured(toy, independent(toy, 4))),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--ways", default=",".join(WAYS))
    args = parser.parse_args(argv)
    print(f"{'group':>22}{'decoded':>9}{'cosine':>9}{'length':>9}{'variance':>10}")
    for way, (tokens, found) in exact(BinaryToy()).items():
        cells = f"{found.cosine:>9.4f}{found.length:>9.3f}{found.variance:>10.4f}"
        print(f"{way:>22}{tokens:>9}{cells}")
    if args.steps:
        ways, seeds = args.ways.split(","), [int(seed) for seed in args.seeds.split(",")]
        print()
        pruning.table([pruning.run(way, seed, args.steps, WAYS) for seed in seeds for way in ways])


if __name__ == "__main__":
    main()
