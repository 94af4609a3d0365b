"""Float32 copies of a model's parameters. Invariant: from the start, and after each `round`, each
parameter is its master, rounded to its own type, and to fp8 blocks where the model is marked so.

A step of Adam changes a weight by about the learning rate. In bfloat16, with eight bits, adding
1e-6 to a weight of 0.02 has no effect. So the optimizer changes float32 weights (Micikevicius et
al. 2018, arXiv:1710.03740, section 3.1), gradients are summed in float32, and the model computes
with, and publishes, the rounded weights that engines have. Gradients are taken at these weights and
change the masters, as if rounding were the identity (straight-through, Bengio et al. 2013,
arXiv:1308.3432). So a coarser rounding (`model.rounding`) is one more step of `round`, and all that
reads the parameters has it: passes, publications, averages, exports.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from asyncrl.training.adapters import learning
from asyncrl.training.fp8_blocks import rounded
from asyncrl.training.rounding import rounded_in_training


class MasterWeights:
    """The weights that the optimizer changes, of parameters that learn. For a float32 parameter
    that is the parameter itself; for one of a smaller type, and for one that is rounded in training
    (`asyncrl.training.rounding`), a float32 copy with a gradient of its own, to which the
    parameter's gradient is added as soon as it is complete. `computes` is the type in which the
    model computes where that differs from its parameters' own, as it may with several ranks.

    A step of 2^-9 at 1 is lost in bfloat16, but not in the master:

    >>> model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    >>> _ = nn.init.ones_(model.weight)
    >>> weights = MasterWeights(model)
    >>> ((_, master),) = weights.named()
    >>> for _ in range(4):
    ...     master.data += 2**-9
    ...     weights.round()
    >>> model.weight.item()
    1.0078125
    """

    def __init__(self, model: nn.Module, computes: torch.dtype | None = None) -> None:
        self._computes = computes
        self._pairs: list[tuple[str, nn.Parameter, nn.Parameter]] = []
        self._in_blocks = rounded_in_training(model)
        for name, parameter in learning(model):
            master = parameter
            smaller = torch.finfo(parameter.dtype).bits < torch.finfo(torch.float32).bits
            if smaller or name in self._in_blocks:
                master = nn.Parameter(parameter.detach().to(torch.float32, copy=True))
                parameter.register_post_accumulate_grad_hook(_Add(master))  # type: ignore[no-untyped-call]
            self._pairs.append((name, parameter, master))
        if self._in_blocks:
            self.round()

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name of the parameter, master), in the model's order."""
        return ((name, master) for name, _, master in self._pairs)

    def copies(self) -> dict[str, Tensor]:
        """The masters that are more precise than the published weights, by name, detached: those of
        parameters of a smaller type, and all where the model computes in a smaller one
        (`computes`)."""
        return {
            name: master.detach()
            for name, parameter, master in self._pairs
            if master is not parameter or self._computes not in (None, parameter.dtype)
        }

    @torch.no_grad()
    def round(self) -> None:
        """Round the masters into the model's parameters."""
        for name, parameter, master in self._pairs:
            if master is not parameter:
                parameter.copy_(rounded(master) if name in self._in_blocks else master)


class _Add:
    """Hook that autograd calls with a parameter whose gradient is complete: it adds the gradient to
    the master's and frees it."""

    def __init__(self, master: nn.Parameter) -> None:
        self._master = master

    def __call__(self, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if self._master.grad is None:
            self._master.grad = gradient.float()
        else:
            self._master.grad += gradient
