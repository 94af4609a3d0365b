"""Mixtures of experts: routers are found by structure, compute in float32, are counted, and are
balanced by formulas that float64 references compute, too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from families import build
from some_values import some
from training_world import SIZES, Rollout, micro_batch, rollouts
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from asyncrl.algorithms.routing.balance import (
    RoutedTokens,
    RoutingSums,
    bias_of,
    own_biases,
    probabilities,
)
from asyncrl.algorithms.routing.routers import Choice, passing, replay, routers, watch
from asyncrl.config.schema import LoraConfig, StalenessConfig, TrainConfig
from asyncrl.training.adapters import add_adapters, learning, merged
from asyncrl.training.checkpoint_index import checkpoint_path
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.forward import Passes, use_passes
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError, load_model, parameters_for_publication

PLAIN = ("qwen3_moe", "mixtral", "olmoe", "gpt_oss", "granitemoe", "llama4_text", "jetmoe")
BIASED = ("deepseek_v3", "glm4_moe", "minimax_m2", "ernie4_5_moe", "hy_v3", "longcat_flash")
OTHERS = (
    "afmoe",
    "axk1",
    "beam",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v4",
    "exaone_moe",
    "flex_olmo",
    "glm4_moe_lite",
    "granitemoehybrid",
    "hunyuan_v1_moe",
    "inkling2_text",
    "jamba",
    "kolibri1",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m3_vl_text",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
    "solar_open",
)
IDS = torch.arange(11)[None] % 97


def made(family: str) -> PreTrainedModel:
    model = build(family)
    own_biases(model)
    assert watch(model)
    return model


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=IDS, use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize(
    "family", [*PLAIN, *BIASED, *(pytest.param(f, marks=pytest.mark.explore) for f in OTHERS)]
)
def test_a_family_routes_as_recorded(family: str) -> None:
    """Its own choice given back changes nothing, to the bit; another choice of one token changes
    that token, and is what is used; and a token without a record keeps its own."""
    plain = build(family)
    with torch.no_grad():
        before = logits_of(plain)
    model = made(family)
    with torch.no_grad(), passing(model) as own:
        assert torch.equal(logits_of(model), before)
    assert own is not None
    choices = [own.choices[layer] for layer in range(len(routers(model)))]
    recorded = torch.stack([choice.experts for choice in choices], 1)
    replay(model)
    with torch.no_grad(), passing(model, recorded) as again:
        assert torch.equal(logits_of(model), before)
    assert again is not None
    assert all(c.flipped == 0 and c.replayed == 11 for c in again.choices.values())

    other = recorded.clone()
    other[:5] = -1
    experts = choices[0].logits.shape[-1]
    last = set(range(experts)) - set(other[-1, 0].tolist())
    other[-1, 0, 0] = min(last)
    with torch.no_grad(), passing(model, other) as changed:
        after = logits_of(model)
    assert changed is not None
    torch.testing.assert_close(after[:-1], before[:-1])  # an expert rounds by how many it has
    assert (after[-1] - before[-1]).abs().max() > 1e-3
    first = changed.choices[0]
    assert first.flipped == 1 and first.replayed == 6
    assert torch.equal(first.experts, torch.where(other[:, 0] >= 0, other[:, 0], recorded[:, 0]))


def test_a_router_of_bfloat16_computes_in_float32() -> None:
    """Two experts a quarter of a bit of bfloat16 apart are told apart."""
    model = build("qwen3_moe").to(torch.bfloat16)
    seen = list[torch.Tensor]()
    watch(model)
    hooks = [
        router.register_forward_hook(lambda module, given, out: seen.append((given[0], out[0])))
        for router in routers(model)
    ]
    with torch.no_grad(), passing(model) as passed:
        logits_of(model)
    assert passed is not None and len(seen) == len(hooks) == 2
    for layer, (router, (states, logits)) in enumerate(zip(routers(model), seen, strict=True)):
        weight: Any = router.weight
        exact = states.double().reshape(-1, 32) @ weight.double().T
        assert logits.dtype == torch.float32
        assert (logits.double() - exact).abs().max() < 1e-5
        assert torch.equal(passed.choices[layer].experts, exact.float().topk(2).indices)


def test_records_of_another_model_are_refused() -> None:
    model = made("qwen3_moe")
    replay(model)
    for wrong in (torch.zeros(11, 2, 3), torch.zeros(10, 2, 2), torch.full((11, 2, 2), 4)):
        with (
            pytest.raises(ValueError, match="not those of this model"),
            passing(model, wrong.long()),
        ):
            logits_of(model)


def test_the_loss_of_one_layer_is_that_of_transformers_and_of_float64() -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    model = made("qwen3_moe")
    with passing(model) as passed:
        logits_of(model)
    assert passed is not None
    places = torch.tensor([2, 3, 4, 7, 8, 8])
    counted = RoutedTokens()
    counted.add(passed, places)
    tokens = RoutedTokens(counted.sums.shares)
    tokens.add(passed, places)
    assert tokens.losses is not None
    of_layers = []
    for choice in (passed.choices[0], passed.choices[1]):
        z = choice.logits.detach().double().numpy()[places.numpy()]
        p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
        top = np.argsort(-p, axis=-1)[:, :2]
        f = np.array([(top == expert).sum() / 6 for expert in range(4)])
        of_layers.append(4 * float((f * p.mean(0)).sum()))
        theirs = load_balancing_loss_func((choice.logits.detach()[places],), 4, 2)
        assert float(theirs) == pytest.approx(of_layers[-1], rel=1e-5)
    assert float(tokens.losses.mean().detach()) == pytest.approx(sum(of_layers) / 2, rel=1e-5)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_probabilities_of_experts_are_scores_over_their_sum(sigmoid: bool) -> None:
    """Of the tokens at the places that are asked for, a token twice where its place is."""
    logits = [[0.0, 2.0, -1.0], [3.0, -2.0, 0.5]]
    choice = Choice(torch.tensor(logits), sigmoid, torch.tensor([[1], [0]]), 0, 0)
    found = probabilities(choice, torch.tensor([1, 0, 1])).tolist()
    for row, place in zip(found, (1, 0, 1), strict=True):
        scores = [1 / (1 + math.exp(-z)) if sigmoid else math.exp(z) for z in logits[place]]
        assert row == pytest.approx([score / sum(scores) for score in scores], rel=1e-6)


@pytest.mark.parametrize("family", BIASED)
def test_a_bias_moves_against_the_load(family: str) -> None:
    """By a float64 reference of DeepSeek-V3's rule; and gates do not see it."""
    from asyncrl.algorithms.routing.balance import move_biases

    model = made(family)
    router = routers(model)[0]
    bias = bias_of(model, router)
    assert bias is not None
    assert any(bias.data_ptr() == p.data_ptr() for p in model.parameters())
    before = bias.double().flatten().clone()
    load = [float((7 * i) % 5) for i in range(bias.numel())]
    counts = torch.tensor([load] * len(routers(model)), dtype=torch.float64)
    move_biases(model, counts, 0.25)
    mean = sum(load) / len(load)
    for i, count in enumerate(load):
        step = 0.25 if count < mean else -0.25 if count > mean else 0.0
        assert float(bias.flatten()[i]) == pytest.approx(float(before[i]) + step)


def test_a_model_without_experts_has_no_routers() -> None:
    model = build("qwen3")
    assert watch(model) == 0 and routers(model) == []
    with passing(model) as passed:
        assert passed is None


def test_sums_of_parts_are_the_sum() -> None:
    one = RoutingSums(torch.tensor([[1.0, 2.0]]), 3, 1, 2, 1)
    two = RoutingSums(torch.tensor([[0.0, 5.0]]), 5, 2, 0, 0)
    whole = one.merge(two).merge(RoutingSums())
    assert whole.counts is not None and whole.counts.tolist() == [[1.0, 7.0]]
    assert whole[1:] == (8, 3, 2, 1) and whole.chosen == 1


def tiny() -> PreTrainedModel:
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=6,
        num_experts_per_tok=2,
        initializer_range=0.3,
        **SIZES,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.set_experts_implementation("eager")  # the reference's, in float64
    return model.eval()


def trained(
    parts: int, train: TrainConfig, *, passes: Passes = "packed", recomputed: bool = False
) -> tuple[Learner, list[Rollout], list[dict[str, float]]]:
    """A learner after two steps of the same rollouts, which teach nothing: all rewards are one."""
    model = tiny()
    every = [r for r in rollouts(model, 5, count=12, noise=0.0) if r.response]
    for rollout in every:
        rollout.reward, rollout.mask = 1.0, [1] * len(rollout.response)
    use_passes(model, passes)
    if recomputed:
        train = msgspec.structs.replace(train, recompute_activations=True)
    learner = Learner(model, train, StalenessConfig(), 1.0)
    metrics = []
    for step in range(2):
        for index in range(parts):
            learner.accumulate(*micro_batch(every[index::parts], every, step, index))
        metrics.append(learner.step())
    return learner, every, metrics


AUX = TrainConfig(router_aux=0.5, lr=1e-3, lr_warmup_steps=0, grad_clip=1e9)


@pytest.mark.parametrize("passes", some(["packed", "padded", "alone"]))
def test_the_gradient_of_the_balance_is_that_of_float64(passes: Passes) -> None:
    """Whatever passes compute it, with whatever is kept, and however the step is split. The first
    step has no earlier one, so it changes nothing."""
    _, every, (first, second) = trained(3, AUX, passes=passes, recomputed=True)
    _, _, (_, whole) = trained(1, AUX, passes=passes)
    assert first["grad_norm"] == 0.0
    assert second["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)

    exact = tiny().double()
    watch(exact)
    chosen, scores = [torch.zeros(6) for _ in range(2)], [list[torch.Tensor]() for _ in range(2)]
    for rollout in every:
        with passing(exact) as passed:
            exact(input_ids=torch.tensor([rollout.prompt + rollout.response]), use_cache=False)
        assert passed is not None
        places = range(len(rollout.prompt) - 1, len(rollout.prompt + rollout.response) - 1)
        for layer in range(2):
            for place in places:
                p = passed.choices[layer].logits[place].softmax(-1)
                scores[layer].append(p)
                for expert in p.argsort(descending=True)[:2]:
                    chosen[layer][expert] += 1
    tokens = len(scores[0])
    loss = sum(
        6 * (chosen[layer] / tokens * torch.stack(scores[layer]).mean(0)).sum() / 2
        for layer in range(2)
    )
    assert isinstance(loss, torch.Tensor)
    (0.5 * loss).backward()
    norm = torch.stack([p.grad.norm() for p in exact.parameters() if p.grad is not None]).norm()
    assert second["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    use = RoutingSums(torch.stack(chosen).double(), tokens).metrics()
    assert use and {name: first[name] for name in use} == pytest.approx(dict(use))


def test_a_balanced_step_survives_a_resume(tmp_path: Path) -> None:
    """The shares of the last step are in its checkpoint: the next step is the same to the bit."""
    learner, every, _ = trained(1, AUX)
    save(tmp_path, learner, 0, tmp_path)
    model = load_model(checkpoint_path(tmp_path, 2))
    resumed = Learner(model, AUX, StalenessConfig(), 1.0)
    restore(checkpoint_path(tmp_path, 2), resumed)
    after = []
    for one in (learner, resumed):
        one.accumulate(*micro_batch(every, every, 2))
        after.append(one.step())
    assert after[0] == after[1] and after[0]["grad_norm"] > 0


def test_what_a_model_does_not_have_is_refused() -> None:
    dense = build("qwen3")
    for train in (AUX, TrainConfig(router_bias_rate=0.1)):
        with pytest.raises(ModelError, match="has no experts"):
            Learner(dense, train, StalenessConfig(), 1.0)
    with pytest.raises(ModelError, match="without a bias"):
        Learner(tiny(), TrainConfig(router_bias_rate=0.1), StalenessConfig(), 1.0)


def test_biases_balance_a_model_and_are_published() -> None:
    """Of a router that sends all tokens to two experts, the others get theirs; what is published
    has the biases that the trainer uses."""
    model = build("glm4_moe")
    own_biases(model)
    router: Any = model.model.layers[1].mlp.gate
    with torch.no_grad():
        router.e_score_correction_bias.copy_(torch.tensor([1.0, 0.9, 0.0, 0.0]))
    every = rollouts(tiny(), 5, count=12, noise=0.0)
    train = TrainConfig(router_bias_rate=0.2, lr=1e-9)
    learner = Learner(model, train, StalenessConfig(max_lag=99), 1.0)
    uses = []
    for step in range(12):
        learner.accumulate(*micro_batch(every, every, step))
        uses.append(learner.step()["expert_use"])
    assert uses[0] == pytest.approx(0.0, abs=1e-6) and uses[-1] > 0.5
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    sent = dict(parameters_for_publication(model))[name]
    assert sent.data_ptr() == router.e_score_correction_bias.data_ptr()
    assert not torch.equal(sent, torch.tensor([1.0, 0.9, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("targets", "learns"),
    [
        ("all-linear", {"self_attn"}),
        (("q_proj", "gate_up_proj", "down_proj"), {"self_attn", "experts"}),
    ],
)
def test_adapters_are_in_experts_where_they_are_named(
    targets: str | tuple[str, ...], learns: set[str]
) -> None:
    """`all-linear` gives a mixture adapters of its attention; the experts, kept as one tensor, have
    them by name. The router is the base's, and balanced by a loss, beside both."""
    model = build("qwen3_moe")
    add_adapters(model, LoraConfig(rank=2, alpha=4.0, targets=targets))
    names = {name for name, _ in learning(model)}
    assert {next(part for part in name.split(".") if part in learns) for name in names} == learns
    own = dict(build("qwen3_moe").named_parameters())
    assert {name: p.shape for name, p in merged(model)} == {n: p.shape for n, p in own.items()}
    every = rollouts(tiny(), 5, count=12)
    settings = TrainConfig(router_aux=0.1, recompute_activations=True, lr_warmup_steps=0)
    learner = Learner(model, settings, StalenessConfig(), 1.0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    for step in range(2):
        learner.accumulate(*micro_batch(every, every, step))
        assert learner.step()["skipped"] == 0.0
    after = dict(model.named_parameters())
    assert {name for name, p in before.items() if not torch.equal(p, after[name])} == names


@pytest.mark.parametrize("target", ["gate", "experts", "mlp.gate_proj"])
def test_a_part_of_a_mixture_that_has_no_adapters_is_refused(target: str) -> None:
    with pytest.raises(ModelError, match="it has down_proj, gate_up_proj, k_proj"):
        add_adapters(build("qwen3_moe"), LoraConfig(rank=2, targets=[target]))


def test_servers_get_no_adapters_of_experts_alone() -> None:
    targets = ("q_proj", "gate_up_proj")
    with pytest.raises(ModelError, match=r'gate_up_proj.* set model.lora.served to "merged"'):
        add_adapters(build("qwen3_moe"), LoraConfig(rank=2, targets=targets, served="adapters"))
    add_adapters(build("qwen3_moe"), LoraConfig(rank=2, targets=targets[:1], served="adapters"))
