"""Learners that seldom meet, as DiLoCo has them, compared with one learner of as many tokens.

Four learners begin with the warmed-up model of the main job. Each takes H optimizer steps of its
own, on prompts and with samples of its own; then the mean of their changes is applied by an outer
optimizer, and all go on from there (arXiv 2311.08105: Nesterov momentum 0.9 with a rate of 0.7; a
rate of 1 without momentum is the mean of the weights). Inner moments are kept. The peer is one
learner whose steps have the groups of all four: it makes as many steps, of as many tokens. All
sample on policy, greedy held-out accuracy is of the same prompts.

    python bench/diloco.py [--seeds 8] [--rounds 4] [--inner 20]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from vs_trl import ROOT

import asyncrl as rl
from asyncrl import config as configuration
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.library.held_out import HeldOutPrompts

LEARNERS = 4
WAYS = {"broad": None, "mean": (1.0, 0.0), "nesterov": (0.7, 0.9)}
"""The outer rate and momentum; None: one learner of all groups."""

Weights = list[torch.Tensor]


def loaded(**settings: object) -> Config:
    named = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    return configuration.load(ROOT / "run.toml", named, {})


class Policy:
    """A learner with the engine that samples for it."""

    def __init__(self, base: Path, config: Config) -> None:
        self._learner, self._sampler = rl.Learner(base, config), rl.Sampler(base, config)
        self._size = config.rollout.group_size

    @property
    def weights(self) -> Weights:
        """Its own tensors."""
        return [weight.data for weight in self._learner.model.parameters()]

    def step(self, task: rl.Task, prompts: range) -> None:
        """Sample a group for each prompt, and learn from it once."""
        chosen = [number % task.size("train") for number in prompts]
        asked = [task.prompt("train", number) for number in chosen]
        self._learner.add(
            one.rewarded(task.verify("train", chosen[place // self._size], one.answer))
            for place, one in enumerate(self._sampler.generate(asked, self._size))
        )
        self._learner.step()
        self._sampler.load(self._learner)

    def take(self, weights: Weights) -> None:
        """Go on from these weights; the sampler gets them with the next step's."""
        for own, given in zip(self.weights, weights, strict=True):
            own.copy_(given)
        self._sampler.load(self._learner)

    def save(self, path: Path) -> Path:
        return self._learner.save(path)


@contextmanager
def learned(
    base: Path, way: str, seed: int, rounds: int, inner: int, groups: int
) -> Iterator[Path]:
    """The model that one way makes of `base`, in a folder that lasts as long as the block."""
    outer, steps = WAYS[way], rounds * inner
    count = LEARNERS if outer else 1
    each = groups * LEARNERS // count  # groups of a learner in a step
    configs = [
        loaded(run__seed=100 * seed + number, train__steps=steps, train__batch_groups=each)
        for number in range(count)
    ]
    task = rl.open_task(loaded(run__seed=seed))
    policies = [Policy(base, config) for config in configs]
    shared = [weight.clone() for weight in policies[0].weights]
    momentum = [torch.zeros_like(weight) for weight in shared]
    for step in range(steps):
        for number, policy in enumerate(policies):
            first = (step * count + number) * each
            policy.step(task, range(first, first + each))
        if outer and (step + 1) % inner == 0:
            rate, kept = outer
            every = [policy.weights for policy in policies]
            for place, weight in enumerate(shared):
                change = torch.stack([own[place] for own in every]).mean(0) - weight
                momentum[place].mul_(kept).add_(change)
                weight.add_(change + kept * momentum[place], alpha=rate)
            for policy in policies:
                policy.take(shared)
    with tempfile.TemporaryDirectory() as folder:
        yield policies[0].save(Path(folder) / "model")


def main(argv: list[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--inner", type=int, default=20, help="steps between two meetings")
    parser.add_argument("--groups", type=int, default=8, help="groups of a learner in a step")
    options = parser.parse_args(argv)
    base = prepare_model(loaded())
    held = HeldOutPrompts(loaded(run__seed=1000, task__train_size=16))
    say(f"{held.right(base) / held.prompts:.3f} before training")
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way, column in found.items():
            shape = options.rounds, options.inner, options.groups
            with learned(base, way, seed, *shape) as model:
                column.append(held.right(model) / held.prompts)
        say(f"seed {seed}: " + ", ".join(f"{way} {of[-1]:.3f}" for way, of in found.items()))
    for way, column in found.items():
        say(f"{way}: median {statistics.median(column):.3f}, worst {min(column):.3f}")


if __name__ == "__main__":
    main()
