"""The average of the weights against an explicit sum in float64; as a proximal policy against a
loop over tokens; and through a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest
import torch
from some_values import some
from training_world import TEMPERATURE, Rollout, alone, build, micro_batch, rollouts
from transformers import PreTrainedModel

from asyncrl.config import ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.staleness.corrections import TokenTis
from asyncrl.training.checkpoint_index import CheckpointError
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model

DECAY = 0.7
TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=2e-2, ema=DECAY, clip_lo=0.1, clip_hi=0.15)
STALENESS = StalenessConfig(proximal="ema", correction=(TokenTis(hi=2.0),))


def learner(model: PreTrainedModel) -> Learner:
    return Learner(model, TRAIN, STALENESS, TEMPERATURE)


def groups(seed: int) -> list[Rollout]:
    every = rollouts(build("qwen3"), seed, count=6, noise=0.3)
    for place, rollout in enumerate(every):
        rollout.group = place // 3
    return every


def train(it: Learner, steps: int) -> list[dict[str, torch.Tensor]]:
    """Train, and give the weights of each version, the first one included, in float64."""
    versions = [exact(it)]
    for _ in range(steps):
        every = groups(it.version)
        it.accumulate(*micro_batch(every, every, it.version))
        it.step()
        versions.append(exact(it))
    return versions


def exact(it: Learner) -> dict[str, torch.Tensor]:
    return {n: master.detach().double().clone() for n, master in it.master_weights.named()}


def mean(versions: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The weighted sum over the sum of the weights."""
    weights = [DECAY ** (len(versions) - 1 - v) for v in range(len(versions))]
    return {
        name: sum(w * of[name] for w, of in zip(weights, versions, strict=True))  # type: ignore[misc]
        / sum(weights)
        for name in versions[0]
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_weighted_mean_of_all_versions(dtype: torch.dtype) -> None:
    it = learner(build("qwen3", dtype))
    versions = train(it, 4)
    assert it.average is not None
    rounding = 1e-6 if dtype == torch.float32 else 1e-2
    for name, expected in mean(versions).items():
        found = dict(it.average.tensors())[f"weights/{name}"]
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)
        own = dict(it.average.policy.weights())[name]
        torch.testing.assert_close(own.double(), expected, atol=rounding, rtol=rounding)


def test_as_the_proximal_policy_it_is_what_the_ratio_is_clipped_around() -> None:
    """Decoupled PPO: the ratio is to the average, the weight from it to the behaviour policy."""
    it = learner(build("qwen3"))
    versions = train(it, 3)
    averaged, model = copy.deepcopy(it.model).double(), copy.deepcopy(it.model).double()
    with torch.no_grad():
        for name, parameter in averaged.named_parameters():
            parameter.copy_(mean(versions)[name])
    model.requires_grad_(True)
    every, losses, clipped = groups(9), list[torch.Tensor](), 0
    for r in every:
        rewards = torch.tensor([s.reward for s in every if s.group == r.group]).double()
        advantage = (r.reward - rewards.mean()) / rewards.std().clamp(min=1e-4)
        under = alone(averaged, r, TEMPERATURE).detach()
        for current, prox, behaviour, fresh in zip(
            alone(model, r, TEMPERATURE), under, r.behaviour, r.mask, strict=True
        ):
            if fresh:
                ratio = torch.exp(current - prox)
                bounded = ratio.clamp(1 - TRAIN.clip_lo, 1 + TRAIN.clip_hi)
                clipped += bool(ratio * advantage > bounded * advantage)
                weight = torch.exp(prox - behaviour).clamp(max=2.0)
                losses.append(-weight * torch.minimum(ratio * advantage, bounded * advantage))
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    found: dict[str, torch.Tensor] = {}
    it.optimizer.register_step_pre_hook(
        lambda *_: found.update(
            {n: p.grad.clone() for n, p in it.master_weights.named() if p.grad is not None}
        )
    )
    it.accumulate(*micro_batch(every, every, it.version))
    it.step()
    assert clipped
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name].double(), parameter.grad, atol=3e-5, rtol=1e-3)


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32]))
def test_it_survives_a_resume_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    it = learner(build("qwen3", dtype))
    train(it, 2)
    path = save(tmp_path, it, 0, tmp_path)
    resumed = learner(load_model(path, dtype))
    restore(path, resumed)
    for one in (it, resumed):
        train(one, 2)
    assert it.average is not None and resumed.average is not None
    for name, tensor in it.average.tensors():
        assert torch.equal(dict(resumed.average.tensors())[name], tensor), name
    for name, master in it.master_weights.named():
        assert torch.equal(dict(resumed.master_weights.named())[name], master)


def test_a_checkpoint_without_it_is_refused(tmp_path: Path) -> None:
    plain = msgspec.structs.replace(TRAIN, ema=0.0)
    path = save(
        tmp_path, Learner(build("qwen3"), plain, StalenessConfig(), TEMPERATURE), 0, tmp_path
    )
    with pytest.raises(CheckpointError, match="the average of the weights is missing"):
        restore(path, learner(build("qwen3")))


def test_settings_that_need_it_say_so() -> None:
    with pytest.raises(ConfigError, match="there is no average of the weights"):
        load(None, ["staleness.proximal=ema"], {})
    own = ["evaluation.weights=ema", "train.ema=0.9", "staleness.finish_on=own"]
    launch = 'engine.sglang.launch=["python"]'
    sglang = ["evaluation.weights=ema", "train.ema=0.9", "engine.kind=sglang", launch]
    for settings, keys in (
        (["evaluation.weights=ema"], "evaluation.weights.*train.ema.*no average to evaluate"),
        (own, "evaluation.weights.*staleness.finish_on.*set finish_on to mixed"),
        (sglang, "evaluation.weights.*engine.kind.*set weights to current and evaluate model-ema"),
    ):
        with pytest.raises(ConfigError, match=keys) as refused:
            load(None, settings, {})
        assert str(refused.value).count("\n") == 0
    rows = {r.name: r for r in derived(load(None, ["train.ema=0.99"], {}), 2)}
    assert "the current weights are evaluated" in rows["average of weights"].meaning
    both = load(None, ["train.ema=0.99", "evaluation.weights=ema"], {})
    rows = {r.name: r for r in derived(both, 2)}
    assert "it is evaluated" in rows["average of weights"].meaning
    assert "about 100 versions" in rows["average of weights"].meaning
