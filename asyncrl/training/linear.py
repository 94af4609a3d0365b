"""Linear layers through oneDNN. Invariant: layers, parameters and names stay the same; only the
multiplication differs.

torch multiplies float32 matrices on a CPU with MKL, which on some vendors' processors reaches less
than half of oneDNN's speed, and offers oneDNN for inference only. So its backward is here. oneDNN
reads the weights in place: nothing is repacked after an update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_OPERATOR = "_linear_pointwise"
"""A private operator: another build of torch may lack it."""


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`; x is [..., in], weight is [out, in] with any strides."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = _multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        g = gradient.reshape(-1, gradient.shape[-1])
        of_weight = None
        if ctx.needs_input_grad[1]:
            flat = x.reshape(-1, x.shape[-1])
            # oneDNN is faster with the longer side of the weight as its output channels.
            of_weight = (
                _multiply(flat.t(), g.t()).t()
                if g.shape[1] > flat.shape[1]
                else _multiply(g.t(), flat.t())
            )
        return of_x, of_weight, g.sum(0) if ctx.needs_input_grad[2] else None


class OneDnnLinear(nn.Linear):
    """`nn.Linear`, through oneDNN for non-empty float32 inputs on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Linear`: [..., in] to [..., out]."""
        if (
            not (input.dtype == self.weight.dtype == torch.float32)
            or input.device.type != "cpu"
            or not input.numel()
        ):
            return super().forward(input)
        output: Tensor = _Multiply.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


def accelerate(model: nn.Module) -> bool:
    """Run every plain linear layer of a float32 model on a CPU through oneDNN, on processors where
    that is faster; returns True if it did. The layers change their class in place; parameters,
    their names and checkpoints stay the same.
    """
    layers = [m for m in model.modules() if type(m) is nn.Linear]
    if (
        not layers
        or any(m.weight.dtype != torch.float32 or m.weight.device.type != "cpu" for m in layers)
        or not _faster()
    ):
        return False
    for layer in layers:
        layer.__class__ = OneDnnLinear
    return True


def _faster() -> bool:
    """True if oneDNN is faster on this processor. This depends on its vendor, not on a measurement:
    MKL and oneDNN round differently, and a resumed run must multiply as before."""
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, _OPERATOR)  # type: ignore[no-untyped-call]
    return available and not _intel()


def _intel() -> bool:
    """True if the processor is from MKL's own vendor."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False  # not Linux
