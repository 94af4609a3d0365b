"""A bfloat16 model whose output layer computes in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from test_learner import run
from training_world import CONFIGS, build, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError
from asyncrl.training.output_layer import float32_output

PROMPT = torch.tensor([[1, 2, 3, 4, 5]])


def logits_and_exact(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the model, and those that float64 makes of the same hidden states and weights."""
    hidden: list[torch.Tensor] = []
    head = model.get_output_embeddings()  # type: ignore[operator]
    hook = head.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    with torch.no_grad():
        found = model(input_ids=PROMPT).logits
        expected = hidden[0].double() @ head.weight.double().T
    hook.remove()
    return found, expected


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_float32_of_the_same_hidden_states(name: str) -> None:
    plain = build(name, torch.bfloat16).eval()
    exact_layer = copy.deepcopy(plain)
    float32_output(exact_layer)
    rounded, expected = logits_and_exact(plain)
    assert float((rounded.double() - expected).abs().max()) > 1e-3
    found, expected = logits_and_exact(exact_layer)
    assert found.dtype == torch.float32
    assert float((found.double() - expected).abs().max()) < 1e-5
    assert [key for key, _ in exact_layer.named_parameters()] == [
        key for key, _ in plain.named_parameters()
    ]
    assert all(p.dtype == torch.bfloat16 for p in exact_layer.parameters())


def test_it_learns_and_its_weights_stay_tied() -> None:
    model = build("qwen3", torch.bfloat16)
    float32_output(model)
    train = TrainConfig(lr=1e-2, lr_warmup_steps=0)
    subject = Learner(model, train, StalenessConfig(), 1.0)
    before = model.get_output_embeddings().weight.detach().clone()  # type: ignore[no-untyped-call]
    _, metrics, _ = run(subject, [rollouts(build("qwen3"), seed=1)])
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[no-untyped-call]
    assert metrics["skipped"] == 0 and head.weight is embedding.weight
    assert not torch.equal(head.weight, before)


def test_another_kind_of_layer_is_refused() -> None:
    model = build("qwen3")
    model.set_output_embeddings(torch.nn.Identity())  # type: ignore[no-untyped-call]
    with pytest.raises(ModelError, match="is a Identity and not a linear layer"):
        float32_output(model)
