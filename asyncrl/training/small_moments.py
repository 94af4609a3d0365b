"""AdamW in pieces of weights, whose moments take fewer bytes than float32, or are elsewhere
(`host_moments.py`). Invariant: rounding a moment is right in the
mean, and draws the same numbers in the same step, whenever a run was resumed.

A moment changes by a hundredth of itself in a step (1 - beta2), which is less than half of the
distance between two numbers of a small type: rounded to the nearest one, it would never change. So
it is rounded up or down by chance, in the mean to itself (stochastic rounding). A step computes in
float32 with the moments before they are rounded, a few rows of a weight at a time. Weights of one
dimension are few, and keep float32 moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from asyncrl.training.ranks.stand_in import divided_like, local

PIECE = 2**22
"""Numbers of a weight that are changed at a time."""
BLOCK = 256
"""Numbers of a row that share a scale."""
CODES = 127
FIRST, SECOND = "exp_avg", "exp_avg_sq"
POWERS = {FIRST: 5, SECOND: 8}
"""Exponents of codes: the k-th of 127 stands for (k / 127)^5 of the scale, or ^8. So the moments of
a block may differ by a factor of 3e10, or 7e16, and the largest have steps of 4 % and 6 %."""


class Moments(Protocol):
    """A way to keep the moments of weights of two dimensions or more."""

    def zeros(self, weight: Tensor) -> dict[str, Tensor]:
        """The moments of a weight before its first step, divided over ranks as it is."""
        ...

    def device_of(self, weight: Tensor) -> torch.device:
        """The device on which the moments of a weight are kept."""
        ...

    def read(self, kept: Mapping[str, Tensor], name: str, device: torch.device) -> Tensor:
        """A moment of some rows, float32 [rows, columns] on this device, that may be
        overwritten."""
        ...

    def write(
        self, kept: Mapping[str, Tensor], name: str, value: Tensor, draws: torch.Generator
    ) -> None:
        """Keep a moment of these rows, which may be overwritten."""
        ...


class Bfloat16:
    """Moments in bfloat16: 4 bytes of a parameter. Satisfies `Moments`."""

    def zeros(self, weight: Tensor) -> dict[str, Tensor]:
        """Zeros of the weight's shape."""
        return {name: torch.zeros_like(weight, dtype=torch.bfloat16) for name in (FIRST, SECOND)}

    def device_of(self, weight: Tensor) -> torch.device:
        """That of the weight."""
        return weight.device

    def read(self, kept: Mapping[str, Tensor], name: str, device: torch.device) -> Tensor:
        """The same numbers."""
        return kept[name].to(torch.float32, copy=True)

    def write(
        self, kept: Mapping[str, Tensor], name: str, value: Tensor, draws: torch.Generator
    ) -> None:
        """Add a random number of 16 bits to those that are cut off."""
        kept[name].copy_(to_bfloat16(value, draws))


def to_bfloat16(value: Tensor, draws: torch.Generator) -> Tensor:
    """Round float32 numbers to bfloat16, up or down by chance, in the mean to themselves."""
    bits = value.contiguous().view(torch.int32)
    low = torch.empty_like(bits).random_(0, 2**16, generator=draws)
    return bits.add(low).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


class EightBit:
    """Moments in 8 bits and a scale for each block of a row (as Dettmers et al., arXiv 2110.02861,
    with other codes): 2.03 bytes of a parameter. Satisfies `Moments`."""

    def zeros(self, weight: Tensor) -> dict[str, Tensor]:
        """Codes of zero, of the weight's shape, and scales (`scales_shape`)."""
        scales = _like(weight, scales_shape(weight.shape))
        return {
            FIRST: torch.full_like(weight, CODES, dtype=torch.uint8),
            SECOND: torch.zeros_like(weight, dtype=torch.uint8),
            f"{FIRST}_scale": scales,
            f"{SECOND}_scale": scales.clone(),
        }

    def device_of(self, weight: Tensor) -> torch.device:
        """That of the weight."""
        return weight.device

    def read(self, kept: Mapping[str, Tensor], name: str, device: torch.device) -> Tensor:
        """Numbers that the codes stand for; those of the first moment have a sign."""
        found = kept[name].float()
        if name == FIRST:
            found.sub_(CODES)
        size = found.abs().div_(CODES).pow_(POWERS[name])
        return size.mul_(found.sign_()).mul_(_spread(kept[f"{name}_scale"], found.shape[-1]))

    def write(
        self, kept: Mapping[str, Tensor], name: str, value: Tensor, draws: torch.Generator
    ) -> None:
        """Round to one of the two codes beside each number. A second moment that is not zero never
        becomes zero, which the step would be divided by."""
        columns = value.shape[-1]
        padded = nn.functional.pad(value.abs(), (0, -columns % BLOCK))
        scale = padded.view(len(value), -1, BLOCK).amax(-1)
        kept[f"{name}_scale"].copy_(scale)
        size = value.abs().div_(_spread(scale, columns).clamp_(min=1e-38)).clamp_(max=1.0)
        code = size.pow(1 / POWERS[name]).mul_(CODES).floor_().clamp_(max=CODES - 1)
        low, high = ((each / CODES).pow_(POWERS[name]) for each in (code, code + 1))
        chance = size.sub_(low).div_(high.sub_(low))
        code += torch.empty_like(chance).uniform_(generator=draws) < chance
        if name == FIRST:
            code.mul_(value.sign()).add_(CODES)
        else:
            code.clamp_(min=1).mul_(value > 0)
        kept[name].copy_(code)


def scales_shape(shape: torch.Size) -> torch.Size:
    """The shape of the scales of a weight's 8-bit moments.

    >>> tuple(scales_shape(torch.Size((3, 300))))
    (3, 2)
    """
    return torch.Size((*shape[:-1], -(-shape[-1] // BLOCK)))


def _spread(scale: Tensor, columns: int) -> Tensor:
    """The scale of each number of rows [rows, columns]."""
    return scale.repeat_interleave(BLOCK, -1)[:, :columns]


def _like(weight: Tensor, shape: torch.Size) -> Tensor:
    """Zeros of another last dimension than the weight's, float32, divided over ranks as it is."""
    own = local(weight)
    zeros = own.new_zeros((*own.shape[:-1], shape[-1]), dtype=torch.float32)
    return divided_like(weight, zeros, shape)


class PiecewiseAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) of float32 weights, with such `moments`."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        moments: Moments,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8}
        super().__init__(groups, defaults)
        self._moments = moments

    def device_of(self, weight: Tensor) -> torch.device:
        """The device on which the moments of a weight are kept."""
        return self._moments.device_of(weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the weights that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for number, weight in enumerate(group["params"]):
                if weight.grad is not None:
                    self._change(weight, group, number)

    def _change(self, weight: nn.Parameter, group: Mapping[str, Any], number: int) -> None:
        state = self.state[weight]
        small = weight.dim() > 1
        if not state:
            state["step"] = torch.tensor(0.0)
            state |= (
                self._moments.zeros(weight.detach())
                if small
                else {name: torch.zeros_like(weight) for name in (FIRST, SECOND)}
            )
        state["step"] += 1
        steps = int(state["step"])
        own, gradient = local(weight), local(weight.grad)  # type: ignore[arg-type]
        kept = {name: local(each) for name, each in state.items() if name != "step"}
        if not own.numel():
            return
        draws = torch.Generator(own.device).manual_seed(steps * 2**20 + number)
        if not small:
            _step(own, gradient, kept[FIRST], kept[SECOND], steps, group)
            return
        every = {name: each.flatten(0, -2) for name, each in kept.items()}
        own, gradient = own.flatten(0, -2), gradient.flatten(0, -2)
        rows = max(1, PIECE // own.shape[-1])
        for start in range(0, len(own), rows):
            here = slice(start, start + rows)
            piece = {name: each[here] for name, each in every.items()}
            first, second = (
                self._moments.read(piece, name, own.device) for name in (FIRST, SECOND)
            )
            _step(own[here], gradient[here], first, second, steps, group)
            self._moments.write(piece, FIRST, first, draws)
            self._moments.write(piece, SECOND, second, draws)


def _step(
    weight: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    steps: int,
    group: Mapping[str, Any],
) -> None:
    """Change moments and weight in place."""
    (beta1, beta2), rate = group["betas"], group["lr"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    size = second.sqrt().div_((1 - beta2**steps) ** 0.5).add_(group["eps"])
    weight.mul_(1 - rate * group["weight_decay"])
    weight.addcdiv_(first, size, value=-rate / (1 - beta1**steps))
