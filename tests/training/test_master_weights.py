"""Master weights: the optimizer changes float32, whatever type the model computes in."""

from __future__ import annotations

import pytest
import torch
from training_world import build, micro_batch, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training.learner import Learner
from asyncrl.training.master_weights import MasterWeights

TRAIN = TrainConfig(lr=2e-5, lr_warmup_steps=0, grad_clip=1e9)


def test_of_a_float32_model_they_are_the_parameters() -> None:
    model = build("qwen3")
    master_weights = MasterWeights(model)
    assert (
        all(
            master is dict(model.named_parameters())[name]
            for name, master in master_weights.named()
        )
        and not master_weights.copies()
    )


@pytest.mark.explore
def test_steps_too_small_for_bfloat16_are_not_lost() -> None:
    """Against AdamW over float32 copies, given the sum in float32 of what autograd finds for each
    micro-batch, by a loop of its own."""
    learner, plain = (build("qwen3", torch.bfloat16) for _ in range(2))
    subject = Learner(learner, TRAIN, StalenessConfig(), 1.0)
    other = Learner(plain, TRAIN, StalenessConfig(), 1.0)  # for its gradients alone
    copies = {name: p.detach().float().requires_grad_() for name, p in plain.named_parameters()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [copy for copy in copies.values() if copy.dim() == 2]},
            {
                "params": [copy for copy in copies.values() if copy.dim() == 1],
                "weight_decay": 0.0,
            },
        ],
        lr=TRAIN.lr,
        betas=(TRAIN.beta1, TRAIN.beta2),
        weight_decay=TRAIN.weight_decay,
    )
    first = {name: p.detach().clone() for name, p in learner.named_parameters()}
    for step in range(40):
        every = rollouts(build("llama"), seed=step % 8, count=8)
        batches = [micro_batch(every[:4], every, step, 0), micro_batch(every[4:], every, step, 1)]
        trained = sum(count.trained for batch in batches for count in subject.accumulate(*batch))
        subject.step()

        sums = {name: torch.zeros_like(copy) for name, copy in copies.items()}
        for batch in batches:
            other.accumulate(*batch)
            for name, master in other.master_weights.named():
                if master.grad is not None:
                    sums[name] += master.grad
                    master.grad = None
        for name, copy in copies.items():
            copy.grad = sums[name] / trained
        optimizer.step()
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                parameter.copy_(copies[name])
        other.version += 1
    for name, master in subject.master_weights.named():
        parameter = dict(learner.named_parameters())[name]
        assert (
            parameter.dtype == torch.bfloat16
            and parameter.grad is None
            and torch.equal(parameter, master.bfloat16())
        )
        torch.testing.assert_close(master.detach(), copies[name].detach(), rtol=0, atol=1e-7)
    moved = sum(
        float((parameter != first[name]).float().sum())
        for name, parameter in learner.named_parameters()
    )
    each = sum(p.numel() for p in learner.parameters())
    one = sum(float(((p + TRAIN.lr).bfloat16() != p).float().sum()) for p in first.values())
    assert one < 0.05 * each and moved > 5 * max(one, 10), (
        "a single step would be rounded away, and forty are not"
    )
