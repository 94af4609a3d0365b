"""Every correction once more, from its formula: float64, one rollout after the other, nothing
shared with what is tested.

A reference gives (weight, kept) of each token. What a comparison with a bound says within rounding
of it is nobody's business: `apart_from_rounding` leaves such inputs out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st

from asyncrl.algorithms.tokens import Tokens

Verdict = tuple[list[float], list[bool]]
Reference = Callable[..., Verdict]


class World(NamedTuple):
    """`Tokens` as lists of plain numbers, float64."""

    log_ratio: list[float]
    mask: list[bool]
    sample_index: list[int]
    advantage: list[float]
    behaviour: list[float]
    current: list[float]
    lag: list[int]

    def tokens(self) -> Tokens:
        numbers = [
            torch.tensor(v, dtype=torch.float32)
            for v in (self.log_ratio, self.advantage, self.behaviour, self.current)
        ]
        return Tokens(
            log_ratio=numbers[0],
            mismatch=numbers[0],
            current=numbers[3],
            behaviour=numbers[2],
            advantage=numbers[1],
            lag=torch.tensor(self.lag, dtype=torch.int64),
            sample_index=torch.tensor(self.sample_index, dtype=torch.int64),
            mask=torch.tensor(self.mask, dtype=torch.bool),
            entropy=-numbers[2],  # any number will do
            turn=torch.tensor(self.lag, dtype=torch.int64) % 3,
            own=torch.tensor([n % 2 == 0 for n in range(len(self.lag))], dtype=torch.bool),
        )

    def with_mask(self, mask: list[bool]) -> World:
        return self._replace(mask=mask)

    def rollouts(self) -> list[list[int]]:
        """Places of the tokens in the mask, one list for each rollout that has any."""
        found = [
            [t for t, o in enumerate(self.sample_index) if o == sample_index and self.mask[t]]
            for sample_index in sorted(set(self.sample_index))
        ]
        return [places for places in found if places]

    def only(self, places: Sequence[int]) -> World:
        """These tokens alone."""
        return World(*([values[t] for t in places] for values in self))


SCALE = 2**16
"""A drawn number is an integer over this: exact in float32, and drawn sooner than a float."""


def _scaled(low: float, high: float) -> st.SearchStrategy[int]:
    return st.integers(int(low * SCALE), int(high * SCALE))


TOKENS = st.tuples(
    _scaled(-5, -0.015625),  # behaviour
    _scaled(-1.5, 1.5),  # drift
    _scaled(-1.5, 1.5),  # mismatch
    st.integers(0, 3),  # in the mask unless 0
    st.integers(0, 9),  # lag
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Rollouts of 1 to 6 tokens, uneven, in any order among each other, with numbers that have
    gaps. `log_ratio` is of a proximal policy of its own, so what should be of it and what should be
    of `current - behaviour` cannot be taken for each other."""
    rows = []
    numbers = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    for number in numbers:
        advantage = draw(st.sampled_from([-1.5, -0.25, 0.0, 0.5, 2.0]))
        for *numbers_of_token, inside, lag in draw(st.lists(TOKENS, min_size=1, max_size=6)):
            behaviour, drift, mismatch = (one / SCALE for one in numbers_of_token)
            current = min(behaviour + drift, -0.0078125)
            rows.append((mismatch, inside > 0, number, advantage, behaviour, current, lag))
    rows = draw(st.permutations(rows))
    return World(*map(list, zip(*rows, strict=True)))


def apart_from_rounding(reference: Reference, world: World, **bounds: float) -> Verdict:
    """The reference's verdict, where bounds a little wider and a little narrower agree on what is
    kept."""
    verdict = reference(world, **bounds)
    for nudge in (1 - 1e-5, 1 + 1e-5):
        for name in bounds:
            assume(reference(world, **{**bounds, name: bounds[name] * nudge})[1] == verdict[1])
    return verdict


def _weigh(world: World, weight: Callable[[list[int]], list[float]]) -> Verdict:
    weights = [0.0] * len(world.mask)
    for places in world.rollouts():
        for t, w in zip(places, weight(places), strict=True):
            weights[t] = w
    return weights, list(world.mask)


def _reject(
    world: World,
    keep: Callable[[list[int]], list[bool]],
    weight: Callable[[list[int]], list[float]] | None = None,
) -> Verdict:
    weights, kept = [0.0] * len(world.mask), [False] * len(world.mask)
    for places in world.rollouts():
        values = weight(places) if weight else [1.0] * len(places)
        for t, k, w in zip(places, keep(places), values, strict=True):
            kept[t] = k
            weights[t] = w if k else 0.0
    return weights, kept


def _ratios(world: World, places: list[int]) -> list[float]:
    return [math.exp(world.log_ratio[t]) for t in places]


def _product(world: World, places: list[int]) -> float:
    return float(np.prod(np.array(_ratios(world, places))))


def token_tis(world: World, *, hi: float) -> Verdict:
    return _weigh(world, lambda places: [min(r, hi) for r in _ratios(world, places)])


def sequence_tis(world: World, *, hi: float) -> Verdict:
    return _weigh(world, lambda places: [min(_product(world, places), hi)] * len(places))


def geometric_tis(world: World, *, lo: float, hi: float) -> Verdict:
    return _weigh(
        world,
        lambda places: (
            [min(max(_product(world, places) ** (1 / len(places)), lo), hi)] * len(places)
        ),
    )


def age_decay(world: World, *, gamma: float) -> Verdict:
    return _weigh(world, lambda places: [math.prod([gamma] * world.lag[t]) for t in places])


def icepop(world: World, *, lo: float, hi: float) -> Verdict:
    return _reject(
        world,
        lambda places: [lo <= r <= hi for r in _ratios(world, places)],
        lambda places: _ratios(world, places),
    )


def kpop(world: World, *, hi: float) -> Verdict:
    def divergence(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    def keep(t: int) -> bool:
        q = min(math.exp(world.behaviour[t]), 1 - 1e-6)
        p = min(math.exp(world.behaviour[t] + world.log_ratio[t]), 1 - 1e-6)
        return max(divergence(p, q), divergence(q, p)) <= hi

    return _reject(
        world, lambda places: [keep(t) for t in places], lambda places: _ratios(world, places)
    )


def mis(world: World, *, lo: float, hi: float) -> Verdict:
    return _reject(
        world,
        lambda places: [lo <= _product(world, places) <= hi] * len(places),
        lambda places: [_product(world, places)] * len(places),
    )


def geometric_mask(world: World, *, lo: float, hi: float) -> Verdict:
    return _reject(
        world,
        lambda places: [lo <= _product(world, places) ** (1 / len(places)) <= hi] * len(places),
    )


def k3(world: World, *, hi: float) -> Verdict:
    def mean(places: list[int]) -> float:
        return float(
            np.mean([math.exp(world.log_ratio[t]) - world.log_ratio[t] - 1 for t in places])
        )

    return _reject(world, lambda places: [mean(places) <= hi] * len(places))


def dppo(world: World, *, lo: float, hi: float) -> Verdict:
    def keep(t: int) -> bool:
        p, q = math.exp(world.current[t]), math.exp(world.behaviour[t])
        if world.advantage[t] > 0:
            return p - q <= hi
        return not world.advantage[t] < 0 or q - p <= lo

    return _reject(world, lambda places: [keep(t) for t in places])


def opsm(world: World, *, hi: float) -> Verdict:
    def keep(places: list[int]) -> bool:
        fall = float(np.mean([world.behaviour[t] - world.current[t] for t in places]))
        return not (world.advantage[places[0]] < 0 and fall > hi)

    return _reject(world, lambda places: [keep(places)] * len(places))


def m2po(world: World, *, hi: float) -> Verdict:
    """One token at a time, as the paper has it, over all there are."""
    drift = [c - b for c, b in zip(world.current, world.behaviour, strict=True)]
    kept = list(world.mask)
    region = [
        t
        for t, inside in enumerate(kept)
        if inside and (world.advantage[t] > 0 < drift[t] or world.advantage[t] < 0 > drift[t])
    ]
    while region and sum(drift[t] ** 2 for t in region) / len(region) > hi:
        largest = max(region, key=lambda t: drift[t] ** 2)
        region.remove(largest)
        kept[largest] = False
    return [float(k) for k in kept], kept


def top_entropy(world: World, *, share: float) -> Verdict:
    """Entropy is `-behaviour` in a world. One is kept if fewer than the share are above it."""
    entropies = [-b for b, inside in zip(world.behaviour, world.mask, strict=True) if inside]
    kept = [
        inside and sum(other > -b for other in entropies) < share * len(entropies)
        for b, inside in zip(world.behaviour, world.mask, strict=True)
    ]
    return [float(k) for k in kept], kept
