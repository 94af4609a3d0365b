"""A learner after a checkpoint: every field is what was saved. Fields are found by walking through
it, so that one that is added cannot be forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from training_world import build, micro_batch, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import ScoreProximal, Span
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.frozen_policy import FrozenPolicy
from asyncrl.training.kl_terms import KlTerm, KlTerms
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model

STEPS, MAX_LAG = 3, 2
NOT_KEPT = {
    "counts": "those of the step before, which were told",
    "_second": "it has the weights of the version that it scores",
    "_oldest": "the next message tells it, before it is used",
}
"""Fields that a checkpoint need not have, and why."""


def fields(of: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The values in an object, and in all objects of asyncrl that it has, by their paths."""
    if isinstance(of, torch.Tensor | np.ndarray):
        yield (
            path,
            of.detach().double().numpy().copy() if isinstance(of, torch.Tensor) else of.copy(),
        )
    elif isinstance(of, nn.Module):
        for name, tensor in (*of.named_parameters(), *of.named_buffers()):
            yield f"{path}.{name}", tensor.detach().double().numpy().copy()
    elif isinstance(of, torch.optim.Optimizer):
        parameters = [p for group in of.param_groups for p in group["params"]]
        for at, parameter in enumerate(parameters):
            yield from fields(of.state.get(parameter, {}), f"{path}[{at}]", seen)
    elif isinstance(of, Mapping):
        yield f"{path}.keys", {str(name) for name in of}
        for name, value in of.items():
            yield from fields(value, f"{path}[{name}]", seen)
    elif isinstance(of, list | tuple):
        yield f"{path}.length", len(of)
        for at, value in enumerate(of):
            yield from fields(value, f"{path}[{at}]", seen)
    elif isinstance(of, int | float | str | set | frozenset | msgspec.Struct | None):
        yield path, of
    elif type(of).__module__.startswith("asyncrl") and id(of) not in seen:
        seen.add(id(of))
        for name, value in getattr(of, "__dict__", {}).items():
            if name not in NOT_KEPT:
                yield from fields(value, f"{path}.{name}", seen)


def learner(model: nn.Module, kind: str, initial: nn.Module) -> Learner:
    """A learner that remembers as much as one of its kind can."""
    train = TrainConfig(
        lr=1e-2,
        lr_warmup_steps=2,
        weight_decay=0.1,
        ema=0.9 if kind != "snapshot" else 0.0,
        replay_groups=2 if kind == "boundary" else 0,
    )
    staleness = StalenessConfig(proximal=kind, max_lag=MAX_LAG, depth=1)  # type: ignore[arg-type]
    term = KlTerm("reference", 0.1, "loss", "k3", FrozenPolicy(initial), reset_every=2)
    return Learner(model, train, staleness, 0.7, kl_terms=KlTerms((term,), 0.7))


def train(subject: Learner, steps: int) -> None:
    for _ in range(steps):
        version = subject.version
        every = rollouts(build("llama"), seed=version, count=5)
        for rollout in every:
            rollout.number += 100 * version
            rollout.spans = [Span(max(0, version - 1), 0, len(rollout.response))]
        batch, buffers = micro_batch(every, every, version)
        if subject._staleness.proximal == "boundary":
            live = [sample.rollout for sample in batch.samples]
            message = ScoreProximal(version, batch.samples, live, max(0, version - 1))
            subject.score_proximal(message, [buffers[0]])
        subject.accumulate(batch, buffers)
        subject.step()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("boundary", torch.bfloat16),
        ("snapshot", torch.float32),
        ("ema", torch.bfloat16),
    ],
)
def test_every_field_of_a_learner_is_what_was_saved(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    subject = learner(build("qwen3", dtype), kind, build("qwen3", dtype))
    train(subject, STEPS)
    path = save(tmp_path, subject, 7, tmp_path)
    torch.manual_seed(99)
    loaded = learner(load_model(path, dtype), kind, build("qwen3", dtype))
    unlike = dict(fields(loaded, "learner", set()))
    restore(path, loaded)
    saved, found = (dict(fields(one, "learner", set())) for one in (subject, loaded))
    assert saved.keys() == found.keys()
    wrong = [name for name in saved if not np.array_equal(saved[name], found[name])]
    assert not wrong
    parts = {name.split(".")[1].partition("[")[0] for name in saved}
    assert {"model", "optimizer", "master_weights", "version"} <= parts
    changed = {name for name in saved if not np.array_equal(saved[name], unlike.get(name, np.nan))}
    for part in ("optimizer", "kl_terms", "version"):
        assert any(f"learner.{part}" in name for name in changed), f"{part} could be forgotten"
