"""Layers that are computed again in the backward pass give the gradients that they gave, to the
bit, in each way that a model is given samples; and less is kept for them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from training_world import CONFIGS, build, micro_batch, rollouts
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training import recomputation
from asyncrl.training.forward import Passes, attend_in_blocks, log_probabilities, use_passes
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError
from asyncrl.training.packing import PackedBatch, pack
from asyncrl.training.recomputation import ON_HOST, recompute

LAYOUTS: dict[str, tuple[Passes, bool]] = {
    "packed": ("packed", False),
    "tree": ("packed", True),
    "padded": ("padded", False),
    "alone": ("alone", False),
}


def batch(shared: bool) -> PackedBatch:
    """One batch of six responses to two prompts, of uneven lengths."""
    random = np.random.default_rng(2)
    prompts = [random.integers(0, 23, 5) for _ in range(2)]
    lengths = [9 - number for number in range(6)]
    rows = [
        np.concatenate([prompts[number % 2], random.integers(0, 23, size)])
        for number, size in enumerate(lengths)
    ]
    ids = np.concatenate(rows).astype(np.int32)
    (packed,) = pack(ids, [5] * 6, lengths, shared=shared)
    return packed


def gradients(model: PreTrainedModel, packed: PackedBatch) -> list[Tensor]:
    model.zero_grad()
    found = log_probabilities(model, packed, 0.7)
    (found * torch.linspace(-1, 2, len(found))).sum().backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def kept_bytes(model: PreTrainedModel, packed: PackedBatch) -> int:
    """Bytes that a forward pass keeps for its backward pass, the weights left out. What a layer is
    given counts as kept: one that is computed again has it without autograd's knowing."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def given(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tree_map_only(Tensor, keep, (args, kwargs))

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    hooks = [layer.register_forward_pre_hook(given, with_kwargs=True) for layer in layers]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = log_probabilities(model, packed, 0.7)
    assert found.requires_grad
    for hook in hooks:
        hook.remove()
    return sum(
        tensor.untyped_storage().nbytes() for at, tensor in seen.items() if at not in weights
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_the_gradients_are_the_same_to_the_bit(name: str, layout: str) -> None:
    passes, shared = LAYOUTS[layout]
    model = build(name).eval()
    use_passes(model, passes)
    packed = batch(shared)
    expected = gradients(model, packed)
    recompute(model)
    assert same(gradients(model, packed), expected)
    away = list[Tensor]()

    def to_host(tensor: Tensor) -> Any:
        away.append(tensor)
        return ON_HOST.away(tensor)

    recompute(model, ON_HOST._replace(away=to_host))
    assert same(gradients(model, packed), expected)
    layers = sum(isinstance(m, GradientCheckpointingLayer) for m in model.modules())
    batches = {"packed": 1, "padded": len(packed.tables), "alone": len(packed.tree.length)}
    assert len(away) == layers * batches[passes] and all(each.dim() == 3 for each in away)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="FlexAttention has no backward pass on processors"
)
def test_the_gradients_of_attention_by_blocks_are_the_same_to_the_bit() -> None:
    model = build("qwen3").eval()
    attend_in_blocks(model)
    packed = batch(True)
    expected = gradients(model, packed)
    recompute(model)
    assert same(gradients(model, packed), expected)


def test_attention_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect that all this is against: a layer that is computed again has the model's own
    attention. Nothing is raised, and the gradients are far from what they were."""

    def forgetful(*given: Any, **kwargs: Any) -> Any:
        _, _, _, forward, *args = given
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=True)

    model = build("qwen3").eval()
    packed = batch(False)
    expected = gradients(model, packed)
    recompute(model)
    monkeypatch.setattr(recomputation, "_kept", forgetful)
    found = gradients(model, packed)
    size = max(float(gradient.abs().max()) for gradient in expected)
    distance = max(
        float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)
    )
    assert distance > 0.1 * size


@pytest.mark.parametrize("layout", LAYOUTS)
def test_less_is_kept_for_the_backward_pass(layout: str) -> None:
    passes, shared = LAYOUTS[layout]
    config = copy.deepcopy(CONFIGS["qwen3"])
    config.num_hidden_layers = 6
    config.layer_types = ["full_attention"] * 6
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    use_passes(model, passes)
    packed = batch(shared)
    whole = kept_bytes(model, packed)
    recompute(model)
    assert kept_bytes(model, packed) < 0.15 * whole  # it is 0.06 and 0.07


def test_a_copy_computes_its_own_layers_and_nothing_is_left_on_a_model() -> None:
    """Snapshots are copies: one that called the layers of the model it was made of would score with
    other weights, and not say so."""
    model = build("qwen3").eval()
    recompute(model)
    packed = batch(True)
    before = log_probabilities(model, packed, 0.7).detach()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(log_probabilities(other, packed, 0.7).detach(), before)
    assert not any("forward" in vars(module) for module in model.modules())
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("advantage", ["grpo", "min_variance"])
def test_a_step_is_the_same_to_the_bit(advantage: str) -> None:
    made = []
    for again in (False, True):
        train = TrainConfig(advantage=advantage, recompute_activations=again)
        learner = Learner(build("qwen3"), train, StalenessConfig(), 1.0)
        every = rollouts(learner.model, seed=1)
        learner.accumulate(*micro_batch(every, every))
        learner.step()
        made.append([parameter.detach() for parameter in learner.model.parameters()])
    assert same(*made)
    assert not same(made[0], list(build("qwen3").parameters()))


def test_a_model_without_layers_to_compute_again_is_refused() -> None:
    model = build("qwen3")
    model.model.layers = nn.ModuleList()
    with pytest.raises(ModelError, match=r"set train\.recompute_activations to false"):
        recompute(model)
