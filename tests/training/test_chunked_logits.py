"""Logits that are made in chunks: the same log-probabilities, entropies and gradients, from a few
of them at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from some_values import some
from test_recomputation import LAYOUTS, batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training_world import build, micro_batch, rollouts
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training import forward
from asyncrl.training.batch import read
from asyncrl.training.forward import (
    entropies,
    log_probability,
    make_logits_in_chunks,
    measured,
    response_logits,
    use_passes,
)
from asyncrl.training.gradients import ModelGradients
from asyncrl.training.learner import Learner
from asyncrl.training.output_layer import float32_output, makes_the_logits
from asyncrl.training.recomputation import recompute
from asyncrl.training.trial import try_passes

CHUNK = 7
SMALL = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of seven tokens of a vocabulary of 23."""
    monkeypatch.setattr(forward, "LOGIT_BYTES", CHUNK * 23 * 4)
    yield


def figures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return log_probability(logits, targets), entropies(logits)


def learned(model: PreTrainedModel, shared: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Figures of a batch, and the gradients of a sum of both."""
    model.zero_grad()
    found = measured(model, batch(shared), 0.7, figures)
    weights = torch.linspace(-1, 2, len(found[0]))
    ((found[0] - 0.3 * found[1]) * weights).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [each.detach() for each in found], gradients


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", some(["qwen3", "llama", "gpt2"]))
def test_figures_and_gradients_are_those_of_all_logits(
    name: str, layout: str, recomputed: bool, small_chunks: None
) -> None:
    passes, shared = LAYOUTS[layout]
    model = build(name, torch.float64).eval()
    use_passes(model, passes)
    expected = learned(model, shared)
    make_logits_in_chunks(model)
    if recomputed:
        recompute(model)
    found = learned(model, shared)
    for one, other in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        assert (one - other).abs().max() <= 1e-12 * max(1.0, float(other.abs().max()))


class Largest(TorchDispatchMode):
    """Finds the largest number of rows of a result that has a column for each id."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self._vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.shape[-1:] == (self._vocabulary,):
            self.rows = max(self.rows, found.numel() // self._vocabulary)
        return found


def test_no_more_logits_than_a_chunk_are_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward. (What is smaller may be the weights, of 16 rows.)"""
    monkeypatch.setattr(forward, "LOGIT_BYTES", 20 * 23 * 4)
    model = build("qwen3").eval()
    rows = {}
    for chunked in (False, True):
        if chunked:
            make_logits_in_chunks(model)
        with Largest(23) as largest:
            learned(model, True)
        rows[chunked] = largest.rows
    assert rows[True] == 20 and rows[False] >= len(batch(True).targets) > 30


@pytest.mark.parametrize(
    ("kind", "settings", "alone"),
    [
        ("llama", {}, True),
        ("qwen3", {"tie_word_embeddings": True}, True),
        ("granite", {"logits_scaling": 8.0}, False),
        ("cohere", {"logit_scale": 0.0625}, False),
        ("gemma2", {"final_logit_softcapping": 30.0, "attn_implementation": "eager"}, False),
    ],
)
def test_logits_that_are_changed_afterwards_are_not_made_in_chunks(
    kind: str, settings: dict[str, Any], alone: bool, small_chunks: None
) -> None:
    """A soft cap does not show at the small logits of a new model, and is found all the same."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SMALL, **settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert makes_the_logits(model) == alone
    try_passes(model, 64)
    expected = log_probability(response_logits(model, batch(False), 0.7), batch(False).targets)
    (found,) = measured(model, batch(False), 0.7, lambda *given: (log_probability(*given),))
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_output_layer_in_float32_makes_the_logits_too(dtype: torch.dtype) -> None:
    model = build("qwen3", dtype).eval()
    float32_output(model)
    assert makes_the_logits(model)


def test_a_step_is_the_same(small_chunks: None) -> None:
    """With an entropy bonus, so that both figures have gradients."""
    weights = []
    for chunked in (False, True):
        model = build("qwen3")
        if chunked:
            make_logits_in_chunks(model)
        train = TrainConfig(lr=1e-2, lr_warmup_steps=0, entropy_bonus=0.01)
        learner = Learner(model, train, StalenessConfig(), 1.0)
        learner.accumulate(*micro_batch(some := rollouts(build("qwen3"), seed=1), some))
        metrics = learner.step()
        assert metrics["skipped"] == 0
        weights.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*weights, strict=True):
        assert (one - other).abs().max() < 1e-6


def test_norms_from_logits_are_the_same(small_chunks: None) -> None:
    model = build("qwen3").eval()
    chunked = copy.deepcopy(model)
    make_logits_in_chunks(chunked)
    message, buffers = micro_batch(some := rollouts(build("qwen3"), seed=1), some)
    tensors = read(message, buffers, shared=True)
    found, expected = (
        ModelGradients(tensors, len(message.samples), each, 1.0).from_logits()
        for each in (chunked, model)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)
