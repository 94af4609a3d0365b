"""Corrections that read entropies, and LUFFY's objective for foreign tokens, against second
formulas: loops over plain numbers."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest
import torch

from asyncrl.algorithms.objectives import Clip, ClipBounds, token_loss
from asyncrl.algorithms.objectives.luffy import Luffy
from asyncrl.algorithms.tokens import Tokens
from asyncrl.staleness.corrections import apply_corrections
from asyncrl.staleness.corrections.echo import Echo
from asyncrl.staleness.corrections.entropy_shaped import EntropyShaped
from asyncrl.staleness.corrections.examples import tokens
from asyncrl.staleness.corrections.step_entropy import StepEntropy

SEEDS = pytest.mark.parametrize("seed", range(6))


def drawn(seed: int, count: int = 24) -> Tokens:
    """Tokens of four rollouts of three turns at most, in any order; those outside of the mask have
    numbers that would show."""
    rng = np.random.default_rng(seed)
    mask = torch.tensor(rng.random(count) < 0.7)
    some = tokens(
        ratios=np.exp(rng.normal(0, 0.3, count)).tolist(),
        sample_index=rng.integers(0, 4, count).tolist(),
        advantage=rng.choice([-1.5, -0.25, 0.0, 0.5, 2.0], count).tolist(),
        behaviour=(-rng.exponential(1, count)).tolist(),
    )
    return some._replace(
        entropy=torch.tensor(rng.exponential(1, count)).float().where(mask, 99.0),
        current=some.current.where(mask, -math.inf),
        turn=torch.tensor(rng.integers(0, 3, count)),
        own=torch.tensor(rng.random(count) < 0.5),
        mask=mask,
    )


def inside(some: Tokens) -> list[int]:
    return [int(t) for t in some.mask.nonzero().flatten()]


def values(tensor: torch.Tensor | None) -> list[float]:
    assert tensor is not None
    return [float(value) for value in tensor]


@SEEDS
@pytest.mark.parametrize("share", [0.01, 0.3, 0.8, 1.0])
def test_turns_of_the_largest_mean_entropy_are_kept(seed: int, share: float) -> None:
    some = drawn(seed)
    turns = dict[tuple[int, int], list[int]]()
    for t in inside(some):
        turns.setdefault((int(some.sample_index[t]), int(values(some.turn)[t])), []).append(t)
    entropy = values(some.entropy)
    ranked = sorted(turns.values(), key=lambda places: -fmean(entropy[t] for t in places))
    expected = sorted(t for places in ranked[: math.ceil(share * len(ranked))] for t in places)
    found = StepEntropy(share=share).apply(some, some.mask)
    assert found.kept.nonzero().flatten().tolist() == expected
    assert torch.equal(found.weight, found.kept.float())


@SEEDS
def test_the_entropy_is_added_up_to_a_part_of_the_advantage(seed: int) -> None:
    some = drawn(seed)
    found = values(EntropyShaped(alpha=0.7, kappa=3.0).apply(some, some.mask).weight)
    assert all(found[t] == 0 for t in range(24) if t not in inside(some))
    capped = set[bool]()
    for t in inside(some):
        a, h = float(some.advantage[t]), values(some.entropy)[t]
        capped.add(0.7 * h > abs(a) / 3)
        assert found[t] * a == pytest.approx(a + min(0.7 * h, abs(a) / 3), rel=1e-5)
        assert found[t] > 0
    assert capped == {True, False}


@SEEDS
def test_a_token_weighs_more_the_less_sure_the_policy_was(seed: int) -> None:
    some = drawn(seed)
    here = inside(some)
    h = [values(some.entropy)[t] for t in here]
    p = [math.exp(float(some.current[t])) for t in here]
    found = Echo(strength=0.3).apply(some, some.mask).weight
    expected = [0.0] * 24
    for t, entropy, chance in zip(here, h, p, strict=True):
        score = (entropy - fmean(h)) / stdev(h) - (chance - fmean(p)) / stdev(p)
        expected[t] = 1 + 0.3 * min(max(score, -2), 2)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    assert seed or {0.4, 1.6} & {round(weight, 4) for weight in found.tolist()}, "no bound is met"


@pytest.mark.parametrize("one", [StepEntropy(), EntropyShaped(), Echo()])
def test_of_no_token_and_of_one_nothing_is_undefined(
    one: StepEntropy | EntropyShaped | Echo,
) -> None:
    some = drawn(1)
    for left in (torch.zeros(24, dtype=torch.bool), some.mask & (some.mask.cumsum(0) == 1)):
        found = apply_corrections([one], some._replace(mask=left), weighted=False)
        assert torch.equal(found.kept, left) and torch.equal(found.weight > 0, left)
        assert bool(found.weight.isfinite().all())


@SEEDS
def test_foreign_tokens_are_shaped_and_own_ones_clipped(seed: int) -> None:
    """The loss and its gradient by the current log-probability, the ratio's and p's own."""
    some, bounds = drawn(seed), ClipBounds(0.1, 0.15)
    current = some.current.where(some.mask, 0.0).double().requires_grad_()
    moved = some._replace(
        current=current, log_ratio=current - some.behaviour.where(some.mask, 0.0).double()
    )
    found = token_loss(Luffy(), moved, bounds)
    (slope,) = torch.autograd.grad(found.loss.sum(), current, retain_graph=True)
    clipped = token_loss(Clip(), moved, bounds)
    (of_own,) = torch.autograd.grad(clipped.loss.sum(), current)
    for t in range(24):
        if values(some.own)[t] or not some.mask[t]:
            assert found.loss[t] == clipped.loss[t] and slope[t] == of_own[t]
            assert found.clipped[t] == clipped.clipped[t]
            continue
        a, p = float(some.advantage[t]), math.exp(float(current[t].detach()))
        assert float(found.loss[t].detach()) == pytest.approx(-a * p / (p + 0.1), abs=1e-9)
        assert float(slope[t]) == pytest.approx(-a * 0.1 * p / (p + 0.1) ** 2, abs=1e-9)
        assert not found.clipped[t]
