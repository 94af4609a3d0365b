"""The gap of rounded weights, against a model that is rounded for good."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from training_world import CONFIGS, build

from asyncrl.training.rounding_gap import TOKENS, rounding_gap


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_distance_from_a_model_that_is_rounded_for_good(name: str) -> None:
    model = build(name).eval()
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    ids = np.random.default_rng(20_240_817).integers(0, model.config.vocab_size, TOKENS + 1)
    batch = torch.from_numpy(ids)[None]
    before = [parameter.clone() for parameter in model.parameters()]

    found = []
    for each in (model, rounded):
        with torch.no_grad():
            scores = torch.log_softmax(each(batch).logits[0].double(), -1)
        found.append(torch.stack([scores[i, ids[i + 1]] for i in range(TOKENS)]))
    expected = float((found[0] - found[1]).abs().mean())

    sent = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    assert rounding_gap(model, sent.items()) == pytest.approx(expected, rel=1e-6) and expected > 0
    assert rounding_gap(rounded, sent.items()) == 0.0
    assert all(map(torch.equal, before, model.parameters()))
