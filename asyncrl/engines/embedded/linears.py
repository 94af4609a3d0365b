"""Linear layers with weights laid out for oneDNN. Invariant: a packed layer computes the same as
the layer it replaces, with that layer's parameters at the last `repack`.

oneDNN's own layout is about twice as fast as the default for many rows of float32 on some CPUs, and
slower for few rows; `Lane` measures and takes the faster.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    # the tracer can record a call to this, but not the operator's list argument
    _packed_linear = torch.jit.script(_linear)


class PackedLinear(nn.Module):
    """Replaces a `Linear` or a `Conv1D`, which keeps owning the parameters."""

    def __init__(self, source: nn.Linear | Conv1D, rows: int) -> None:
        super().__init__()
        self._source = [source]  # in a list: not a submodule, its parameters are not this module's
        self._rows = rows
        self.bias = source.bias
        self.register_buffer("packed", self.repacked(), persistent=False)

    def repacked(self) -> Tensor:
        source = self._source[0]
        weight = source.weight.detach()
        weight = weight.t().contiguous() if isinstance(source, Conv1D) else weight
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, self._rows)
        return packed

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.packed, Tensor)
        result: Tensor = _packed_linear(x, self.packed, self.bias)
        return result


def packable() -> bool:
    """True if this build of torch has oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def packed(model: PreTrainedModel, rows: int) -> PreTrainedModel:
    """The same model with packed linear layers, best at `rows` rows. It shares every other
    parameter and buffer with `model`."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    sources = dict(model.named_modules())
    for name, module in list(twin.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, nn.Linear | Conv1D):
                source = sources[f"{name}.{child_name}" if name else child_name]
                assert isinstance(source, nn.Linear | Conv1D)
                setattr(module, child_name, PackedLinear(source, rows))
    return twin


def packed_layers(model: nn.Module) -> list[tuple[str, PackedLinear]]:
    """The packed layers of a module, with their paths in it."""
    return [
        (name, module) for name, module in model.named_modules() if isinstance(module, PackedLinear)
    ]
