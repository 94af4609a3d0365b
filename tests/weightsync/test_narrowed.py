"""Rounded weights: to the nearest, in the plan's order, and nothing that is no number of that
kind."""

from __future__ import annotations

import torch

from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.narrowed import narrowed


def test_numbers_are_rounded_to_the_nearest_and_the_rest_is_as_it_was() -> None:
    whole = {
        "weight": torch.tensor([1.0, 1.0 + 2**-9, 1.0 + 3 * 2**-9, -3e38]),
        "half": torch.tensor([1.0]).bfloat16(),
        "steps": torch.tensor([2**40]),
    }
    found = dict(narrowed(whole.items(), torch.bfloat16))
    assert found["weight"].dtype == torch.bfloat16
    # halfway between 1 and 1 + 2**-7 are 2**-8; a third of an ulp above it goes up
    assert found["weight"][:3].tolist() == [1.0, 1.0, 1.0 + 2**-7]
    assert found["half"] is whole["half"] and found["steps"] is whole["steps"]


def test_the_same_type_is_no_copy() -> None:
    weight = torch.ones(3)
    assert dict(narrowed([("a", weight)], torch.float32))["a"] is weight
    plans = [Plan.of(narrowed([("a", weight)], d), 64) for d in (torch.float32, torch.bfloat16)]
    assert [plan.specs[0].dtype for plan in plans] == ["float32", "bfloat16"]
