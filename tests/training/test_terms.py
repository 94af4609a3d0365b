"""Terms beside the objective's loss, against loops over tokens in float64: prime-rl's
square of log-ratios, and an entropy bonus."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from test_learner import assert_close, run
from training_world import Rollout, build, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.staleness.corrections import Dppo, IcePop
from asyncrl.training.forward import entropies
from asyncrl.training.learner import Learner

LO, HI = 0.7, 1.6


def learner(correction: tuple[Any, ...], temperature: float = 1.0, **settings: Any) -> Learner:
    train = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, advantage="dr_grpo", **settings)
    return Learner(build("qwen3"), train, StalenessConfig(correction=correction), temperature)


def distributions(
    model: torch.nn.Module, rollout: Rollout, temperature: float
) -> list[torch.Tensor]:
    """Log-probabilities of all ids at each response token, in float64."""
    ids = torch.tensor([rollout.prompt + rollout.response])
    logits = model(input_ids=ids).logits[0].double() / temperature
    start = len(rollout.prompt) - 1
    return [
        logits[start + t] - logits[start + t].logsumexp(0) for t in range(len(rollout.response))
    ]


def advantage(every: list[Rollout], rollout: Rollout) -> float:
    rewards = [r.reward for r in every if r.group == rollout.group]
    return rollout.reward - sum(rewards) / len(rewards)


@pytest.mark.parametrize("divisor", ["kept", "all"])
@pytest.mark.parametrize(("tau", "bonus"), [(0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_each_term_is_its_formula(divisor: str, tau: float, bonus: float) -> None:
    """A rejected token has both terms where it counts in the divisor, and neither where it does
    not."""
    temperature = 1.3
    every = rollouts(build("qwen3"), 1, noise=0.4, temperature=temperature)
    model = copy.deepcopy(build("qwen3")).double().eval()
    losses, rejected = [], 0
    for rollout in every:
        a = advantage(every, rollout)
        for t, of_all in enumerate(distributions(model, rollout, temperature)):
            if not rollout.mask[t]:
                continue
            log = of_all[rollout.response[t]] - rollout.behaviour[t]
            loss = torch.zeros((), dtype=torch.float64)
            inside = LO <= math.exp(float(log.detach())) <= HI
            rejected += not inside
            if inside:
                loss = -torch.minimum(log.exp() * a, log.exp().clamp(0.8, 1.28) * a)
            if inside or divisor == "all":
                entropy = -sum(of_all.exp() * of_all)
                losses.append(loss + tau * log**2 - bonus * entropy)
    assert rejected > 3
    mean = torch.stack(losses).mean()
    mean.backward()
    subject = learner(
        (IcePop(lo=LO, hi=HI),),
        temperature,
        kl_tau=tau,
        entropy_bonus=bonus,
        loss_divisor=divisor,
    )
    gradients, metrics, _ = run(subject, [every[:4], every[4:]])
    assert metrics["loss"] == pytest.approx(float(mean.detach()), abs=1e-5)
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close(gradients, expected, 1e-4)


@pytest.mark.parametrize("tau", [0.0, 1e-2])
def test_dppo_is_its_own_objective(tau: float) -> None:
    """`-M r A` over all tokens (arXiv 2602.04879, eq. 11-12), with prime-rl's term beside it."""
    every = rollouts(build("qwen3"), 2, noise=0.8)
    model = copy.deepcopy(build("qwen3")).double().eval()
    losses, masked = [], 0
    for rollout in every:
        a = advantage(every, rollout)
        for t, of_all in enumerate(distributions(model, rollout, 1.0)):
            if not rollout.mask[t]:
                continue
            log = of_all[rollout.response[t]] - rollout.behaviour[t]
            now = float(of_all[rollout.response[t]].detach())
            moved = math.exp(now) - math.exp(rollout.behaviour[t])
            out = (a > 0 and moved > 0.02) or (a < 0 and moved < -0.01)
            masked += out
            losses.append((0.0 if out else -log.exp() * a) + tau * log**2)
    assert masked > 3
    mean = torch.stack([torch.as_tensor(loss) for loss in losses]).mean()
    mean.backward()
    subject = learner(
        (Dppo(lo=0.01, hi=0.02),), objective="one_forward", loss_divisor="all", kl_tau=tau
    )
    gradients, metrics, counts = run(subject, [every])
    assert sum(count.discarded.get("dppo", 0) for count in counts.values()) == masked
    assert metrics["loss"] == pytest.approx(float(mean.detach()), abs=1e-5)
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close(gradients, expected, 1e-4)


def test_a_token_that_cannot_be_leaves_the_entropy_a_number() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    found = entropies(logits)
    found.sum().backward()
    assert found.item() == pytest.approx(math.log(2))
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
