"""Changes of an output layer's results before they are a model's logits: a scale, a soft cap,
another type. Invariant: what is recorded is what was done, or nothing is.

The operations of torch from the layer's result to the logits are recorded in one pass, so nothing
is known about any architecture, and a model without numbers (fake tensors) tells as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

_OPERATIONS = {
    torch.ops.aten.mul.Tensor: "mul",
    torch.ops.aten.mul_.Tensor: "mul",
    torch.ops.aten.div.Tensor: "div",
    torch.ops.aten.div_.Tensor: "div",
    torch.ops.aten.tanh.default: "tanh",
    torch.ops.aten.tanh_.default: "tanh",
    torch.ops.aten._to_copy.default: "float",
}


class Change(NamedTuple):
    """One operation on each logit: `mul` or `div` by the number, `tanh`, or `float` (the type)."""

    operation: str
    number: float = 1.0


def logit_changes(model: PreTrainedModel) -> tuple[Change, ...] | None:
    """Changes that the model makes to the results of its output layer, in order; None where they
    are any others than `Change` knows, or the layer is not linear."""
    layer: nn.Module = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        return None
    recorded = _Recorded()
    hook = layer.register_forward_hook(recorded.begin)
    try:
        with torch.no_grad(), recorded:
            ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    return tuple(recorded.changes) if recorded.known and logits is recorded.last else None


def changed(logits: Tensor, changes: Sequence[Change]) -> tuple[Tensor, list[Tensor]]:
    """Apply the changes to logits; gives the result, and what `pulled_back` needs."""
    kept = list[Tensor]()
    for operation, number in changes:
        match operation:
            case "mul":
                logits = logits * number
            case "div":
                logits = logits / number
            case "tanh":
                logits = logits.tanh()
                kept.append(logits)
            case _:
                logits = logits.float()
    return logits, kept


def pulled_back(gradient: Tensor, kept: Sequence[Tensor], changes: Sequence[Change]) -> Tensor:
    """The gradient of logits before the changes from that of those after them, which is
    overwritten, and may be of a more exact type."""
    tanhs = iter(reversed(kept))
    for operation, number in reversed(changes):
        match operation:
            case "mul":
                gradient.mul_(number)
            case "div":
                gradient.div_(number)
            case "tanh":
                gradient.mul_(next(tanhs).to(gradient.dtype, copy=True).square_().neg_().add_(1.0))
    return gradient


class _Recorded(TorchDispatchMode):
    """Records what is done to the results of an output layer. `last`: what came of it; `known`:
    False once something is done that no `Change` is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes: list[Change] = []
        self.last: Tensor | None = None
        self.known = True

    def begin(self, _: Any, __: Any, output: Tensor) -> None:
        """Hook of the output layer."""
        self.known = self.known and self.last is None
        self.last = output

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if self.last is not None and any(each is self.last for each in args):
            change = _change(function, args, kwargs or {})
            self.known = self.known and change is not None
            if change is not None:
                self.changes.append(change)
            self.last = output
        return output


def _change(function: Any, args: Any, kwargs: Any) -> Change | None:
    operation = _OPERATIONS.get(function)
    match operation, args, kwargs:
        case "mul" | "div", (_, int() | float() as number), {**nothing} if not nothing:
            return Change(operation, float(number))
        case "tanh", (_,), _:
            return Change(operation)
        case "float", (_,), {"dtype": torch.float32}:
            return Change(operation)
    return None
