"""Weights that are rounded in training: the ones that are, the masters that learn, and what a
checkpoint and a reference have of them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from families import build as build_family
from training_world import CONFIGS, build, micro_batch, rollouts
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from asyncrl.config import load
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.fp8_blocks import rounded
from asyncrl.training.kl_terms import open_kl_terms
from asyncrl.training.learner import Learner
from asyncrl.training.memory import predict
from asyncrl.training.models import ModelError, load_model
from asyncrl.training.rounding import linear_weights, round_for_good, round_in_training
from asyncrl.training.weight_average import WeightAverage

TRAIN = TrainConfig(lr=1e-3, lr_warmup_steps=0)
PLAIN = {"qwen3": "embed_tokens|norm", "llama": "embed_tokens|norm|lm_head", "gpt2": "wte|wpe|ln_"}
"""Parts of the names of weights that stay as they are."""


def marked(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = build(name, dtype)
    round_in_training(model)
    return model


def learner_of(model: PreTrainedModel, train: TrainConfig = TRAIN) -> Learner:
    return Learner(model, train, StalenessConfig(), 1.0)


def step(learner: Learner, seed: int = 0) -> dict[str, float]:
    every = rollouts(build("llama"), seed=seed, count=6)
    learner.accumulate(*micro_batch(every, every, learner.version, 0))
    return learner.step()


@pytest.mark.parametrize("name", CONFIGS)
def test_linear_layers_before_the_output_layer_are_rounded(name: str) -> None:
    model = build(name)
    plain = [
        key
        for key, parameter in model.named_parameters()
        if any(part in key for part in PLAIN[name].split("|")) or parameter.dim() == 1
    ]
    assert linear_weights(model) == {key for key, _ in model.named_parameters()} - {*plain}


def mixture(width: int) -> PreTrainedModel:
    """Of experts of this width."""
    sizes = {"num_hidden_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 32}
    config = Qwen3MoeConfig(
        **sizes, hidden_size=128, moe_intermediate_size=width, num_attention_heads=2, head_dim=64
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def test_of_a_mixture_the_experts_are_and_the_router_is_not() -> None:
    names = linear_weights(mixture(128))
    experts = {"gate_up_proj", "down_proj"}
    assert {name.rpartition(".")[2] for name in names if "experts" in name} == experts
    assert not any("mlp.gate." in name for name in names) and len(names) == 4 + 2


def test_experts_whose_blocks_would_mix_gates_and_ups_are_refused() -> None:
    with pytest.raises(ModelError, match=r"experts of \[384, 128\]|stacks experts of \[128, 192\]"):
        linear_weights(mixture(192))


def test_gates_of_one_output_and_convolutions_stay() -> None:
    names = linear_weights(build_family("qwen3_5_text"))
    assert any("in_proj_qkv" in name for name in names)
    assert not any("conv1d" in name for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_rounded_model_and_change_the_masters(
    dtype: torch.dtype,
) -> None:
    """Straight through: against AdamW over float32 copies that is given the gradients of a model
    whose weights are rounded for good."""
    model = marked("qwen3", dtype)
    names = linear_weights(model)
    copies = {name: p.detach().float().clone() for name, p in model.named_parameters()}
    own = {name: copy_.requires_grad_() for name, copy_ in copies.items()}
    groups = [
        {"params": [each for each in own.values() if each.dim() > 1]},
        {"params": [each for each in own.values() if each.dim() == 1], "weight_decay": 0.0},
    ]
    subject, train = learner_of(model), TRAIN
    optimizer = torch.optim.AdamW(
        groups, lr=train.lr, betas=(train.beta1, train.beta2), weight_decay=train.weight_decay
    )
    for seed in range(3):
        frozen = build("qwen3", dtype)
        with torch.no_grad():
            for name, parameter in frozen.named_parameters():
                exact = own[name].detach()
                parameter.copy_(rounded(exact) if name in names else exact)
        other = learner_of(frozen)
        other.version = seed
        for learner in (subject, other):
            every = rollouts(build("llama"), seed=seed, count=6)
            learner.accumulate(*micro_batch(every, every, seed, 0))
        assert all(
            torch.equal(a, b)
            for (_, a), (_, b) in zip(
                model.named_parameters(), frozen.named_parameters(), strict=True
            )
        )
        divisor = other._sums.divisor
        for name, master in other.master_weights.named():
            assert master.grad is not None
            own[name].grad = master.grad / divisor
        torch.nn.utils.clip_grad_norm_(list(own.values()), train.grad_clip)
        optimizer.step()
        subject.step()
        for name, master in subject.master_weights.named():
            torch.testing.assert_close(master.detach(), own[name].detach(), rtol=0, atol=2e-6)
            own[name].data.copy_(master.detach())  # else differences could cross a rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_has_the_masters(tmp_path: Path, dtype: torch.dtype) -> None:
    learner = learner_of(marked("qwen3", dtype))
    for seed in range(2):
        step(learner, seed)
    build("qwen3", dtype).save_pretrained(tmp_path / "initial")
    path = save(tmp_path, learner, 0, tmp_path / "initial")
    stored = load_model(path, dtype)
    round_in_training(stored)
    again = learner_of(stored)
    restore(path, again)
    for each in (learner, again):
        step(each, 2)
    for (name, one), (_, other) in zip(
        learner.master_weights.named(), again.master_weights.named(), strict=True
    ):
        assert torch.equal(one, other), name
    assert all(map(torch.equal, learner.model.parameters(), again.model.parameters()))
    unmarked = learner_of(load_model(path, dtype))
    if dtype == torch.float32:
        with pytest.raises(Exception, match="another type or size"):
            restore(path, unmarked)


def test_the_reference_is_the_initial_policy_as_engines_have_it(tmp_path: Path) -> None:
    build("qwen3").save_pretrained(tmp_path)
    sets = [f"model.path={tmp_path}", "reference.coefficient=0.1", "model.rounding=fp8"]
    sets.append("engine.context_tokens=64")
    config = load(None, sets, {})
    learns = load_model(tmp_path)
    round_in_training(learns)
    terms = open_kl_terms(config, tmp_path, torch.float32, learns)
    learner = Learner(learns, TRAIN, StalenessConfig(), 1.0, kl_terms=terms)
    every = rollouts(build("llama"), seed=0, count=6)
    learner.accumulate(*micro_batch(every, every, 0, 0))
    assert learner.step()["reference_kl"] == pytest.approx(0.0, abs=1e-7)


def test_the_average_is_of_masters() -> None:
    learner = learner_of(marked("qwen3"))
    average = WeightAverage(learner.model, learner.master_weights, 0.5)
    before = {name: master.detach().clone() for name, master in learner.master_weights.named()}
    step(learner)
    average.update()
    for name, tensor in average.tensors():
        if name.startswith("weights/"):
            key = name.removeprefix("weights/")
            after = dict(learner.master_weights.named())[key].detach()
            # 1 and 2 parts of 3
            torch.testing.assert_close(tensor, before[key] / 3 + after * 2 / 3)


def test_steps_smaller_than_fp8_add_up() -> None:
    """A step of 1e-3 moves few weights of 0.3 to the next of four bits; in time more move."""
    learner = learner_of(marked("llama"))
    first = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    moved = list[float]()
    for seed in range(6):
        step(learner, seed)
        changed = total = 0
        for name, parameter in learner.model.named_parameters():
            if name in linear_weights(learner.model):
                changed += int((parameter != first[name]).sum())
                total += parameter.numel()
        moved.append(changed / total)
    assert 0 < moved[0] < 0.5 and moved[-1] > 1.5 * moved[0]


def test_it_learns() -> None:
    """As the same model unrounded does, from the same rewarded texts."""
    losses = {}
    for rounds in (False, True):
        model = marked("llama") if rounds else build("llama")
        learner = learner_of(model, TrainConfig(lr=3e-3, lr_warmup_steps=0))
        every = rollouts(build("llama"), seed=1, count=8)
        best = [each for each in every if each.reward == max(e.reward for e in every)]

        def likelihood(model: PreTrainedModel = model, texts: list = best) -> float:  # type: ignore[type-arg]
            total = 0.0
            for text in texts:
                ids = torch.tensor([text.prompt + text.response])
                with torch.no_grad():
                    scores = torch.log_softmax(model(ids).logits[0, :-1], -1)
                total += float(scores.gather(1, ids[0, 1:, None])[len(text.prompt) - 1 :].sum())
            return total

        before = likelihood()
        for _ in range(12):
            learner.accumulate(*micro_batch(every, every, learner.version, 0))
            learner.step()
        losses[rounds] = likelihood() - before
    assert losses[True] > 0.5 * losses[False] > 0, losses


@pytest.mark.explore
def test_memory_is_predicted_with_the_masters(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    sets = [f"model.path={tmp_path}", "engine.context_tokens=64", "rollout.max_new_tokens=48"]
    sets.append("train.micro_tokens=200")
    plain, found = (
        predict(load(None, [*sets, *more], {})) for more in ([], ["model.rounding=fp8"])
    )
    model = build("llama")
    weights = sum(p.numel() for n, p in model.named_parameters() if n in linear_weights(model))
    assert (plain.masters, found.masters) == (0, 4 * weights)
    assert found.weights == plain.weights and found.optimizer == plain.optimizer


def test_a_policy_that_does_not_learn_is_rounded_for_good() -> None:
    model = build("qwen3", torch.bfloat16)
    before = copy.deepcopy(model)
    round_for_good(model)
    for (name, one), (_, other) in zip(
        model.named_parameters(), before.named_parameters(), strict=True
    ):
        own = rounded(other) if name in linear_weights(model) else other
        assert torch.equal(one, own)
