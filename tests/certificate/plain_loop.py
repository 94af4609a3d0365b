"""Reinforcement learning written down plainly: one loop, one rollout at a time, float64, no cache,
no packing, nothing of asyncrl.

Every rule that a run at lag 0 has to follow is said again here in its own words: the order of the
data, the draws, the sampler, the advantage, the loss, the clip of the gradient, AdamW and the
learning rate. A stop id ends a response and is part of it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64


class Rules(NamedTuple):
    """Settings that the loop is told; the names are run.toml's. `stop` is the stop id, `judge`
    gives an item's response its reward."""

    steps: int
    batch_groups: int
    group_size: int
    max_new_tokens: int
    temperature: float
    seed: int
    train_size: int
    stop: int
    lr: float
    lr_warmup_steps: int
    beta1: float
    beta2: float
    weight_decay: float
    grad_clip: float
    clip_lo: float
    clip_hi: float
    lo: float
    hi: float
    prompt: Callable[[int], list[int]]
    judge: Callable[[int, Sequence[int]], float]


class Outcome(NamedTuple):
    """`responses`: ids by (item, member). `losses`: of each step. `weights`: by parameter, float64,
    after the last step."""

    responses: dict[tuple[int, int], list[int]]
    losses: list[float]
    weights: dict[str, Tensor]


class Told(NamedTuple):
    """One response and what is needed to learn from it. `behaviour`: its log-probabilities when it
    was sampled."""

    prompt: list[int]
    ids: list[int]
    behaviour: list[float]


def scrambled(z: int) -> int:
    """SplitMix64's finalizer."""
    z = (z ^ z >> 30) * FIRST % WORD
    z = (z ^ z >> 27) * SECOND % WORD
    return z ^ z >> 31


def uniform(seed: int, key: int, index: int) -> float:
    """Draw `index` of the stream of (seed, key): 52 bits of SplitMix64, started at a hash of
    both."""
    start = scrambled((scrambled((seed + GOLDEN) % WORD) + key * SECOND) % WORD)
    return (scrambled((start + (index + 1) * GOLDEN) % WORD) >> 12) / 2**52


def log_probabilities(model: nn.Module, ids: Sequence[int], temperature: float) -> Tensor:
    """[len(ids), vocabulary]: row i is the distribution of token i + 1."""
    logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return (logits.double() / temperature).log_softmax(-1)


def sampled(model: nn.Module, rules: Rules, prompt: list[int], key: int) -> Told:
    """One response, token by token, by the inverse of the cumulative distribution."""
    ids, behaviour = list[int](), list[float]()
    while len(ids) < rules.max_new_tokens and rules.stop not in ids:
        with torch.no_grad():
            last = log_probabilities(model, [*prompt, *ids], rules.temperature)[-1]
        below, u = last.exp().cumsum(0), uniform(rules.seed, key, len(ids))
        ids.append(int((below <= u * below[-1]).sum()))
        behaviour.append(float(last[ids[-1]]))
    return Told(prompt, ids, behaviour)


def advantages(rewards: Sequence[float]) -> list[float]:
    """GRPO's, of one group: distance from the mean in sample standard deviations."""
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / max(deviation, 1e-4) for reward in rewards]


def losses(model: nn.Module, rules: Rules, told: Told, advantage: float) -> list[Tensor]:
    """Of each token whose ratio is in the band: clipped, against the policy that sampled it."""
    every = log_probabilities(model, [*told.prompt, *told.ids], rules.temperature)
    found = []
    for index, (token, before) in enumerate(zip(told.ids, told.behaviour, strict=True)):
        ratio = (every[len(told.prompt) + index - 1, token] - before).exp()
        if rules.lo <= float(ratio.detach()) <= rules.hi:
            bounded = ratio.clamp(1 - rules.clip_lo, 1 + rules.clip_hi)
            found.append(-torch.minimum(ratio * advantage, bounded * advantage))
    return found


class AdamW:
    """AdamW (arXiv 1711.05101), of a gradient whose norm is clipped first."""

    def __init__(self, parameters: Sequence[nn.Parameter], rules: Rules) -> None:
        self._parameters, self._rules, self._step = parameters, rules, 0
        self._mean = [torch.zeros_like(p) for p in parameters]
        self._square = [torch.zeros_like(p) for p in parameters]

    def step(self) -> None:
        rules, step = self._rules, self._step
        rate = rules.lr * min(1.0, (step + 1) / (rules.lr_warmup_steps + 1))
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        scale = min(1.0, rules.grad_clip / (norm + 1e-6))
        with torch.no_grad():
            for p, g, mean, square in zip(
                self._parameters, gradients, self._mean, self._square, strict=True
            ):
                mean += (1 - rules.beta1) * (scale * g - mean)
                square += (1 - rules.beta2) * ((scale * g).square() - square)
                if p.dim() == 2:  # only matrices decay
                    p *= 1 - rate * rules.weight_decay
                p -= (
                    rate
                    * (mean / (1 - rules.beta1 ** (step + 1)))
                    / ((square / (1 - rules.beta2 ** (step + 1))).sqrt() + 1e-8)
                )
        self._step += 1


def train(model: nn.Module, rules: Rules) -> Outcome:
    """Generate a step, judge it, learn from it, and only then generate the next."""
    model = copy.deepcopy(model).double().eval()
    optimizer = AdamW(list(model.parameters()), rules)
    order = list(range(rules.train_size))
    random.Random(f"{rules.seed}/0").shuffle(order)
    outcome = Outcome({}, [], {})
    for step in range(rules.steps):
        found: list[Tensor] = []
        for place in range(step * rules.batch_groups, (step + 1) * rules.batch_groups):
            prompt_index = order[place]
            group = [
                sampled(model, rules, rules.prompt(prompt_index), rules.group_size * place + member)
                for member in range(rules.group_size)
            ]
            for member, (told, advantage) in enumerate(
                zip(
                    group,
                    advantages([rules.judge(prompt_index, told.ids) for told in group]),
                    strict=True,
                )
            ):
                outcome.responses[prompt_index, member] = told.ids
                found += losses(model, rules, told, advantage)
        loss = torch.stack(found).mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        outcome.losses.append(float(loss.detach()))
    outcome.weights.update({name: p.detach() for name, p in model.named_parameters()})
    return outcome
