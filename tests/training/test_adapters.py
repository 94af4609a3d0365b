"""Adapters against dense weights: log-probabilities, gradients, what is merged, published and
saved; and the base, which nothing changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from some_values import some
from training_world import CONFIGS, alone, build, micro_batch, reference, rollouts
from transformers import AutoModelForCausalLM, PreTrainedModel

from asyncrl.bundled.small_vision import Family, new_vision_model
from asyncrl.config.schema import LoraConfig, StalenessConfig, TrainConfig
from asyncrl.training.adapters import (
    ADAPTERS,
    adapters,
    add_adapters,
    base_digest,
    learning,
    merged,
    published,
    set_adapters,
)
from asyncrl.training.checkpoint_index import CheckpointError, scalars
from asyncrl.training.checkpoint_io import StagedAdapters, export, export_adapters, restore, save
from asyncrl.training.forward import log_probabilities, shares
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError, load_model, parameters_for_publication
from asyncrl.training.packing import pack
from asyncrl.weightsync.buckets import Plan

LORA = LoraConfig(rank=3, alpha=7.5)
TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-2)
PREFIX = "base_model.model."
NAMES = [*CONFIGS, "mixture"]
MODELS = [(name, dtype) for name in NAMES for dtype in (torch.float32, torch.bfloat16)]
OF_EXPERTS = msgspec.structs.replace(LORA, targets=("q_proj", "gate_up_proj", "experts.down_proj"))


def model_of(
    name: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    lora: LoraConfig | None = None,
    *,
    drawn: bool = True,
) -> PreTrainedModel:
    """A model with adapters; `drawn`: they say something, as those of a new model do not."""
    model = build(name, dtype)
    add_adapters(model, lora or (OF_EXPERTS if name == "mixture" else LORA))
    if drawn:
        torch.manual_seed(5)
        set_adapters(model, {n: torch.randn_like(t) * 0.2 for n, t in adapters(model)})
    return model


def layers(model: PreTrainedModel) -> list[str]:
    """The names of the layers that have adapters, by the names of these."""
    return [
        name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        for name, _ in adapters(model)
        if name.endswith(".lora_A.weight")
    ]


def dense(name: str, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The reference: the model without adapters, in float64, each weight W + alpha / r · B A."""
    exact = build(name, dtype).double().eval()
    if name == "mixture":
        exact.set_experts_implementation("eager")  # the others have no float64
    found = {n: t.double() for n, t in adapters(model)}
    weights = dict(exact.named_parameters())
    for layer in layers(model):
        a, b = (found[f"{PREFIX}{layer}.lora_{matrix}.weight"] for matrix in "AB")
        weight = weights[weight_of(layer)]
        if weight.dim() == 2:
            added = b @ a
        else:
            added = torch.stack([left @ right for left, right in by_expert(a, b)])
        added = LORA.alpha / LORA.rank * added
        weight.data += added.T if name == "gpt2" else added
    return exact


def weight_of(layer: str) -> str:
    """The name of the weight that an adapter of this name changes: of a mixture's two tensors of
    experts, the one that is named last is the first of peft's, and has the shorter name."""
    experts = layer.removesuffix(".base_layer")
    if experts.endswith(".experts"):
        return f"{experts}.{'gate_up_proj' if experts != layer else 'down_proj'}"
    return f"{layer}.weight"


def by_expert(a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The matrices of each expert: A has an expert's rows together, B has its columns apart."""
    experts = len(a) // LORA.rank
    return [(b[:, n::experts], a[n * LORA.rank : (n + 1) * LORA.rank]) for n in range(experts)]


def learner(model: PreTrainedModel, **staleness: Any) -> Learner:
    return Learner(model, TRAIN, StalenessConfig(**staleness), 1.0)


def train(subject: Learner, steps: int) -> None:
    for _ in range(steps):
        every = rollouts(build("llama"), seed=subject.version, count=5)
        subject.accumulate(*micro_batch(every, every, subject.version))
        subject.step()


def copies(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_and_gradients_are_those_of_dense_weights(name: str) -> None:
    """The chain rule by hand: with D the gradient of W, that of A is s B'D, that of B is s D A'."""
    subject = learner(model_of(name))
    exact = dense(name, subject.model)
    every = rollouts(exact, seed=1)
    for rollout in every[:3]:
        if not rollout.response:
            continue
        ids = torch.tensor(rollout.prompt + rollout.response, dtype=torch.int32).numpy()
        lengths = [len(rollout.prompt)], [len(rollout.response)]
        (packed,) = pack(ids, *lengths, shared=shares(subject.model))
        got = log_probabilities(subject.model, packed, 1.0).detach().double()
        assert (got - alone(exact, rollout, 1.0).detach()).abs().max() < 1e-5

    seen: dict[str, torch.Tensor] = {}
    matrices = {id(p): n for n, p in subject.model.named_parameters()}

    def see(*_: object) -> None:
        for _, master in subject.master_weights.named():
            assert master.grad is not None
            seen[matrices[id(master)]] = master.grad.double()

    subject.optimizer.register_step_pre_hook(see)
    subject.accumulate(*micro_batch(every, every))
    found = {n: t.double() for n, t in adapters(model_of(name))}
    subject.step()
    of_dense, _, _ = reference(exact, every, TRAIN, StalenessConfig(), 1.0)
    assert len(seen) == 2 * len(layers(subject.model))
    scale = LORA.alpha / LORA.rank
    largest = max(float(g.abs().max()) for g in seen.values())
    for layer in layers(subject.model):
        a, b = (found[f"{PREFIX}{layer}.lora_{matrix}.weight"] for matrix in "AB")
        d = of_dense[weight_of(layer)]
        got_a, got_b = (seen[f"{layer}.lora_{matrix}.default.weight"] for matrix in "AB")
        every_d = d if d.dim() == 3 else (d.T if name == "gpt2" else d)[None]
        pairs = by_expert(a, b) if d.dim() == 3 else [(b, a)]
        got = by_expert(got_a, got_b) if d.dim() == 3 else [(got_b, got_a)]
        for one, (b, a), (of_b, of_a) in zip(every_d, pairs, got, strict=True):
            assert (of_a - scale * b.T @ one).abs().max() < 1e-5 * largest, layer
            assert (of_b - scale * one @ a.T).abs().max() < 1e-5 * largest, layer


@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_a_step_changes_adapters_alone(name: str, dtype: torch.dtype) -> None:
    subject = learner(model_of(name, dtype, drawn=False))
    before, digest = copies(subject.model), base_digest(subject.model)
    assert all(p.dtype == dtype for _, p in learning(subject.model))
    masters = len(list(learning(subject.model))) if dtype == torch.bfloat16 else 0
    assert len(subject.master_weights.copies()) == masters
    train(subject, 2)
    after, own = copies(subject.model), dict(learning(subject.model))
    for parameter, weight in before.items():
        assert torch.equal(weight, after[parameter]) != (parameter in own), parameter
    delattr(subject.model, "asyncrl_base")
    assert base_digest(subject.model) == digest == base_digest(model_of(name, dtype))
    moments = sum(m.numel() for state in subject.optimizer.state.values() for m in state.values())
    assert moments == sum(2 * p.numel() + 1 for p in own.values())
    assert all(p.grad is None for p in subject.model.parameters())


@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_merged_is_a_model_without_adapters(name: str, dtype: torch.dtype) -> None:
    """Its names, order and types; each weight the exact sum, rounded once; and what it computes."""
    model, plain = model_of(name, dtype), build(name, dtype)
    found = list(merged(model))
    assert [(n, t.dtype, t.shape) for n, t in found] == [
        (n, t.dtype, t.shape) for n, t in parameters_for_publication(plain)
    ]
    exact = dict(dense(name, model, dtype).named_parameters())
    for parameter, weight in found:
        unit = torch.finfo(dtype).eps
        assert (
            (weight.double() - exact[parameter]).abs() <= unit * exact[parameter].abs() + 1e-7
        ).all()
    plain.load_state_dict(dict(found), strict=False)
    ids = torch.randint(0, 23, (2, 9))
    with torch.no_grad():
        off = (plain.eval()(ids).logits - model(ids).logits).abs().max()
    assert off < (1e-4 if dtype == torch.float32 else 0.5)

    new = model_of(name, dtype, drawn=False)
    base = dict(build(name, dtype).named_parameters())
    assert all(torch.equal(weight, base[parameter]) for parameter, weight in merged(new))


def test_adapters_alone_are_published_after_the_digest_of_their_base() -> None:
    model = model_of("qwen3", torch.bfloat16)
    whole = Plan.of(parameters_for_publication(build("qwen3", torch.bfloat16)), 1 << 20)
    plan = Plan.of(published(model), 1 << 20)
    sizes = sum(t.nbytes for _, t in adapters(model))
    assert sizes == 2 * sum(
        LORA.rank * sum(layer.weight.shape)
        for name, layer in build("qwen3").named_modules()
        if name in layers(model)
    )
    assert sizes <= plan.total_bytes < sizes + 64 * len(plan.specs)
    assert [n for n, _ in published(build("qwen3"))] == [spec.name for spec in whole.specs]
    other = build("qwen3", torch.bfloat16)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    add_adapters(other, LORA)
    said = plan.difference(Plan.of(published(other), 1 << 20), "this model", "the trainer's")
    assert said.startswith(f"tensor 0 is base {base_digest(model)}")


@pytest.fixture
def initial(tmp_path: Path) -> Path:
    return saved(tmp_path / "initial", "qwen3")


def saved(folder: Path, name: str) -> Path:
    build(name).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def loaded(
    path: Path, dtype: torch.dtype = torch.float32, lora: LoraConfig = LORA, **staleness: Any
) -> Learner:
    model = load_model(path, dtype)
    add_adapters(model, lora)
    return learner(model, **staleness)


@pytest.mark.explore
@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("proximal", ["behaviour", "snapshot"])
def test_a_resumed_learner_has_the_state_of_one_that_was_not_stopped(
    dtype: torch.dtype, proximal: str, initial: Path, tmp_path: Path
) -> None:
    subject = loaded(initial, dtype, proximal=proximal, max_lag=2)
    train(subject, 3)
    path = save(tmp_path / "run", subject, 41, initial)
    train(subject, 3)

    torch.manual_seed(99)
    resumed = loaded(initial, dtype, proximal=proximal, max_lag=2)
    found = restore(path, resumed)
    assert (found.version, found.cursor, found.base) == (3, 41, base_digest(subject.model))
    train(resumed, 3)
    expected = copies(subject.model)
    assert copies(resumed.model).keys() == expected.keys()
    for parameter, weight in copies(resumed.model).items():
        assert torch.equal(weight, expected[parameter]), parameter


def test_a_checkpoint_has_adapters_and_no_base(initial: Path, tmp_path: Path) -> None:
    subject = loaded(initial)
    train(subject, 1)
    path = save(tmp_path, subject, 0, initial)
    assert {file.name for file in path.iterdir()} == {
        "adapter_config.json",
        ADAPTERS,
        "trainer.json",
        "trainer.safetensors",
    }
    learn = sum(p.numel() for _, p in learning(subject.model))
    assert sum(t.numel() for t in load_file(path / ADAPTERS).values()) == learn
    for name, tensor in load_file(path / "trainer.safetensors").items():
        assert name == "generator" or ".lora_" in name, (name, tensor.shape)


def test_another_base_another_rank_and_damage_are_refused(initial: Path, tmp_path: Path) -> None:
    subject = loaded(initial)
    train(subject, 1)
    path = save(tmp_path, subject, 0, initial)
    with pytest.raises(CheckpointError, match="belong to another model than the run now starts"):
        restore(path, learner(model_of("llama")))
    wider = load_model(initial)
    add_adapters(wider, msgspec.structs.replace(LORA, rank=4))
    with pytest.raises(CheckpointError, match="adapters of other layers or another rank"):
        restore(path, learner(wider))
    with pytest.raises(CheckpointError, match="belong to another model"):
        restore(path, learner(load_model(initial)))
    fresh = loaded(initial)
    before = copies(fresh.model)
    (path / ADAPTERS).write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match=f"{ADAPTERS} cannot be read"):
        restore(path, fresh)
    assert fresh.version == 0
    assert all(torch.equal(w, before[n]) for n, w in copies(fresh.model).items())
    assert scalars(path).version == 1


@pytest.mark.parametrize(("name", "lora"), [("qwen3", LORA), ("mixture", OF_EXPERTS)])
def test_peft_and_transformers_read_what_a_run_leaves(
    name: str, lora: LoraConfig, tmp_path: Path
) -> None:
    initial = saved(tmp_path / "initial", name)
    subject = loaded(initial, lora=lora)
    train(subject, 2)
    ids = torch.randint(0, 23, (2, 9))
    expected = subject.model(ids).logits
    whole = AutoModelForCausalLM.from_pretrained(export(tmp_path / "m", subject.model, initial))
    torch.testing.assert_close(whole(ids).logits, expected, atol=1e-4, rtol=1e-4)
    folder = export_adapters(
        tmp_path / "a", StagedAdapters(subject.model, dict(adapters(subject.model)))
    )
    base = AutoModelForCausalLM.from_pretrained(initial)
    assert not torch.allclose(base(ids).logits, expected, atol=1e-3)
    read = peft.PeftModel.from_pretrained(base, folder)
    torch.testing.assert_close(read(ids).logits, expected)
    said = json.loads((folder / "adapter_config.json").read_bytes())
    assert said["r"] == 3 and said["lora_alpha"] == 7.5 and said["lora_dropout"] == 0.0
    assert said["base_model_name_or_path"] == str(initial)
    assert "q_proj" in said["target_modules"] and "lm_head" not in said["target_modules"]


def test_targets_name_layers() -> None:
    some = msgspec.structs.replace(LORA, targets=("q_proj", "self_attn.v_proj"))
    assert layers(model_of("qwen3", lora=some)) == [
        f"model.layers.{n}.self_attn.{p}_proj" for n in range(2) for p in "qv"
    ]
    every = {name.rpartition(".")[2] for name in layers(model_of("qwen3"))}
    assert every == {*(f"{p}_proj" for p in "qkvo"), "gate_proj", "up_proj", "down_proj"}


def test_all_linear_is_no_other_layer_of_the_same_name() -> None:
    """An output layer may be called as an inner one is."""
    model = build("llama")
    model.model.layers[0].mlp.lm_head = torch.nn.Linear(16, 16)
    add_adapters(model, LORA)
    assert "model.layers.0.mlp.lm_head" in layers(model) and "lm_head" not in layers(model)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("qproj", "there is no such layer in Qwen3ForCausalLM; it has down_proj, gate_proj"),
        ("lm_head", "lm_head is none"),
        ("embed_tokens", "model.embed_tokens is none"),
        ("mlp", "model.layers.0.mlp is none"),
    ],
)
def test_a_target_that_is_no_linear_layer_is_refused(target: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        model_of(lora=msgspec.structs.replace(LORA, targets=("q_proj", target)))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_tower_for_images_has_no_adapters(family: Family) -> None:
    """Though its layers have names that the text's have, too."""
    of_text = {name for name, _ in add_to(new_vision_model(3, family), LORA)}
    assert len(of_text) == 2 * 2 * 7 and not any("visual" in name for name in of_text)
    gates = add_to(new_vision_model(3, family), LoraConfig(rank=2, targets=("down_proj",)))
    assert {name for name, _ in gates} < of_text and len(gates) == 2 * 2
    with pytest.raises(ModelError, match="there is no such layer"):
        add_to(new_vision_model(3, family), LoraConfig(rank=2, targets=("qkv",)))


def add_to(model: PreTrainedModel, lora: LoraConfig) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that learn of a model once it has these adapters."""
    add_adapters(model, lora)
    learn = list(learning(model))
    assert {id(p) for _, p in learn} == {id(p) for p in model.parameters() if p.requires_grad}
    return learn


def test_adapters_of_another_shape_change_nothing() -> None:
    model = model_of()
    before, given = copies(model), {n: t + 1 for n, t in adapters(model)}
    last = list(given)[-1]
    given[last] = given[last][:, :1]
    with pytest.raises(ValueError, match="of another model"):
        set_adapters(model, given)
    assert all(torch.equal(w, before[n]) for n, w in copies(model).items())


def test_a_copy_has_the_base_of_what_was_copied(tmp_path: Path) -> None:
    """Earlier versions, an average and a reference cost adapters, and score with their own."""
    from asyncrl.training.frozen_policy import FrozenPolicy

    subject = Learner(model_of(), msgspec.structs.replace(TRAIN, ema=0.5), StalenessConfig(), 1.0)
    policy = FrozenPolicy.like(subject.model)
    before = copy.deepcopy(copies(policy.model))
    train(subject, 2)
    assert subject.average is not None
    own = {name for name, _ in learning(subject.model)}
    average = dict(subject.average.policy.model.named_parameters())
    for name, p in subject.model.named_parameters():
        same = {p.data_ptr() == dict(policy.model.named_parameters())[name].data_ptr()}
        assert same == {p.data_ptr() == average[name].data_ptr()} == {name not in own}
    assert all(torch.equal(w, before[n]) for n, w in copies(policy.model).items())
    assert dict(policy.weights()).keys() == own
    policy.become(dict(learning(subject.model)))
    assert all(torch.equal(w, copies(subject.model)[n]) for n, w in copies(policy.model).items())


def test_files_of_adapters_are_read_by_name(tmp_path: Path, initial: Path) -> None:
    """A checkpoint with one adapter less is refused, not half loaded."""
    subject = loaded(initial)
    path = save(tmp_path, subject, 0, initial)
    tensors = load_file(path / ADAPTERS)
    del tensors[next(iter(tensors))]
    save_file(tensors, path / ADAPTERS)
    with pytest.raises(CheckpointError, match="other layers or another rank"):
        restore(path, loaded(initial))


def test_layers_computed_again_give_adapters_the_same_gradients() -> None:
    found = []
    for again in (False, True):
        settings = msgspec.structs.replace(TRAIN, recompute_activations=again)
        subject = Learner(model_of(), settings, StalenessConfig(), 1.0)
        train(subject, 2)
        found.append(dict(adapters(subject.model)))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert any(not torch.equal(found[0][n], t) for n, t in adapters(model_of()))


def test_advantages_that_need_gradients_have_those_of_adapters() -> None:
    settings = msgspec.structs.replace(TRAIN, advantage="min_variance")
    subject = Learner(model_of(), settings, StalenessConfig(), 1.0)
    train(subject, 1)
    assert any(
        not torch.equal(dict(adapters(subject.model))[n], t) for n, t in adapters(model_of())
    )
