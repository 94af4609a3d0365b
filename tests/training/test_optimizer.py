"""Optimizers: weight decay is of matrices, and what has one dimension is trained as if there were
none; moments in fewer bytes or in host memory, against float32 ones; a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_learner import run
from training_world import build, rollouts

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.config.strategies import StrategyError
from asyncrl.training.checkpoint_index import checkpoint_path
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.optimizer import optimizer_of
from asyncrl.training.optimizer_table import check_optimizer
from asyncrl.training.small_moments import (
    FIRST,
    SECOND,
    Bfloat16,
    EightBit,
    Moments,
    PiecewiseAdamW,
)

LR, DECAY = 1e-3, 0.5
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_matrices_decay(name: str, dtype: torch.dtype) -> None:
    found = []
    for decay in (0.0, DECAY):
        train = TrainConfig(lr=LR, lr_warmup_steps=0, weight_decay=decay)
        subject = Learner(build(name, dtype), train, StalenessConfig(), 1.0)
        before = {key: weight.detach().clone() for key, weight in subject.master_weights.named()}
        run(subject, [rollouts(build(name), seed=1)])
        found.append({key: weight.detach() for key, weight in subject.master_weights.named()})
    without, decayed = found
    of_dimensions = {weight.dim() for weight in before.values()}
    assert of_dimensions == {1, 2}
    for key, weight in before.items():
        pull = LR * DECAY * weight if weight.dim() == 2 else torch.zeros_like(weight)
        assert torch.allclose(decayed[key], without[key] - pull, rtol=0, atol=2e-7), key
        assert weight.dim() == 2 or torch.equal(decayed[key], without[key]), key


BOUNDS = {"adamw_bf16": 0.01, "adamw8bit": 0.15}
"""Largest distance from what float32 moments make of weights, as a share of the way."""
EXACT = ["adamw_fused", "adamw_offloaded"]
"""Those whose moments are float32."""


def trained(optimizer: str, seed: int, steps: int = 60) -> list[torch.Tensor]:
    """Weights at the start and after steps of noisy gradients whose sizes differ by 10^4, of three
    dimensions, two and one."""
    torch.manual_seed(seed)
    shapes = [(3, 40, 70), (30, 300), (50,)]
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    sizes = [10 ** torch.empty_like(weight).uniform_(-4, 0) for weight in weights]
    goals = [torch.randn_like(weight) for weight in weights]
    start = torch.cat([weight.detach().flatten().clone() for weight in weights])
    kind = TrainConfig(lr=0.01, weight_decay=0.1, beta2=0.98, optimizer=optimizer)
    subject = optimizer_of(weights, kind)
    for _ in range(steps):
        for weight, size, goal in zip(weights, sizes, goals, strict=True):
            weight.grad = size * (weight.detach() - goal + torch.randn_like(weight))
        subject.step()
    return [start, torch.cat([weight.detach().flatten() for weight in weights])]


@pytest.mark.parametrize("optimizer", list(BOUNDS))
@pytest.mark.parametrize("seed", [1, 2])
def test_small_moments_lead_to_nearly_the_same_weights(
    optimizer: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a few rows."""
    monkeypatch.setattr("asyncrl.training.small_moments.PIECE", 1000)
    start, exact = trained("adamw", seed)
    _, found = trained(optimizer, seed)
    assert 0 < (found - exact).norm() / (exact - start).norm() < BOUNDS[optimizer]


@pytest.mark.parametrize("optimizer", EXACT)
@pytest.mark.parametrize("seed", [1, 2])
def test_float32_moments_lead_to_the_same_weights(optimizer: str, seed: int) -> None:
    start, exact = trained("adamw", seed)
    _, found = trained(optimizer, seed)
    assert (found - exact).norm() / (exact - start).norm() < 1e-6


@pytest.mark.parametrize(
    ("optimizer", "device", "said"),
    [
        ("adamw_fused", "cuda", "is for cpu, .* set optimizer to adamw, or device to cpu"),
        ("adamw_offloaded", "cpu", "is for cuda, .* set optimizer to adamw, or device to cuda"),
    ],
)
def test_one_is_refused_on_a_device_that_it_is_not_for(
    optimizer: str, device: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_optimizer(TrainConfig(optimizer=optimizer, device=device))


def test_with_moments_of_float32_it_is_torch_s_own() -> None:
    """Weights of one dimension keep these."""
    for optimizer in BOUNDS:
        start, exact = trained("adamw", 3)
        _, found = trained(optimizer, 3)
        assert (found - exact)[-50:].abs().max() < 1e-5 < (exact - start)[-50:].abs().max()


@pytest.mark.parametrize("moments", [Bfloat16(), EightBit()])
def test_moments_are_rounded_to_themselves_in_the_mean(moments: Moments) -> None:
    """Of 256 draws. What they spread over is the distance of two numbers beside each other."""
    torch.manual_seed(0)
    value = torch.randn(4, 300) * 10 ** torch.empty(4, 300).uniform_(-2, 0)
    kept, draws = moments.zeros(value), torch.Generator().manual_seed(1)
    assert not moments.read(kept, FIRST, CPU).any() and not moments.read(kept, SECOND, CPU).any()
    for name, wanted in ((FIRST, value), (SECOND, value.square())):
        every = []
        for _ in range(256):
            moments.write(kept, name, wanted.clone(), draws)
            every.append(moments.read(kept, name, CPU))
        found = torch.stack(every)
        distance = found.amax(0) - found.amin(0)
        assert ((found.mean(0) - wanted).abs() <= distance / 6 + 0.004 * wanted.abs()).all()
        share = 2**-7 if isinstance(moments, Bfloat16) else 0.5
        assert (distance <= share * wanted.abs()).float().mean() > 0.95
        assert (found.sign() == wanted.sign()).all() or name == FIRST


@pytest.mark.parametrize("optimizer", [*BOUNDS, *EXACT])
def test_a_run_that_was_resumed_rounds_alike(optimizer: str, tmp_path: Path) -> None:
    train = TrainConfig(lr=LR, lr_warmup_steps=0, optimizer=optimizer)
    subject = Learner(build("qwen3"), train, StalenessConfig(), 1.0)
    run(subject, [rollouts(build("qwen3"), seed=1)])
    save(tmp_path / "run", subject, 0, tmp_path)
    path = checkpoint_path(tmp_path / "run", 1)
    other = Learner(load_model(path, torch.float32), train, StalenessConfig(), 1.0)
    restore(path, other)
    found = []
    for each in (subject, other):
        assert isinstance(each.optimizer, PiecewiseAdamW) or each.optimizer.defaults["fused"]
        run(each, [rollouts(build("qwen3"), seed=2)])
        found.append([weight.detach() for _, weight in each.master_weights.named()])
    for one, same in zip(*found, strict=True):
        assert torch.equal(one, same)


SIGNS = f"{Path(__file__).parents[2]}/docs/examples/extending/signs.py:Signs"


def test_a_user_s_own_is_saved_and_restored(tmp_path: Path) -> None:
    train = TrainConfig(lr=LR, lr_warmup_steps=0, optimizer=SIGNS)
    subject = Learner(build("qwen3"), train, StalenessConfig(), 1.0)
    before = [weight.detach().clone() for _, weight in subject.master_weights.named()]
    run(subject, [rollouts(build("qwen3"), seed=1)])
    after = [weight.detach().clone() for _, weight in subject.master_weights.named()]
    moved = [(one - other).abs() for one, other in zip(before, after, strict=True)]
    assert all(((m < 1e-7) | ((m - LR).abs() < 1e-6)).all() for m in moved)
    save(tmp_path / "run", subject, 0, tmp_path)
    path = checkpoint_path(tmp_path / "run", 1)
    other = Learner(load_model(path, torch.float32), train, StalenessConfig(), 1.0)
    restore(path, other)
    for name, weight in subject.master_weights.named():
        same = dict(other.master_weights.named())[name]
        kept = subject.optimizer.state[weight]["mean"]
        assert torch.equal(other.optimizer.state[same]["mean"], kept)


def test_what_a_user_s_own_raises_is_one_sentence() -> None:
    train = TrainConfig(lr=LR, lr_warmup_steps=0, optimizer=SIGNS)
    subject = Learner(build("qwen3"), train, StalenessConfig(), 1.0)
    subject.optimizer.param_groups[0]["params"].append(None)
    with pytest.raises(StrategyError, match=r"the optimizer .*:Signs' failed in signs.py, line"):
        run(subject, [rollouts(build("qwen3"), seed=1)])
