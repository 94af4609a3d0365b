"""Each objective and its gradient against the formula in float64: loops over rollouts, closed
forms, nothing shared with what is tested."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from correction_reference import World, worlds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from some_values import drawn, some
from torch import Tensor

from asyncrl.algorithms.objectives import ClipBounds, DualClip, TokenLoss, token_loss
from asyncrl.algorithms.objectives.ppo import clipped
from asyncrl.config.loss_names import OBJECTIVES
from asyncrl.staleness.corrections import IcePop, apply_corrections
from asyncrl.staleness.corrections.examples import tokens as examples
from asyncrl.staleness.proximal import log_ratios, recompute

LO, HI, DUAL = 0.2, 0.28, 1.6
BOUNDS = ClipBounds(LO, HI, DUAL)
"""Bounds of all formulas here; the dual clip is near enough to be met."""


class Expected(NamedTuple):
    """Of one token: its loss, the gradient of the loss's sum with respect to its current
    log-probability, and whether a bound is met."""

    loss: float
    gradient: float
    clipped: bool


Formula = Callable[[World, list[int], int], Expected]
"""World, places of the rollout's tokens in the mask, place of the token. `log_ratio` is current -
proximal."""


def _near(value: float, *bounds: float) -> bool:
    return any(abs(value - bound) < 1e-4 for bound in bounds)


def _surrogate(r: float, a: float) -> Expected:
    assume(not _near(r, 1 - LO, 1 + HI))
    bounded = min(max(r, 1 - LO), 1 + HI)
    stopped = (a > 0 and r > 1 + HI) or (a < 0 and r < 1 - LO)
    return Expected(-min(r * a, bounded * a), 0.0 if stopped else -r * a, stopped)


def clip(world: World, places: list[int], t: int) -> Expected:
    return _surrogate(math.exp(world.log_ratio[t]), world.advantage[t])


def dual_clip(world: World, places: list[int], t: int) -> Expected:
    r, a = math.exp(world.log_ratio[t]), world.advantage[t]
    assume(not _near(r, DUAL))
    return Expected(-DUAL * a, 0.0, True) if a < 0 and r > DUAL else _surrogate(r, a)


def gspo(world: World, places: list[int], t: int) -> Expected:
    s = math.exp(sum(world.log_ratio[u] for u in places) / len(places))
    return _surrogate(s, world.advantage[t])


def cispo(world: World, places: list[int], t: int) -> Expected:
    r, a = math.exp(world.log_ratio[t]), world.advantage[t]
    assume(not _near(r, 1 + HI))
    w = min(r, 1 + HI)
    return Expected(-w * a * world.current[t], -w * a, r > 1 + HI)


def topr(world: World, places: list[int], t: int) -> Expected:
    total, a = sum(world.log_ratio[u] for u in places), world.advantage[t]
    assume(not _near(total, 0.0))
    w = 1.0 if a >= 0 else min(math.exp(total), 1.0)
    return Expected(-w * a * world.current[t], -w * a, a < 0 < total)


def reinforce(world: World, places: list[int], t: int) -> Expected:
    return Expected(-world.advantage[t] * world.current[t], -world.advantage[t], False)


def one_forward(world: World, places: list[int], t: int) -> Expected:
    k, a = math.exp(world.log_ratio[t]), world.advantage[t]
    return Expected(-k * a, -k * a, False)


FORMULAS: dict[str, Formula] = {
    "clip": clip,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "cispo": cispo,
    "topr": topr,
    "reinforce": reinforce,
    "one_forward": one_forward,
}
every = pytest.mark.parametrize("kind", some(FORMULAS))


def run(kind: str, world: World) -> tuple[TokenLoss, Tensor]:
    """The objective with `current` the one thing that is learned, and the gradient of its sum."""
    tokens = world.tokens()
    current = tokens.current.clone().requires_grad_()
    proximal = tokens.current - tokens.log_ratio
    inputs = tokens._replace(log_ratio=current - proximal, current=current)
    result = token_loss(OBJECTIVES.find(kind)(), inputs, BOUNDS)
    (gradient,) = torch.autograd.grad(result.loss.sum(), current)
    return result, gradient


@every
class TestEvery:
    @settings(max_examples=drawn(100))
    @given(worlds())
    def test_is_the_formula_and_its_gradient(self, kind: str, world: World) -> None:
        expected = [Expected(0.0, 0.0, False)] * len(world.mask)
        for places in world.rollouts():
            for t in places:
                expected[t] = FORMULAS[kind](world, places, t)
        result, gradient = run(kind, world)
        assert result.loss.tolist() == pytest.approx([e.loss for e in expected], rel=1e-4, abs=1e-5)
        assert gradient.tolist() == pytest.approx(
            [e.gradient for e in expected], rel=1e-4, abs=1e-5
        )
        zero = [a == 0 for a in world.advantage]  # where no gradient is to be clipped
        assert [c or z for c, z in zip(result.clipped.tolist(), zero, strict=True)] == [
            e.clipped or z for e, z in zip(expected, zero, strict=True)
        ]

    @given(worlds())
    def test_reduces_nothing_so_that_a_step_may_be_split(self, kind: str, world: World) -> None:
        """The token mean of DAPO is over the step: sums of parts, divided once."""
        whole, gradient = run(kind, world)
        for sample_index in set(world.sample_index):
            places = [t for t, o in enumerate(world.sample_index) if o == sample_index]
            part, part_gradient = run(kind, world.only(places))
            assert part.loss.tolist() == pytest.approx(
                whole.loss[places].tolist(), rel=1e-5, abs=1e-6
            )
            assert part_gradient.tolist() == pytest.approx(
                gradient[places].tolist(), rel=1e-5, abs=1e-6
            )

    @given(worlds())
    def test_what_is_outside_of_the_mask_is_no_part_of_it(self, kind: str, world: World) -> None:
        """Trap 4, with log-probabilities that are no numbers."""
        expected, gradient = run(kind, world)
        tokens = world.tokens()
        outside = ~tokens.mask
        current = torch.where(outside, math.nan, tokens.current).requires_grad_()
        log = torch.where(outside, 15.0, current - (tokens.current - tokens.log_ratio))
        advantage = torch.where(outside, math.inf, tokens.advantage)
        inputs = tokens._replace(log_ratio=log, current=current, advantage=advantage)
        result = token_loss(OBJECTIVES.find(kind)(), inputs, BOUNDS)
        assert torch.equal(result.loss, expected.loss) and torch.equal(
            result.clipped, expected.clipped
        )
        (got,) = torch.autograd.grad(result.loss.sum(), current)
        assert torch.equal(got, gradient)
        assert not result.loss[outside].any() and not result.clipped[outside].any()

    @pytest.mark.parametrize("log", [500.0, -500.0])
    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    def test_a_huge_ratio_is_not_nan(self, kind: str, log: float, advantage: float) -> None:
        world = World(
            [log] * 2, [True] * 2, [0, 0], [advantage] * 2, [-1.0] * 2, [-2.0] * 2, [0] * 2
        )
        result, gradient = run(kind, world)
        assert torch.isfinite(result.loss).all() and torch.isfinite(gradient).all()


def one(*ratios: float, advantage: float) -> tuple[Tensor, Tensor]:
    """Log-ratios that learn, of one advantage."""
    return torch.tensor([math.log(r) for r in ratios], requires_grad=True), torch.full(
        (len(ratios),), advantage
    )


class TestClip:
    def test_asymmetric_bounds(self) -> None:
        """DAPO: 1.25 is inside of 1 + hi, 0.75 is outside of 1 - lo; the other sides are never
        clipped."""
        for advantage, stopped in ((1.0, [False, True, False]), (-1.0, [True, False, False])):
            ratios = (1.25, 1.3, 0.5) if advantage > 0 else (0.75, 0.85, 1.5)
            log, a = one(*ratios, advantage=advantage)
            result = clipped(log, a, ClipBounds(lo=0.2, hi=0.28))
            result.loss.sum().backward()
            assert result.clipped.tolist() == stopped
            assert log.grad is not None and (log.grad == 0).tolist() == stopped

    def test_dual_clip_is_for_what_did_badly_alone(self) -> None:
        for advantage, losses in ((-2.0, [5.8, 6.0]), (2.0, [-2.56, -2.56])):
            some = examples(ratios=[2.9, 3.1], advantage=[advantage] * 2)
            found = DualClip().per_token(some, ClipBounds(lo=0.2, hi=0.28, dual=3.0))
            assert found.loss.tolist() == pytest.approx(losses)

    def test_around_the_current_policy_it_does_nothing(self) -> None:
        """`recompute` with one step for each version: the ratio is 1, and the gradient that of
        REINFORCE."""
        current = torch.tensor([-0.5, -3.0], requires_grad=True)
        logs = log_ratios(current, torch.tensor([-4.0, -0.1]), recompute(current))
        result = clipped(logs.log_ratio, torch.tensor([1.0, -2.0]), ClipBounds(lo=1e-3, hi=1e-3))
        result.loss.sum().backward()
        assert result.loss.tolist() == [-1.0, 2.0] and not result.clipped.any()
        assert current.grad is not None and current.grad.tolist() == [-1.0, 2.0]


@given(worlds(), st.floats(0.3, 0.9), st.floats(1.1, 4))
def test_decoupled_is_the_clip_around_the_proximal_policy_weighted_from_it_to_the_behaviour_policy(
    world: World, lo: float, hi: float
) -> None:
    """`-w min(r A, clip(r) A)`, with w from proximal - behaviour, which has no gradient, and r from
    current - proximal."""
    tokens = world.tokens()
    current, proximal = tokens.current.clone().requires_grad_(), tokens.behaviour + tokens.log_ratio
    logs = log_ratios(current, tokens.behaviour, proximal)
    fixed = apply_corrections(
        [IcePop(lo=lo, hi=hi)], tokens._replace(mismatch=logs.mismatch), weighted=True
    )
    inputs = tokens._replace(log_ratio=logs.log_ratio, current=current, mask=fixed.kept)
    loss = fixed.weight * token_loss(OBJECTIVES.find("clip")(), inputs, BOUNDS).loss
    (gradient,) = torch.autograd.grad(loss.sum(), current)
    for t, inside in enumerate(world.mask):
        w, r, a = (
            math.exp(world.log_ratio[t]),
            math.exp(world.current[t] - world.behaviour[t] - world.log_ratio[t]),
            world.advantage[t],
        )
        assume(not _near(w, lo, hi))
        one_token = _surrogate(r, a)
        w = w if inside and lo <= w <= hi else 0.0
        assert loss[t].item() == pytest.approx(w * one_token.loss, rel=1e-4, abs=1e-5)
        assert gradient[t].item() == pytest.approx(w * one_token.gradient, rel=1e-4, abs=1e-5)


@given(worlds())
def test_gspo_is_the_gradient_of_the_rollouts_own_ratio(world: World) -> None:
    """Its token form against the objective of rollouts, differentiated as it stands: a rollout
    counts once for each token."""
    tokens = world.tokens()
    current = tokens.current.double().requires_grad_()
    proximal = (tokens.current - tokens.log_ratio).double()
    total = torch.zeros((), dtype=torch.float64) + 0 * current.sum()
    for places in world.rollouts():
        s = torch.exp((current[places] - proximal[places]).mean())
        assume(not _near(s.item(), 1 - LO, 1 + HI))
        a = world.advantage[places[0]]
        total = total - len(places) * torch.minimum(s * a, s.clamp(1 - LO, 1 + HI) * a)
    (expected,) = torch.autograd.grad(total, current)
    result, gradient = run("gspo", world)
    assert float(result.loss.detach().sum()) == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    assert gradient.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)


@given(worlds(), st.floats(0.3, 0.9), st.floats(1.1, 4))
def test_one_forward_after_icepop_is_the_masked_ratio_of_intellect_3(
    world: World, lo: float, hi: float
) -> None:
    """`-M(k) A` with M(k) = k in the band and 0 outside, the gradient through k: no weight on top,
    the mask alone."""
    tokens = world.tokens()
    current = tokens.current.clone().requires_grad_()
    logs = log_ratios(current, tokens.behaviour, None)
    fixed = apply_corrections(
        [IcePop(lo=lo, hi=hi)], tokens._replace(mismatch=logs.mismatch), weighted=False
    )
    inputs = tokens._replace(log_ratio=logs.log_ratio, current=current, mask=fixed.kept)
    loss = fixed.weight * token_loss(OBJECTIVES.find("one_forward")(), inputs, BOUNDS).loss
    (gradient,) = torch.autograd.grad(loss.sum(), current)
    for t, inside in enumerate(world.mask):
        k = math.exp(world.current[t] - world.behaviour[t])
        assume(not _near(k, lo, hi))
        expected = -k * world.advantage[t] if inside and lo <= k <= hi else 0.0
        assert loss[t].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert gradient[t].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
