"""D3S's choice of tokens, against a second formula."""

from __future__ import annotations

import math

import pytest
import torch

from asyncrl.staleness.corrections.abs_advantage_entropy import AbsAdvantageEntropy
from asyncrl.staleness.corrections.examples import tokens

ADVANTAGE = [-2.0, 0.5, 1.0, 0.0, -0.25, 3.0]
ENTROPY = [1.0, 3.0, 1.0, 9.0, 0.1, 0.2]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("left", [0b111111, 0b101101, 0b000001, 0])
def test_the_largest_products_are_kept(share: float, left: int) -> None:
    mask = torch.tensor([bool(left >> place & 1) for place in range(6)])
    some = tokens(ratios=[1.0] * 6)._replace(
        advantage=torch.tensor(ADVANTAGE), entropy=torch.tensor(ENTROPY), mask=mask
    )
    found = AbsAdvantageEntropy(share=share).apply(some, mask)
    values = {n: abs(ADVANTAGE[n]) * ENTROPY[n] for n in range(6) if left >> n & 1}
    count = math.ceil(share * len(values))
    ranked = sorted(values, key=lambda n: -values[n])[:count]
    assert [n for n, kept in enumerate(found.kept.tolist()) if kept] == sorted(ranked)
    assert found.weight.tolist() == found.kept.float().tolist()
