"""Reinforcement learning one version behind, written down plainly: `plain_loop` with three policies
where that has one.

Step t learns from what an engine sampled with the weights of version t - 1 (the first step: of
version 0), and an engine is not the trainer: it computes with weights that are a little off. So the
behaviour policy is the engine's of version t - 1, the proximal policy the trainer's of version
t - 1, and the current policy the trainer's of version t; no two of them are the same.

    ratio r       current / proximal: clipped, with its gradient (decoupled PPO, arXiv 2505.24298)
    mismatch k    proximal / behaviour: outside of [lo, hi] the token is left out, and inside k is
                  its weight (IcePop, arXiv 2510.18855)
    loss          the mean of -k min(r A, clip(r, 1 - clip_lo, 1 + clip_hi) A) over what is kept
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from plain_loop import AdamW, Outcome, Rules, Told, advantages, log_probabilities, sampled
from torch import Tensor, nn


class Behind(NamedTuple):
    """Distance of a step's policies behind it, in versions."""

    behaviour: int
    proximal: int


@dataclass
class Seen:
    """Cases that came up in the loss, so that a comparison is known to be one. Counts of tokens;
    `moved`: by how much the weights of the kept ones differ from 1, summed."""

    below: int = 0
    above: int = 0
    left_out: int = 0
    kept: int = 0
    moved: float = 0.0


@dataclass
class Lagged:
    """`engine` gives the model that an engine has when it is sent this one."""

    rules: Rules
    engine: Callable[[nn.Module], nn.Module]
    behind: Behind
    seen: Seen = field(default_factory=Seen)

    def train(self, model: nn.Module) -> Outcome:
        """All steps, from version 0."""
        rules, outcome = self.rules, Outcome({}, [], {})
        model = copy.deepcopy(model).double().eval()
        versions = [copy.deepcopy(model)]
        optimizer = AdamW(list(model.parameters()), rules)
        order = list(range(rules.train_size))
        random.Random(f"{rules.seed}/0").shuffle(order)
        for step in range(rules.steps):
            sampler = self.engine(versions[max(0, step - self.behind.behaviour)])
            anchor = versions[max(0, step - self.behind.proximal)]
            found: list[Tensor] = []
            for place in range(step * rules.batch_groups, (step + 1) * rules.batch_groups):
                item, prompt = order[place], rules.prompt(order[place])
                keys = [rules.group_size * place + member for member in range(rules.group_size)]
                group = [sampled(sampler, rules, prompt, key) for key in keys]
                values = advantages([rules.judge(item, told.ids) for told in group])
                for member, (told, advantage) in enumerate(zip(group, values, strict=True)):
                    outcome.responses[item, member] = told.ids
                    found += self._losses(model, anchor, told, advantage)
            loss = torch.stack(found).mean()
            model.zero_grad()
            loss.backward()
            optimizer.step()
            outcome.losses.append(float(loss.detach()))
            versions.append(copy.deepcopy(model))
        outcome.weights.update({name: p.detach() for name, p in model.named_parameters()})
        return outcome

    def _losses(
        self, model: nn.Module, anchor: nn.Module, told: Told, advantage: float
    ) -> list[Tensor]:
        rules, seen, found = self.rules, self.seen, list[Tensor]()
        every = log_probabilities(model, [*told.prompt, *told.ids], rules.temperature)
        with torch.no_grad():
            proximal = log_probabilities(anchor, [*told.prompt, *told.ids], rules.temperature)
        for index, (token, behaviour) in enumerate(zip(told.ids, told.behaviour, strict=True)):
            at = len(told.prompt) + index - 1
            mismatch = float((proximal[at, token] - behaviour).exp())
            if not rules.lo <= mismatch <= rules.hi:
                seen.left_out += 1
                continue
            ratio = (every[at, token] - proximal[at, token]).exp()
            bounded = ratio.clamp(1 - rules.clip_lo, 1 + rules.clip_hi)
            found.append(-mismatch * torch.minimum(ratio * advantage, bounded * advantage))
            seen.kept += 1
            seen.moved += abs(mismatch - 1)
            seen.below += float(ratio.detach()) < 1 - rules.clip_lo and advantage < 0
            seen.above += float(ratio.detach()) > 1 + rules.clip_hi and advantage > 0
        return found
