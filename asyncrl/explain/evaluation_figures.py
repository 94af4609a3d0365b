"""Figures of one evaluation beside its greedy accuracy: avg@n and pass@k of sampled answers, and
all of them by task.

They are shares of the held-out prompts that were asked, 0 to 1. An answer that never came, or has
no verdict, counts as wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Literal

from asyncrl.words import number

EvaluatedWeights = Literal["current", "ema"]
"""The weights of a version that an evaluation is of: its own, or the average at that version."""

Figures = dict[str, float]
"""Shares by name: `avg@8`, `pass@4`; of one of several tasks with its label: `accuracy/math`."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that of `k` different ones of `samples` answers, `right` of which are right, one
    at least is right: 1 - C(samples - right, k) / C(samples, k).

    It is the unbiased estimator of pass@k (Chen et al., "Evaluating large language models trained
    on code", arXiv 2107.03374, equation 1), as a product that no large number enters. `k` is at
    most `samples`.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    wrong = samples - right
    return 1.0 - prod(max(0, wrong - i) / (samples - i) for i in range(k))


def sampled_figures(right: Sequence[int], samples: int, ks: Iterable[int]) -> Figures:
    """avg@n and each pass@k of prompts that were answered `samples` times each; `right` says how
    often rightly, a number for each prompt, of which there is one at least.

    >>> sampled_figures([1, 4], samples=4, ks=[2])
    {'avg@4': 0.625, 'pass@2': 0.75}
    """
    figures = {f"avg@{samples}": sum(right) / (samples * len(right))}
    for k in sorted(set(ks)):
        figures[f"pass@{k}"] = sum(pass_at_k(samples, one, k) for one in right) / len(right)
    return figures


def evaluation_figures(
    greedy: Sequence[int],
    sampled: Sequence[int],
    labels: Sequence[str],
    samples: int,
    ks: Sequence[int],
) -> Figures:
    """All figures but the accuracy: of sampled answers where `samples` is not 0, and both of each
    task, under its label, where prompts have `labels`. The lists have an entry for each prompt:
    right `greedy` answers (0 or 1), right `sampled` ones (0 to `samples`).

    >>> evaluation_figures([1, 0], [0, 0], ["a", "b"], 0, [])
    {'accuracy/a': 1.0, 'accuracy/b': 0.0}
    """
    figures = sampled_figures(sampled, samples, ks) if samples else {}
    for label in sorted({label for label in labels if label}):
        own = [place for place, other in enumerate(labels) if other == label]
        figures[f"accuracy/{label}"] = sum(greedy[place] for place in own) / len(own)
        if samples:
            of_task = sampled_figures([sampled[place] for place in own], samples, ks)
            figures |= {f"{name}/{label}": share for name, share in of_task.items()}
    return figures


def said(figures: Mapping[str, float]) -> str:
    """The figures in a line: `avg@4 0.625, pass@2 0.750`."""
    return ", ".join(f"{name} {number(value, 3)}" for name, value in figures.items())
