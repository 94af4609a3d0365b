"""Logits that are made in chunks: the same log-probabilities, entropies and gradients, from a few
of them at a time."""

from __future__ import annotations

import copy
import random
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
from asyncrl.training import chunked_logits
from asyncrl.training.batch import read
from asyncrl.training.chunked_logits import Entropy, Head, LogitFigures
from asyncrl.training.forward import (
    figures,
    log_probability,
    make_logits_in_chunks,
    response_logits,
    use_passes,
)
from asyncrl.training.gradients import ModelGradients
from asyncrl.training.learner import Learner
from asyncrl.training.linear import accelerate
from asyncrl.training.logit_changes import Change, logit_changes
from asyncrl.training.output_layer import Float32Linear, float32_output
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
    monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", CHUNK * 23 * 4)
    yield


def learned(model: PreTrainedModel, shared: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Figures of a batch, and the gradients of a sum of both."""
    model.zero_grad()
    found = figures(model, batch(shared), 0.7, "learned")
    assert found.entropy is not None
    weights = torch.linspace(-1, 2, len(found.logprob))
    ((found.logprob - 0.3 * found.entropy) * weights).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [found.logprob.detach(), found.entropy.detach()], gradients


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
    monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", 20 * 23 * 4)
    model = build("qwen3").eval()
    rows = {}
    for chunked in (False, True):
        if chunked:
            make_logits_in_chunks(model)
        with Largest(23) as largest:
            learned(model, True)
        rows[chunked] = largest.rows
    assert rows[True] == 20 and rows[False] >= len(batch(True).targets) > 30


CHANGED: list[tuple[str, dict[str, Any], Any]] = [
    ("llama", {}, ()),
    ("qwen3", {"tie_word_embeddings": True}, ()),
    ("granite", {"logits_scaling": 7.0}, (Change("div", 7.0),)),
    ("cohere", {"logit_scale": 0.07}, (Change("mul", 0.07),)),
    (
        "gemma2",
        {"final_logit_softcapping": 3.0, "attn_implementation": "eager"},
        (Change("div", 3.0), Change("tanh"), Change("mul", 3.0)),
    ),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kind", "settings", "changes"), CHANGED)
def test_what_a_model_does_to_its_logits_is_done_to_chunks(
    kind: str, settings: dict[str, Any], changes: Any, bias: bool, small_chunks: None
) -> None:
    """Figures and gradients, of numbers that are large enough for a soft cap to show, with every
    parameter moved. (Norms and rotations compute in float32.)"""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SMALL, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    if bias:
        layer = model.get_output_embeddings()
        layer.bias = torch.nn.Parameter(torch.randn(23, dtype=torch.float64))
    assert logit_changes(model) == changes
    use_passes(model, "alone")
    expected = learned(model, False)
    make_logits_in_chunks(model, changes)
    found = learned(model, False)
    for one, other in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        assert (one - other).abs().max() <= 1e-7 * max(1.0, float(other.abs().max()))


def test_logits_that_are_anything_else_are_made_as_one(small_chunks: None) -> None:
    """A model that adds to its logits, or calls its output layer twice."""

    class Adds(type(build("llama"))):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + output.logits.mean(-1, keepdim=True)
            return output

    class Twice(type(build("llama"))):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            super().forward(*args, **kwargs)
            return super().forward(*args, **kwargs)

    for kind in (Adds, Twice):
        model = build("llama").eval()
        model.__class__ = kind
        assert logit_changes(model) is None
        expected = log_probability(response_logits(model, batch(False), 0.7), batch(False).targets)
        try_passes(model, 64)
        found = figures(model, batch(False), 0.7)
        assert (found.logprob - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_output_layer_in_float32_makes_the_logits_too(dtype: torch.dtype) -> None:
    model = build("qwen3", dtype).eval()
    float32_output(model)
    assert logit_changes(model) == ()


def plainly(
    inputs: Tensor, layer: torch.nn.Linear, targets: Tensor, temperature: float, cap: float
) -> LogitFigures:
    """Figures by float64 and autograd alone."""
    bias = None if layer.bias is None else layer.bias.double()
    z = torch.nn.functional.linear(inputs.double(), layer.weight.double(), bias)
    z = (torch.tanh(z / cap) * cap if cap else z) / temperature
    every = z.log_softmax(-1)
    p = every.exp()
    return LogitFigures(
        every.gather(1, targets[:, None])[:, 0], -(p * every.where(p > 0, 0)).sum(-1)
    )


@pytest.mark.parametrize("seed", range(12))
def test_figures_and_gradients_are_those_of_float64(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of drawn sizes, types, soft caps, temperatures, biases, frozen layers and chunks; a layer as
    oneDNN has it; and an id that is impossible."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    tokens, size, vocabulary = draw.randint(2, 40), draw.randint(1, 20), draw.randint(2, 60)
    dtype = draw.choice([torch.float64, torch.float32, torch.float32, torch.bfloat16])
    bias, cap = draw.random() < 0.5, draw.choice([0.0, 2.0])
    temperature, entropy = draw.uniform(0.3, 1.7), draw.choice(["no", "known", "learned"])
    monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", draw.randint(1, tokens) * vocabulary * 4)
    layer = torch.nn.Linear(size, vocabulary, bias=bias)
    if bias and not cap:
        layer.bias.data[0] = -torch.inf
    layer.to(dtype).requires_grad_(draw.random() < 0.8)
    accelerate(layer) if draw.random() < 0.5 else None
    if draw.random() < 0.5:
        layer.__class__ = Float32Linear if dtype == torch.bfloat16 else layer.__class__
    changes = (Change("div", cap), Change("tanh"), Change("mul", cap)) if cap else ()
    inputs = torch.randn(tokens, size, dtype=dtype, requires_grad=True)
    targets = torch.randint(min(1, vocabulary - 1), vocabulary, (tokens,))
    of_logprob, of_entropy = torch.randn(2, tokens)

    def found(figures: LogitFigures) -> list[Tensor]:
        total = (figures.logprob * of_logprob).sum()
        if entropy == "learned":
            assert figures.entropy is not None
            total = total + (figures.entropy * of_entropy).sum()
        learn = [each for each in (inputs, *layer.parameters()) if each.requires_grad]
        tensors = [figures.logprob, *torch.autograd.grad(total, learn)]
        if entropy != "no":
            assert figures.entropy is not None
            tensors.append(figures.entropy)
        return [each.detach().double() for each in tensors]

    wanted: Entropy = entropy  # type: ignore[assignment]
    got = found(Head(layer, changes, temperature).figures(inputs, targets, wanted))
    expected = found(plainly(inputs, layer, targets, temperature, cap))
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    for one, other in zip(got, expected, strict=True):
        assert torch.isfinite(one).all()
        assert (one - other).norm() <= bound * max(1.0, float(other.norm()))


def test_the_weight_s_gradient_is_about_as_exact_with_any_number_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bfloat16, in whose own type a sum of 256 chunks is several times as far off."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 64, bias=False).to(torch.bfloat16)
    inputs = torch.randn(2048, 32).to(torch.bfloat16)
    targets = torch.randint(0, 64, (2048,))
    of_logprob = torch.randn(2048)
    double = copy.deepcopy(layer).double()
    (plainly(inputs, double, targets, 0.7, 0.0).logprob * of_logprob).sum().backward()
    assert double.weight.grad is not None
    exact, errors = double.weight.grad, []
    for chunks in (1, 16, 256):
        monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", 2048 // chunks * 64 * 4)
        layer.weight.grad = None
        found = Head(layer, (), 0.7).figures(inputs, targets, "no").logprob
        (found * of_logprob).sum().backward()
        assert layer.weight.grad is not None
        errors.append(float((layer.weight.grad.double() - exact).norm() / exact.norm()))
    assert max(errors) <= 1.3 * errors[0] < 0.01, errors


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
