"""Weight decay is of matrices: what has one dimension is trained as if there were none."""

from __future__ import annotations

import pytest
import torch
from test_learner import run
from training_world import build, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training.learner import Learner

LR, DECAY = 1e-3, 0.5


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_matrices_decay(name: str, dtype: torch.dtype) -> None:
    found = []
    for decay in (0.0, DECAY):
        train = TrainConfig(lr=LR, lr_warmup_steps=0, weight_decay=decay)
        subject = Learner(build(name, dtype), train, StalenessConfig(), 1.0)
        before = {key: weight.detach().clone() for key, weight in subject.master_weights.named()}
        run(subject, [rollouts(build(name), seed=1)])
        found.append({key: weight.detach() for key, weight in subject.master_weights.named()})
    without, decayed = found
    of_dimensions = {weight.dim() for weight in before.values()}
    assert of_dimensions == {1, 2}
    for key, weight in before.items():
        pull = LR * DECAY * weight if weight.dim() == 2 else torch.zeros_like(weight)
        assert torch.allclose(decayed[key], without[key] - pull, rtol=0, atol=2e-7), key
        assert weight.dim() == 2 or torch.equal(decayed[key], without[key]), key
