"""Training on replies whose form a grammar enforced, on toys whose replies are enumerated: why the
gateway enforces none (docs/agents.md)."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

TOKENS, LENGTH, TOYS = 4, 3, 100
LOW = 0.8
"""PPO's lower bound of a ratio: a token below it is clipped."""
PLACES = [prefix for n in range(LENGTH) for prefix in product(range(TOKENS), repeat=n)]
AT = {prefix: place for place, prefix in enumerate(PLACES)}


class Enforced(NamedTuple):
    """Of a toy: the share of free replies that have the form; under the grammar a reply's mean
    ratio (the trained policy over the one that sampled), and the share of tokens whose ratio is
    below LOW; the cosine of the gradient that takes the replies for free ones with that of the mean
    reward under the grammar; and whether the gradient that is corrected by the ratio makes the form
    less likely."""

    share: float
    ratio: float
    below: float
    right: float
    worse: bool


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def _enforced(seed: int) -> Enforced:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 1.5, (len(PLACES), TOKENS))
    allowed = random.random(logits.shape) < 0.5
    allowed[np.arange(len(PLACES)), random.integers(0, TOKENS, len(PLACES))] = True
    free, held = _softmax(logits), _softmax(np.where(allowed, logits, -np.inf))
    all_replies = np.array([*product(range(TOKENS), repeat=LENGTH)])
    places = np.array([[AT[tuple(reply[:n])] for n in range(LENGTH)] for reply in all_replies])
    formed = allowed[places, all_replies].all(1)
    replies, places = all_replies[formed], places[formed]

    def score(policy: np.ndarray) -> np.ndarray:
        """The gradients of the replies' log-probabilities by the logits."""
        found = np.zeros((len(replies), *logits.shape))
        each = np.arange(len(replies))[:, None]
        found[each, places] = -policy[places]
        found[each, places, replies] += 1
        return found

    chance = held[places, replies].prod(1)
    ratios = free[places, replies] / held[places, replies]
    reward = random.random(len(replies))
    advantage = (reward - chance @ reward) * chance
    taken, wanted, corrected, form = (
        np.tensordot(weights, score(policy), 1)
        for weights, policy in (
            (advantage, free),
            (advantage, held),
            (advantage * ratios.prod(1), free),
            (chance * ratios.prod(1), free),
        )
    )
    lengths = np.sqrt((taken**2).sum() * (wanted**2).sum())
    return Enforced(
        float(free[places, replies].prod(1).sum()),
        float(chance @ ratios.prod(1)),
        float(chance @ (ratios < LOW).mean(1)),
        float((taken * wanted).sum() / lengths) if lengths else 1.0,
        bool((corrected * form).sum() < 0),
    )


def test_an_enforced_form_is_off_the_policy_and_teaches_nothing_of_the_form() -> None:
    """The mean ratio of a reply is exactly the share of free replies that have the form, so most
    tokens are clipped; where they are corrected, a group's mean takes the reward of having the form
    away; and where they are taken for free ones, another gradient is followed."""
    toys = [_enforced(seed) for seed in range(TOYS)]
    assert [toy.ratio for toy in toys] == pytest.approx([toy.share for toy in toys])
    share, _, below, right, worse = (np.array(column) for column in zip(*toys, strict=True))
    assert np.median(share) == pytest.approx(0.18, abs=0.01)
    assert below.mean() == pytest.approx(0.63, abs=0.01)
    assert np.median(right) == pytest.approx(0.89, abs=0.01) and right.min() < 0.63
    assert worse.sum() == 48
