"""Figures of a supervised run. Invariant: a loss is the mean over learned tokens, nats; the one of
held-out rows is measured under the weights of its version, which do not change meanwhile."""

from __future__ import annotations

import msgspec

LOSS = "loss"
"""The name of the held-out loss among the figures of an evaluation."""


class SftFigures(msgspec.Struct, frozen=True):
    """Progress of a supervised run: the `loss` of the last step, the held-out loss at its
    first version and at `held_out_version`, and the passes over the rows (`epochs`). None before
    there is one."""

    loss: float | None = None
    held_out_first: float | None = None
    held_out: float | None = None
    held_out_version: int = -1
    epochs: float = 0.0

    @property
    def shown(self) -> tuple[float | None, float | None, int, float]:
        """The fields of `SftUpdate`, in their order."""
        return self.loss, self.held_out, self.held_out_version, self.epochs
