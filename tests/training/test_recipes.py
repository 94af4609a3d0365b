"""Each recipe of docs/recipes.md, as it stands there, is its paper's gradient: one step at lag 1,
against formulas in float64, token by token."""

from __future__ import annotations

import copy
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from test_learner import assert_close, run
from torch import Tensor
from training_world import Rollout, alone, build, rollouts

from asyncrl.config import Config, load
from asyncrl.messages import Span
from asyncrl.training.learner import Learner

PAGE = Path(__file__).parents[2] / "docs/recipes.md"
GROUPS = (4, 3, 4)


def recipes() -> dict[str, str]:
    """The settings on the page by their heading."""
    found = re.findall(r"^## (.+?)\n(.*?)```toml\n(.*?)```", PAGE.read_text(), re.M | re.S)
    return {name: text for name, _, text in found}


class Given(NamedTuple):
    """A rollout, float64: log-probabilities `current` (learned), `prox`, `mu`, and `entropy` of the
    current policy's distributions; its reward and those of its group; `square` is the squared norm
    of the gradient of its whole log-probability."""

    current: Tensor
    prox: Tensor
    mu: Tensor
    entropy: list[float]
    reward: float
    group: list[float]
    place: int
    whole: Sequence[Any]

    @property
    def grpo(self) -> float:
        return (self.reward - statistics.fmean(self.group)) / statistics.stdev(self.group)

    @property
    def centred(self) -> float:
        return self.reward - statistics.fmean(self.group)


World = list[Given]


def clipped(log: Tensor, a: float, lo: float, hi: float) -> Tensor:
    ratio = log.exp()
    return torch.minimum(ratio * a, ratio.clamp(1 - lo, 1 + hi) * a)


def tokens(world: World) -> int:
    return sum(len(y.current) for y in world)


def grpo(world: World, budget: int) -> Tensor:
    return sum(clipped(y.current - y.mu, y.grpo, 0.2, 0.2).mean() for y in world) / len(world)


def dapo(world: World, budget: int) -> Tensor:
    return sum(clipped(y.current - y.mu, y.grpo, 0.2, 0.28).sum() for y in world) / tokens(world)


def dr_grpo(world: World, budget: int) -> Tensor:
    every = sum(clipped(y.current - y.mu, y.centred, 0.2, 0.2).sum() for y in world)
    return every / (len(world) * budget)


def gspo(world: World, budget: int) -> Tensor:
    return sum(clipped((y.current - y.mu).mean(), y.grpo, 3e-4, 4e-4) for y in world) / len(world)


def cispo(world: World, budget: int) -> Tensor:
    return sum(
        (((y.current - y.mu).detach().exp().clamp(max=1.28)) * y.grpo * y.current).sum()
        for y in world
    ) / tokens(world)


def topr(world: World, budget: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        ratio = math.exp(float((y.current - y.mu).sum().detach()))
        total = total + (1.0 if y.centred >= 0 else min(ratio, 1.0)) * y.centred * y.current.sum()
    return total / (len(world) * budget)


def rloo(world: World, budget: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        others = [reward for place, reward in enumerate(y.group) if place != y.place]
        total = total + (y.reward - statistics.fmean(others)) * y.current.sum()
    return total / (len(world) * budget)


def whitened(world: World, score: Callable[[Given], float]) -> Tensor:
    each = [score(y) for y in world for _ in y.current]
    mean, std = statistics.fmean(each), statistics.stdev(each)
    return sum(
        clipped(y.current - y.mu, (score(y) - mean) / std, 0.2, 0.2).sum() for y in world
    ) / tokens(world)


def decoupled(world: World, budget: int) -> Tensor:
    return sum(
        ((y.prox - y.mu).exp().clamp(max=5.0) * clipped(y.current - y.prox, y.grpo, 0.2, 0.2)).sum()
        for y in world
    ) / tokens(world)


def icepop(world: World, budget: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        k = (y.prox - y.mu).exp()
        k = torch.where((k >= 0.5) & (k <= 5.0), k, 0.0)
        total = total + (k * clipped(y.current - y.prox, y.grpo, 0.2, 0.28)).mean()
    return total / len(world)


def intellect_3(world: World, budget: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        k = (y.current - y.mu).exp()
        total = total + torch.where((k >= 0.5) & (k <= 5.0), k, 0.0).sum() * y.centred
    return total / tokens(world)


def dppo(world: World, score: Callable[[Given], float], tau: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        for current, mu in zip(y.current, y.mu.tolist(), strict=True):
            a, moved = score(y), math.exp(float(current.detach())) - math.exp(mu)
            stopped = (a > 0 and moved > 0.2) or (a < 0 and moved < -0.2)
            total = total - tau * (current - mu) ** 2
            if not stopped:
                total = total + (current - mu).exp() * a
    return total / tokens(world)


def m2po(world: World, budget: int) -> Tensor:
    every = [
        (current - mu, y.grpo)
        for y in world
        for current, mu in zip(y.current, y.mu.tolist(), strict=True)
    ]
    pushed = [(float(log.detach()) ** 2, n) for n, (log, a) in enumerate(every) if log * a > 0]
    pushed.sort()
    while pushed and statistics.fmean(square for square, _ in pushed) > 0.04:
        every[pushed.pop()[1]] = (torch.tensor(-math.inf, dtype=torch.float64), 0.0)
    return sum(log.exp() * a for log, a in every if a) / tokens(world)


def eighty_twenty(world: World, budget: int) -> Tensor:
    entropies = sorted((h for y in world for h in y.entropy), reverse=True)
    least = entropies[math.ceil(0.2 * len(entropies)) - 1]
    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        wanted = torch.tensor([h >= least for h in y.entropy])
        total = total + clipped(y.current - y.mu, y.grpo, 0.2, 0.28)[wanted].sum()
    return total / tokens(world)


def vcpo(world: World, budget: int) -> Tensor:
    def weight(y: Given) -> float:
        return math.exp(float((y.current - y.mu).sum().detach()))

    def square(y: Given) -> float:
        found = torch.autograd.grad(y.current.sum(), list(y.whole), retain_graph=True)
        return sum(float(g.square().sum()) for g in found)

    total = torch.zeros((), dtype=torch.float64)
    for y in world:
        siblings = [other for other in world if other.group is y.group]
        each = [weight(s) ** 2 * square(s) for s in siblings]
        baseline = sum(e * s.reward for e, s in zip(each, siblings, strict=True)) / sum(each)
        total = total + min(weight(y), 8.0) * (y.reward - baseline) * y.current.sum()
    return total / (len(world) * budget)


PAPERS: dict[str, Callable[[World, int], Tensor]] = {
    "GRPO": grpo,
    "DAPO": dapo,
    "Dr. GRPO": dr_grpo,
    "GSPO": gspo,
    "CISPO": cispo,
    "TOPR": topr,
    "RLOO": rloo,
    "REINFORCE++": lambda world, _: whitened(world, lambda y: y.reward),
    "REINFORCE++-baseline": lambda world, _: whitened(world, lambda y: y.centred),
    "Decoupled PPO": decoupled,
    "IcePop": icepop,
    "INTELLECT-3": intellect_3,
    "DPPO": lambda world, _: dppo(world, lambda y: y.grpo, 0.0),
    "prime-rl": lambda world, _: dppo(world, lambda y: y.centred, 1e-3),
    "M2PO": m2po,
    "80/20": eighty_twenty,
    "VCPO": vcpo,
}
"""The objective that each paper maximizes."""


def made() -> list[Rollout]:
    """Three uneven groups of version 0, whose rewards differ, sampled by an engine that is not
    quite the trainer."""
    every = [r for r in rollouts(build("qwen3"), 12, count=24, noise=0.35) if r.response]
    every = every[: sum(GROUPS)]
    ends = [sum(GROUPS[: at + 1]) for at in range(len(GROUPS))]
    for place, rollout in enumerate(every):
        rollout.number = 100 + place
        rollout.group = 10 + sum(place >= end for end in ends)
        rollout.reward = float((place * 7) % 5)
        rollout.mask = [1] * len(rollout.response)
        rollout.spans = [Span(0, 0, len(rollout.response))]
    return every


def world_of(every: list[Rollout], now: torch.nn.Module, begun: torch.nn.Module) -> World:
    parameters = list(now.parameters())
    groups = {r.group: [s.reward for s in every if s.group == r.group] for r in every}
    places = {
        r.number: [s.number for s in every if s.group == r.group].index(r.number) for r in every
    }
    found = []
    for rollout in every:
        ids = torch.tensor([rollout.prompt + rollout.response])
        with torch.no_grad():
            logs = now(input_ids=ids).logits[0].log_softmax(-1)[len(rollout.prompt) - 1 : -1]
            prox = alone(begun, rollout, 1.0)  # type: ignore[arg-type]
        found.append(
            Given(
                alone(now, rollout, 1.0),  # type: ignore[arg-type]
                prox,
                torch.tensor(rollout.behaviour, dtype=torch.float64),
                (-(logs.exp() * logs).sum(-1)).tolist(),
                rollout.reward,
                groups[rollout.group],
                places[rollout.number],
                parameters,
            )
        )
    return found


def configured(text: str, tmp_path: Path) -> Config:
    """The settings of the page, and those that make a step small and large enough to be seen."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    small = ["train.grad_clip=1e9", "train.lr_warmup_steps=0", "train.lr=0.01"]
    return load(path, small, {})


def test_the_page_has_a_formula_for_each_recipe_and_names_each_in_its_table() -> None:
    assert recipes().keys() == PAPERS.keys()
    listed = re.findall(r"^\| \[(.+?)\]\(#", PAGE.read_text(), re.M)
    assert listed == list(PAPERS)
    assert all(tomllib.loads(text) for text in recipes().values())


@pytest.mark.explore
@pytest.mark.parametrize("name", PAPERS)
def test_the_settings_give_the_papers_gradient(name: str, tmp_path: Path) -> None:
    config = configured(recipes()[name], tmp_path)
    budget = config.rollout.max_new_tokens
    subject = Learner(build("qwen3"), config.train, config.staleness, 1.0, budget=budget)
    begun = copy.deepcopy(subject.model).double().eval()
    before = [r for r in rollouts(build("qwen3"), 3, count=6, noise=0.0) if r.response]
    for place, rollout in enumerate(before):
        rollout.group, rollout.reward = place % 2, float(place)
    run(subject, [before])  # version 1 is another policy
    now = copy.deepcopy(subject.model).double().eval()
    every = made()
    world = world_of(every, now, begun)
    assert float((world[0].current - world[0].prox).abs().max().detach()) > 0.02
    (-PAPERS[name](world, budget)).backward()
    expected = {key: p.grad for key, p in now.named_parameters() if p.grad is not None}
    ends = (0, GROUPS[0], sum(GROUPS[:2]), sum(GROUPS))
    parts = [every[first:last] for first, last in pairwise(ends)]
    gradients, metrics, _ = run(subject, parts)
    assert metrics["skipped"] == 0
    bound = metrics["clip_fraction"] > 0 or metrics["kept_fraction"] < 1
    assert bound == (name not in ("RLOO", "VCPO"))  # something is out of bounds, or none is
    assert_close(gradients, expected, 2e-4)
