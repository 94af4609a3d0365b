"""What a step adds up over its bundles. Invariant: only sums, so that the metrics do not depend on
how the step was split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from staleness.diagnostics import ByLag


class Sums(NamedTuple):
    """Counts of tokens: `trained`; `arrived`, which were not masked on arrival; `clipped`, the
    trained ones whose gradient the objective's bounds changed; `unanchored`, whose proximal policy
    is not known. `loss` is over the trained. `by_lag` is of current against behaviour policy.
    `corrections` are the diagnostics of the list of corrections."""

    trained: int = 0
    arrived: int = 0
    clipped: int = 0
    unanchored: int = 0
    loss: float = 0.0
    by_lag: ByLag = ByLag()
    corrections: Mapping[str, Tensor] = {}

    def merge(self, other: Sums) -> Sums:
        """The sums of both."""
        names = self.corrections.keys() | other.corrections.keys()
        return Sums(
            self.trained + other.trained,
            self.arrived + other.arrived,
            self.clipped + other.clipped,
            self.unanchored + other.unanchored,
            self.loss + other.loss,
            self.by_lag.merge(other.by_lag),
            {
                name: self.corrections.get(name, 0) + other.corrections.get(name, 0)
                for name in names
            },  # type: ignore[misc]
        )

    def metrics(self) -> dict[str, float]:
        """`loss` and `clip_fraction` of the trained tokens, `weight_mean` what the corrections have
        them weigh, `kept_fraction` (trained of the tokens not stale), those of `Divergence.means`
        in all and of `ByLag.metrics` by lag, the sums `<correction>_<what>`, and the counts
        `trained_tokens` and `unanchored`."""
        trained = max(1, self.trained)
        corrections = {name: float(value) for name, value in sorted(self.corrections.items())}
        return {
            "loss": self.loss / trained,
            "clip_fraction": self.clipped / trained,
            "kept_fraction": self.trained / max(1, self.arrived),
            "weight_mean": corrections.pop("weight", 0.0) / trained,
            **self.by_lag.total.means(),
            **self.by_lag.metrics(),
            **corrections,
            "trained_tokens": float(self.trained),
            "unanchored": float(self.unanchored),
        }
