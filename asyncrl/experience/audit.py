"""A comparison of what is trained with what is generated: is it a fair sample? Invariant: each
rollout is counted on both sides by the same facts, which are fixed when its generation ends. So
where everything is trained, both sides are equal.

There are four axes, each with a histogram of both sides: length, age (versions published between
the admission of the prompt and the last token), attempts (leases), and the version that the
response began with. The number of bins is bounded, so a long run takes no more memory.
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
    """Two histograms over the same bins, and both sums of values. Bin i has the places
    [i * width, (i + 1) * width): with a width of 2, places 4 and 5 are in bin 2."""

    width: int = 1
    generated: list[float] = msgspec.field(default_factory=_empty)
    trained: list[float] = msgspec.field(default_factory=_empty)
    generated_sum: float = 0.0
    trained_sum: float = 0.0

    def bin(self, place: int) -> int:
        """The bin of a place (>= 0). A place beyond the last bin has the bins merged two by two,
        which doubles the width, until it is within."""
        while place >= BINS * self.width:
            self.generated, self.trained = _merged(self.generated), _merged(self.trained)
            self.width *= 2
        return place // self.width

    @property
    def distance(self) -> float:
        """Total variation distance of both distributions, 0 to 1: the share of what is trained that
        would have to be something else for a fair sample. Both sides must have something.

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
        """The mean of what is trained over the mean of what is generated; 1 where the latter is
        0. Both sides must have something."""
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
        """The generation of a rollout is over: it is complete, or was given up. Until it is trained
        or discarded it counts on this side alone. So the rollouts under way add at most their share
        to a distance."""
        for axis, place, value in self._axes(facts):
            at = axis.bin(place)
            axis.generated[at] += 1.0
            axis.generated_sum += value

    def trained(self, facts: Facts, share: float = 1.0) -> None:
        """A share, in (0, 1], of a rollout's tokens entered a loss, and the rollout counts for that
        share; once, also where it is replayed later."""
        for axis, place, value in self._axes(facts):
            at = axis.bin(place)
            axis.trained[at] += share
            axis.trained_sum += share * value

    def _axes(self, facts: Facts) -> Iterator[tuple[Axis, int, int]]:
        """Each axis, with a rollout's place and value on it."""
        yield self.length, facts.length.bit_length(), facts.length
        yield self.age, facts.age, facts.age
        yield self.attempts, facts.attempts, facts.attempts
        yield self.version, facts.version, facts.version

    def report(self) -> dict[str, float]:
        """For each axis `NAME` the `distance`, and as `NAME_mean` the `ratio`; nothing before
        something was generated and trained."""
        if not any(self.length.generated) or not any(self.length.trained):
            return {}
        axes = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: axis.distance for name, axis in axes.items()} | {
            f"{name}_mean": axis.ratio for name, axis in axes.items()
        }
