"""avg@n and pass@k against an independent reference: each choice of k answers, looked at."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from asyncrl.explain.evaluation_figures import pass_at_k, said, sampled_figures


def enumerated(answers: list[bool], k: int) -> float:
    """The share of choices of k answers in which one is right."""
    found = [any(chosen) for chosen in combinations(answers, k)]
    return sum(found) / len(found)


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_is_the_share_of_all_choices(samples: int) -> None:
    for right in range(samples + 1):
        answers = [n < right for n in range(samples)]
        for k in range(1, samples + 1):
            assert pass_at_k(samples, right, k) == pytest.approx(enumerated(answers, k), abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over all outcomes of n samples, each right with chance p, is 1 - (1 - p)^k."""
    for samples, k, p in ((5, 2, 0.3), (6, 5, 0.1), (4, 4, 0.75)):
        mean = sum(
            comb(samples, right)
            * p**right
            * (1 - p) ** (samples - right)
            * pass_at_k(samples, right, k)
            for right in range(samples + 1)
        )
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_of_many_samples_is_exact_and_stays_in_its_range() -> None:
    for right in (0, 1, 999, 5000, 9999, 10_000):
        exact = 1 - comb(10_000 - right, 100) / comb(10_000, 100)
        assert pass_at_k(10_000, right, 100) == pytest.approx(exact, abs=1e-9)
        assert 0 <= pass_at_k(10_000, right, 100) <= 1


def test_the_figures_are_means_over_prompts() -> None:
    prompts = [[True, False, False], [False] * 3, [True] * 3, [True, True, False]]
    figures = sampled_figures([sum(answers) for answers in prompts], 3, [3, 1, 2, 2])
    assert list(figures) == ["avg@3", "pass@1", "pass@2", "pass@3"]
    assert figures["avg@3"] == pytest.approx(figures["pass@1"]) == pytest.approx(6 / 12)
    for k in (1, 2, 3):
        mean = sum(enumerated(answers, k) for answers in prompts) / 4
        assert figures[f"pass@{k}"] == pytest.approx(mean)
    assert said(figures).startswith("avg@3 0.500, pass@1 0.500, pass@2 ")
