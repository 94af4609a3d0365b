"""Sampling of tokens from logits. Invariant: a row's token and log-probability are functions of
that row's logits, temperature and uniform alone."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits: Tensor, temperature: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token a row, by the inverse of the cumulative distribution in vocabulary order;
    greedily where the temperature is 0.

    logits: [rows, vocabulary], any float; temperature: float32 [rows], at least 0; uniforms:
    float64 [rows] in [0, 1 - 2**-52]. Returns tokens int64 [rows] and their log-probabilities
    float32 [rows], which are `log_softmax(logits / temperature)` in float32, of the unscaled logits
    in greedy rows.

    The token is the first whose float64 cumulative probability exceeds `u` times the total, so one
    of probability zero is never chosen. One uniform a token keeps a rollout's draws independent of
    its neighbours. Where two runs' logits differ by rounding (another batch composition), the
    chosen token differs only if `u` falls between the two cumulative sums: probability about 1e-6 a
    token in float32.
    """
    greedy = temperature == 0
    scaled = (
        logits.float() / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    )
    log_probabilities = scaled.log_softmax(-1)
    cumulative = log_probabilities.exp().cumsum(-1, dtype=torch.float64)
    sampled = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(-1)
    tokens = torch.where(greedy, scaled.argmax(-1), sampled)
    return tokens, log_probabilities.gather(1, tokens[:, None])[:, 0]
