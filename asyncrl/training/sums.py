"""Sums of one step over its packed batches. Invariant: only sums, so that the metrics do not depend
on how the step was split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

import msgspec
import torch
from torch import Tensor

from asyncrl.algorithms.routing.balance import RoutingSums
from asyncrl.staleness.diagnostics import ByLag


class Sums(NamedTuple):
    """Counts of tokens, the loss, and the divergence of the policies.

    `trained`: tokens in the loss. `arrived`: tokens that were not masked on arrival. `clipped`:
    trained tokens whose gradient a bound of the objective changed. `proximal_unknown`: tokens whose
    proximal log-probability is not known, so that they have the current one. `loss` is the sum over
    the trained tokens, each with its weight in the mean, and `divisor` its divisor. `by_lag` is of
    current against behaviour policy. `corrections` are the diagnostics of the list of corrections.
    `policies` are sums over the trained tokens for other policies (`KlAdded.sums`). `routed` is
    what routers of experts did with all tokens."""

    trained: int = 0
    arrived: int = 0
    clipped: int = 0
    proximal_unknown: int = 0
    loss: float = 0.0
    divisor: float = 0.0
    by_lag: ByLag = ByLag()
    corrections: Mapping[str, Tensor] = {}
    policies: Mapping[str, float] = {}
    routed: RoutingSums = RoutingSums()

    def merge(self, other: Sums) -> Sums:
        """The sum of both."""
        corrections = dict(self.corrections)
        for name, value in other.corrections.items():
            corrections[name] = corrections[name] + value if name in corrections else value
        return Sums(
            self.trained + other.trained,
            self.arrived + other.arrived,
            self.clipped + other.clipped,
            self.proximal_unknown + other.proximal_unknown,
            self.loss + other.loss,
            self.divisor + other.divisor,
            self.by_lag.merge(other.by_lag),
            corrections,
            {
                name: self.policies.get(name, 0.0) + other.policies.get(name, 0.0)
                for name in (*self.policies, *other.policies)
            },
            self.routed.merge(other.routed),
        )

    def encoded(self) -> bytes:
        """These sums as bytes, for other ranks."""
        *numbers, by_lag, corrections, policies, routed = self
        assert isinstance(by_lag, ByLag)
        counts = None if routed.counts is None else routed.counts.tolist()
        scalars = {name: float(value) for name, value in corrections.items()}
        return _encode(
            (*numbers, by_lag.sums.tolist(), scalars, dict(policies), counts, routed[1:])
        )

    @classmethod
    def decoded(cls, encoded: bytes) -> Self:
        """The sums in the bytes of `encoded`."""
        trained, arrived, clipped, unknown, loss, divisor, *others = _decode(encoded)
        by_lag, scalars, policies, counts, routed = others
        corrections = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()
        }
        sums = ByLag(torch.tensor(by_lag, dtype=torch.float64))
        of_experts = None if counts is None else torch.tensor(counts, dtype=torch.float64)
        return cls(
            trained,
            arrived,
            clipped,
            unknown,
            loss,
            divisor,
            sums,
            corrections,
            policies,
            RoutingSums(of_experts, *routed),
        )

    def metrics(self) -> dict[str, float]:
        """Metrics: `loss` as it is minimized, `clip_fraction` of the trained tokens, `weight_mean`,
        the mean weight that the corrections give them, `kept_fraction` (trained of the tokens not
        stale), those of `Divergence.means` in all and of `ByLag.metrics` by lag, the sums
        `<correction>_<what>`, the means of `policies`, those of `RoutingSums.metrics`, the counts
        `trained_tokens` and `proximal_unknown`, and `proximal_unknown_fraction` of the tokens not
        stale."""
        trained = max(1, self.trained)
        corrections = {name: float(value) for name, value in sorted(self.corrections.items())}
        return {
            "loss": self.loss / self.divisor if self.divisor else 0.0,
            "clip_fraction": self.clipped / trained,
            "kept_fraction": self.trained / max(1, self.arrived),
            "weight_mean": corrections.pop("weight", 0.0) / trained,
            **self.by_lag.total.means(),
            **self.by_lag.metrics(),
            **corrections,
            **{name: value / trained for name, value in self.policies.items()},
            **self.routed.metrics(),
            "trained_tokens": float(self.trained),
            "proximal_unknown": float(self.proximal_unknown),
            "proximal_unknown_fraction": self.proximal_unknown / max(1, self.arrived),
        }


_Encoded = tuple[
    int,
    int,
    int,
    int,
    float,
    float,
    list[list[float]],
    dict[str, float],
    dict[str, float],
    list[list[float]] | None,
    tuple[int, int, int, int],
]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Encoded).decode
