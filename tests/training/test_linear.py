"""oneDNN's linear layer is nn.Linear, forwards and backwards, and changes nothing that is saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_world import build

from asyncrl.training import linear
from asyncrl.training.linear import OneDnnLinear, accelerate

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@needs_onednn
@pytest.mark.parametrize("shape", [(5,), (1,), (2, 7), (0,), (1, 3, 4)])
@pytest.mark.parametrize("sizes", [(6, 10), (10, 6), (8, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_is_nn_linear(shape: tuple[int, ...], sizes: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(*sizes, bias=bias)
    fast = nn.Linear(*sizes, bias=bias)
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = OneDnnLinear
    inputs = [torch.randn(*shape, sizes[0]).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    weight = torch.randn(*shape, sizes[1])
    outputs = [layer(x) for layer, x in zip((plain, fast), inputs, strict=True)]
    for output in outputs:
        (output * weight).sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for p, q in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


@needs_onednn
def test_inputs_of_any_strides_and_frozen_weights() -> None:
    layer = nn.Linear(6, 4)
    layer.__class__ = OneDnnLinear
    layer.requires_grad_(False)
    x = torch.randn(6, 5).requires_grad_()
    layer(x.t()).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0)[:, None].expand(6, 5))
    assert layer.weight.grad is None


def test_other_types_are_multiplied_as_ever() -> None:
    layer = nn.Linear(6, 4).double()
    layer.__class__ = OneDnnLinear
    x = torch.randn(5, 6, dtype=torch.float64)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_accelerate_changes_who_multiplies_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "_faster", lambda: True)
    model, same = build("llama"), build("llama")
    assert accelerate(model)
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear)} == {OneDnnLinear}
    assert model.state_dict().keys() == same.state_dict().keys()
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in same.named_parameters()
    ]


def test_left_alone_where_it_is_slower_or_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_faster", lambda: False)
    assert not accelerate(build("llama"))
    monkeypatch.setattr(linear, "_faster", lambda: True)
    model = build("llama", torch.bfloat16)
    assert not accelerate(model)
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear)} == {nn.Linear}


def test_a_torch_without_the_operator_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_intel", lambda: False)
    assert accelerate(build("llama"))
    monkeypatch.setattr(linear, "_OPERATOR", "no_such_operator")
    assert not accelerate(build("llama"))
    monkeypatch.undo()
    monkeypatch.setattr(linear, "_intel", lambda: True)
    assert not accelerate(build("llama"))
