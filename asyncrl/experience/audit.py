"""Audit of whether training uses a fair sample of generated rollouts. Invariant: each rollout
counts on both sides by the same facts, fixed when its generation ends. So if everything is trained,
both sides are equal.

There are four axes, each with a histogram of both sides: length, age (versions published between
the admission of the prompt and the last token), attempts (leases), and the version that the
response began with. The number of bins is bounded, so memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

BINS = 64


class Facts(msgspec.Struct, frozen=True):
    """Facts of a rollout whose generation has ended: its length in response tokens, its age in
    versions, its leases, and its first version. None is negative."""

    length: int
    age: int
    attempts: int
    version: int


def _empty() -> list[float]:
    return [0.0] * BINS


class Axis(msgspec.Struct):
    """Two histograms over the same bins, and both sums of values. Bin i has the positions [i *
    width, (i + 1) * width): with a width of 2, positions 4 and 5 are in bin 2."""

    width: int = 1
    generated: list[float] = msgspec.field(default_factory=_empty)
    trained: list[float] = msgspec.field(default_factory=_empty)
    generated_sum: float = 0.0
    trained_sum: float = 0.0

    def bin(self, position: int) -> int:
        """The bin of a position (>= 0). For a position beyond the last bin, merges the bins two by
        two, which doubles the width, until it fits."""
        while position >= BINS * self.width:
            self.generated, self.trained = _merged(self.generated), _merged(self.trained)
            self.width *= 2
        return position // self.width

    @property
    def distance(self) -> float:
        """Total variation distance of both distributions, 0 to 1: the share of trained rollouts
        that would have to change for a fair sample. Neither side may be empty.

        Example: shares of 0.75 and 0.25 against 0.5 and 0.5.

        >>> Axis(generated=[3.0, 1.0], trained=[1.0, 1.0]).distance
        0.25
        """
        a, b = sum(self.generated), sum(self.trained)
        return 0.5 * sum(
            abs(x / a - y / b) for x, y in zip(self.generated, self.trained, strict=True)
        )

    @property
    def ratio(self) -> float:
        """The mean of trained rollouts over the mean of generated ones; 1 where the latter is 0.
        Neither side may be empty."""
        a, b = self.generated_sum / sum(self.generated), self.trained_sum / sum(self.trained)
        return b / a if a else 1.0


def _merged(bins: list[float]) -> list[float]:
    return [x + y for x, y in zip(bins[::2], bins[1::2], strict=True)] + [0.0] * (BINS // 2)


class Audit(msgspec.Struct):
    """The audit of all training rollouts. The bins of lengths double: 0, 1, 2-3, 4-7, …"""

    length: Axis = msgspec.field(default_factory=Axis)
    age: Axis = msgspec.field(default_factory=Axis)
    attempts: Axis = msgspec.field(default_factory=Axis)
    version: Axis = msgspec.field(default_factory=Axis)

    def generated(self, facts: Facts) -> None:
        """Count a rollout whose generation ended, complete or buried. Until it is trained or
        discarded it counts on this side only. So rollouts under way add at most their share to a
        distance."""
        for axis, position, value in self._axes(facts):
            index = axis.bin(position)
            axis.generated[index] += 1.0
            axis.generated_sum += value

    def trained(self, facts: Facts, share: float = 1.0) -> None:
        """Count a rollout for the share of its tokens, in (0, 1], that entered a loss; only once,
        even if it is replayed later."""
        for axis, position, value in self._axes(facts):
            index = axis.bin(position)
            axis.trained[index] += share
            axis.trained_sum += share * value

    def _axes(self, facts: Facts) -> Iterator[tuple[Axis, int, int]]:
        """Each axis, with a rollout's position and value on it."""
        yield self.length, facts.length.bit_length(), facts.length
        yield self.age, facts.age, facts.age
        yield self.attempts, facts.attempts, facts.attempts
        yield self.version, facts.version, facts.version

    def report(self) -> dict[str, float]:
        """For each axis `NAME` the `distance`, and as `NAME_mean` the `ratio`; empty before the
        first rollout was generated and trained."""
        if not any(self.length.generated) or not any(self.length.trained):
            return {}
        axes = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: axis.distance for name, axis in axes.items()} | {
            f"{name}_mean": axis.ratio for name, axis in axes.items()
        }
