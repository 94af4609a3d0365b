"""Rollouts that fork, beside independent ones.

Exactly, on a toy (four binary tokens, tabular policy, 16 rewards): cosine of the mean to the true
gradient, and total variance, over every group that can be sampled; and the variance over that of
independent rollouts that decode as many tokens, on this toy and in the median of others.

    in the middle     two roots of two leaves, which decode 12 tokens as three independent rollouts
                      do: `rollout.fork = "depths"`, with the product's advantages
    where open        they part where the entropy of the next token is over a bound
    distinct          in the middle, by different tokens (without replacement), which are weighted
                      by their probabilities

And with `--steps`, held-out accuracy of the main job at equal generated tokens: groups of 8 by 4
roots, beside plain groups of 8 and of 6, which decode about as much.

    python bench/branching.py [--steps 40] [--seeds 0] [--ways plain_8,plain_6,depths]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import selection
from numpy.typing import NDArray

from asyncrl.algorithms.advantages import Rloo
from asyncrl.algorithms.advantages.by_root import by_stretch
from asyncrl.messages import ForkedMembers

Vector = NDArray[np.float64]
DEPTH = 4
LEAF_REWARDS = 2**DEPTH
OPEN, WIDE_OPEN = 0.6, 0.68
"""Nats of the next token's entropy over which a place is open. Of a coin it is 0.69."""
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

    def more_open_than(self, nats: float) -> Callable[[int], bool]:
        """The nodes whose next token has a larger entropy."""
        p = self.chance
        entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
        return lambda node: bool(entropy[node] > nats)

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


class Tree(NamedTuple):
    """A root's tree: its chance, the tokens that it decodes, the score of those that its `leaves`
    share, how many these are, and each leaf's end and own score."""

    chance: float
    decoded: int
    shared: Vector
    at: int
    leaves: list[tuple[int, Vector]]


def trees(toy: BinaryToy, opens: Callable[[int], bool]) -> list[Tree]:
    """Each tree of a root that parts into two leaves at the first node that opens."""
    found, going = list[Tree](), toy.stretch(0, 1)
    for at in range(1, DEPTH):
        for chance, node, score in going:
            if opens(node):
                ways = product(toy.stretch(node, DEPTH - at), repeat=2)
                found += [
                    Tree(chance * p * q, 2 * DEPTH - at, score, at, [(end, own), (other, its)])
                    for (p, end, own), (q, other, its) in ways
                ]
        going = [
            (chance * p, end, score + more)
            for chance, node, score in going
            if not opens(node)
            for p, end, more in toy.stretch(node, 1)
        ]
    none = np.zeros(LEAF_REWARDS - 1)
    return found + [Tree(p, DEPTH, none, 0, [(end, score)]) for p, end, score in going]


def forked(toy: BinaryToy, opens: Callable[[int], bool]) -> Iterator[tuple[float, Vector]]:
    """Groups of two roots that part where a node opens."""
    for pair in product(trees(toy, opens), repeat=2):
        roots, weights, below = list[int](), list[int](), list[list[tuple[int, int]]]()
        for root, tree in enumerate(pair):
            for place in range(len(tree.leaves)):
                parts = len(tree.leaves) > 1 and not place
                below.append([(len(roots) + 1, tree.at)] if parts else [])
                roots.append(root)
                weights.append(2 // len(tree.leaves))
        rewards = [toy.reward(end) for tree in pair for end, _ in tree.leaves]
        values = by_stretch(0, rewards, ForkedMembers(roots, weights, below))
        scores = [score for tree in pair for _, score in tree.leaves]
        parts_of = [value[-1] * score for value, score in zip(values, scores, strict=True)]
        firsts = [roots.index(root) for root in (0, 1)]
        parts_of += [
            values[n][0] * tree.shared for n, tree in zip(firsts, pair, strict=True) if tree.at
        ]
        yield pair[0].chance * pair[1].chance, np.sum(parts_of, axis=0) / 4


def distinct(toy: BinaryToy) -> Iterator[tuple[float, Vector]]:
    """Groups of two roots that part in the middle by different tokens, each leaf weighted by its
    token's probability (as LATR's would be, if it sampled)."""
    found = list[tuple[float, Vector, list[tuple[float, float, Vector]]]]()
    for chance, node, shared in toy.stretch(0, 2):
        tokens = toy.stretch(node, 1)
        for ends in product(*(toy.stretch(at, 1) for _, at, _ in tokens)):
            leaves = [
                (p, toy.reward(end), first + last)
                for (p, _, first), (_, end, last) in zip(tokens, ends, strict=True)
            ]
            found.append((chance * float(np.prod([q for q, _, _ in ends])), shared, leaves))
    for pair in product(found, repeat=2):
        means = [sum(p * reward for p, reward, _ in leaves) for _, _, leaves in pair]
        total = np.zeros(LEAF_REWARDS - 1)
        for (_, shared, leaves), mean, other in zip(pair, means, means[::-1], strict=True):
            total += (mean - other) * shared
            total += np.sum([p * (r - other) * score for p, r, score in leaves], axis=0)
        yield pair[0][0] * pair[1][0], total / 2


def independent(toy: BinaryToy, size: int) -> Iterator[tuple[float, Vector]]:
    """Groups of independent rollouts."""
    for group in product(toy.stretch(0, DEPTH), repeat=size):
        values = Rloo().of_group([toy.reward(end) for _, end, _ in group])
        chance = np.prod([p for p, _, _ in group])
        scores = [value * score for value, (_, _, score) in zip(values, group, strict=True)]
        yield float(chance), np.sum(scores, axis=0) / size


class Compared(NamedTuple):
    """A way: the tokens that it decodes, its moments, and its variance over that of as many tokens
    of independent rollouts."""

    decoded: float
    cosine: float
    length: float
    variance: float
    over: float


def exact(toy: BinaryToy) -> dict[str, Compared]:
    """Each way, compared with independent rollouts, whose variance is a / n + b / n (n - 1)."""
    found = {"2 roots, in the middle": (12.0, measured(toy, forked(toy, in_the_middle)))}
    for name, bound in (("open", OPEN), ("wide open", WIDE_OPEN)):
        rule = toy.more_open_than(bound)
        decoded = 2 * sum(tree.chance * tree.decoded for tree in trees(toy, rule))
        found[f"2 roots, where {name}"] = decoded, measured(toy, forked(toy, rule))
    found["2 roots, distinct"] = 12.0, measured(toy, distinct(toy))
    two, three = (measured(toy, independent(toy, size)) for size in (2, 3))
    found |= {"2 independent": (8.0, two), "3 independent": (12.0, three)}
    a = 6 * three.variance - 2 * two.variance
    b = 2 * two.variance - a

    def peer(decoded: float) -> float:
        size = decoded / DEPTH
        return a / size + b / size / (size - 1)

    return {
        way: Compared(decoded, *moments, moments.variance / peer(decoded))
        for way, (decoded, moments) in found.items()
    }


def in_the_middle(node: int) -> bool:
    """True of the nodes of half depth."""
    return node in range(3, 7)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--toys", type=int, default=20)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--ways", default=",".join(WAYS))
    args = parser.parse_args(argv)
    heads = ("decoded", "cosine", "length", "variance", "of peer's", f"in {args.toys} toys")
    print(f"{'group':>24}" + "".join(f"{head:>12}" for head in heads))
    toys = [exact(BinaryToy(seed)) for seed in range(args.toys)]
    for way, found in exact(BinaryToy()).items():
        numbers = f"{found.decoded:>12.2f}{found.cosine:>12.4f}{found.length:>12.3f}"
        median = statistics.median(toy[way].over for toy in toys)
        print(f"{way:>24}{numbers}{found.variance:>12.4f}{found.over:>12.3f}{median:>12.3f}")
    if args.steps:
        ways, seeds = args.ways.split(","), [int(seed) for seed in args.seeds.split(",")]
        print()
        runs = [selection.run(way, seed, args.steps, WAYS) for seed in seeds for way in ways]
        selection.table(runs)


if __name__ == "__main__":
    main()
