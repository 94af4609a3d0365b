"""The mean that a step's loss is, against loops over rollouts in float64, however the step is
split; and GSPO as its paper has it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from test_learner import assert_close, run
from training_world import Rollout, alone, build, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.learner import Learner

BUDGET, LO, HI = 17, 0.7, 1.6
BAND = StalenessConfig(correction=(IcePop(lo=LO, hi=HI),))


def learner(
    staleness: StalenessConfig = BAND, budget: int | None = BUDGET, **settings: Any
) -> Learner:
    train = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, advantage="dr_grpo", **settings)
    return Learner(build("qwen3"), train, staleness, 1.0, budget=budget)


def made(seed: int) -> list[Rollout]:
    """Rollouts of uneven lengths, some wholly stale, some of which the band rejects a part, and one
    of which it rejects all."""
    every = rollouts(build("qwen3"), seed, count=9, noise=0.4)
    every[2].mask = [0] * len(every[2].mask)
    every[5].behaviour = [b - 3.0 for b in every[5].behaviour]
    every[7].behaviour[:1] = [math.nan] * len(every[7].behaviour[:1])
    return every


def plain(
    every: list[Rollout], mean: str, divisor: str
) -> tuple[dict[str, torch.Tensor], float, int]:
    """Gradient and loss, written as sums over rollouts of sums over tokens."""
    model = copy.deepcopy(build("qwen3")).double().eval()
    of_rollouts: list[tuple[torch.Tensor, int, int]] = []
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        advantage = rollout.reward - sum(rewards) / len(rewards)
        total, kept, usable = torch.zeros((), dtype=torch.float64), 0, 0
        current = alone(model, rollout, 1.0)
        for t, behaviour in enumerate(rollout.behaviour):
            if not rollout.mask[t] or math.isnan(behaviour):
                continue
            usable += 1
            ratio = (current[t] - behaviour).exp()
            if LO <= float(ratio.detach()) <= HI:
                kept += 1
                bounded = ratio.clamp(0.8, 1.28)
                total = total - torch.minimum(ratio * advantage, bounded * advantage)
        of_rollouts.append((total, kept, usable))
    counted = [
        (total, kept if divisor == "kept" else usable) for total, kept, usable in of_rollouts
    ]
    there = [(total, tokens) for total, tokens in counted if tokens]
    match mean:
        case "token":
            loss = sum(total for total, _ in there) / sum(tokens for _, tokens in there)
        case "rollout":
            loss = sum(total / tokens for total, tokens in there) / len(there)
        case _:
            loss = sum(total for total, _ in there) / (BUDGET * len(there))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients, float(loss.detach()), len(there)


@pytest.mark.parametrize("mean", ["token", "rollout", "constant"])
@pytest.mark.parametrize("divisor", ["kept", "all"])
def test_each_mean_is_its_formula_whatever_the_split(mean: str, divisor: str) -> None:
    """The rollout of which all is rejected counts with `all`, and does not with `kept`."""
    every = made(1)
    expected, loss, counted = plain(every, mean, divisor)
    _, _, other = plain(every, mean, "all" if divisor == "kept" else "kept")
    assert counted - other == (-1 if divisor == "kept" else 1)
    for parts in ([every], [every[:2], every[2:3], every[3:]], [[r] for r in every]):
        subject = learner(loss_mean=mean, loss_divisor=divisor)
        gradients, metrics, _ = run(subject, parts)
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert_close(gradients, expected, 1e-4)


@pytest.mark.explore
@settings(max_examples=drawn(12))
@given(
    mean=st.sampled_from(["rollout", "constant"]),
    divisor=st.sampled_from(["kept", "all"]),
    places=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    seed=st.integers(0, 9),
)
def test_any_split_gives_the_same_mean(
    mean: str, divisor: str, places: list[int], seed: int
) -> None:
    every = made(seed)
    whole, of_whole, _ = run(learner(loss_mean=mean, loss_divisor=divisor), [every])
    parts = [[r for r, at in zip(every, places, strict=True) if at == part] for part in range(4)]
    split, of_split, _ = run(learner(loss_mean=mean, loss_divisor=divisor), parts)
    assert of_split == pytest.approx(of_whole, rel=1e-4, abs=1e-6)
    assert_close(split, whole, 1e-4)


@pytest.mark.parametrize("seed", [3, 4])
def test_gspo_is_the_papers(seed: int) -> None:
    """`-1/N sum over rollouts of min(s A, clip(s) A)` with s the whole rollout's ratio, to the
    power 1/|y| (arXiv 2507.18071, eq. 5-7), each rollout counting once whatever its length."""
    every = [r for r in rollouts(build("qwen3"), seed, count=9, noise=0.4) if r.response]
    for rollout in every:
        rollout.mask = [1] * len(rollout.mask)
    model = copy.deepcopy(build("qwen3")).double().eval()
    losses = []
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        advantage = rollout.reward - sum(rewards) / len(rewards)
        log = alone(model, rollout, 1.0) - torch.tensor(rollout.behaviour, dtype=torch.float64)
        s = (log.sum() / len(rollout.response)).exp()
        losses.append(-torch.minimum(s * advantage, s.clamp(0.8, 1.28) * advantage))
    assert len({len(r.response) for r in every}) > 3
    torch.stack(losses).mean().backward()
    subject = learner(StalenessConfig(correction=()), objective="gspo")
    gradients, metrics, _ = run(subject, [every[:3], every[3:]])
    assert metrics["loss"] == pytest.approx(float(torch.stack(losses).mean().detach()), abs=1e-5)
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close(gradients, expected, 1e-4)


def test_a_constant_needs_to_know_what_a_response_may_have() -> None:
    with pytest.raises(ValueError, match="needs the budget of a response"):
        learner(budget=None, loss_mean="constant")


@pytest.mark.parametrize("mean", ["token", "rollout", "constant"])
def test_a_step_without_a_token_has_no_loss(mean: str) -> None:
    every = made(1)
    for rollout in every:
        rollout.behaviour = [b - 9.0 for b in rollout.behaviour]
    _, metrics, _ = run(learner(loss_mean=mean, loss_divisor="all"), [every])
    assert metrics["skipped"] == 1 and metrics["loss"] == 0
