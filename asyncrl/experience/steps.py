"""The rollouts that each step took. Invariant: prescribed takings are repeated exactly, in order,
before any other taking.

Rollouts are held by their numbers. Rollouts that are taken together are one *taking*, and a step
may have several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from asyncrl.experience.call import ImpossibleEvent

Takings = dict[int, list[list[int]]]
"""The takings of each step, in the order of taking."""


class Steps(msgspec.Struct):
    """`training`: the takings of steps whose version is not published. `prescribed`: the takings
    that must be repeated after a crash. `closed`: the last version that was ever published; the
    steps before it may only repeat their takings.

    Example: step 4 took rollouts 0 and 1 together, and then 5. A crash undoes it, and 0 and 1 are
    due first.

    >>> steps = Steps()
    >>> steps.take(4, [0, 1])
    >>> steps.take(4, [5])
    >>> steps.undo([4])
    [0, 1, 5]
    >>> steps.due
    (4, [0, 1])
    """

    training: Takings = msgspec.field(default_factory=dict)
    prescribed: Takings = msgspec.field(default_factory=dict)
    closed: int = 0

    @property
    def due(self) -> tuple[int, list[int]] | None:
        """The step and the rollouts that must be taken next; None where nothing is prescribed."""
        for step, takings in self.prescribed.items():
            return step, takings[0]
        return None

    @property
    def size(self) -> int:
        """The number of rollouts in training."""
        return sum(len(taking) for takings in self.training.values() for taking in takings)

    def taken(self) -> Iterator[int]:
        """The rollouts in training, in the order of taking."""
        return (
            rollout
            for takings in self.training.values()
            for taking in takings
            for rollout in taking
        )

    def made(self, version: int) -> list[int]:
        """The rollouts that the steps before `version` took, in the order of taking."""
        return [
            rollout
            for step, takings in self.training.items()
            if step < version
            for taking in takings
            for rollout in taking
        ]

    def take(self, step: int, taking: list[int]) -> None:
        """Take these rollouts for `step`. Raises ImpossibleEvent, and takes nothing, where other
        ones are due."""
        if (due := self.due) is not None:
            if (step, taking) != due:
                raise ImpossibleEvent(
                    f"step {step} takes rollouts {taking}, but step {due[0]} must take {due[1]} "
                    "first"
                )
            takings = self.prescribed[step]
            del takings[0]
            if not takings:
                del self.prescribed[step]
        self.training.setdefault(step, []).append(taking)

    def publish(self, version: int) -> None:
        """End the takings of the steps before `version`, which is published."""
        self.closed = max(self.closed, version)
        for step in [step for step in self.training if step < version]:
            del self.training[step]

    def undo(self, steps: Iterable[int]) -> list[int]:
        """Prescribe the takings of these steps again, before all that is prescribed. Returns their
        rollouts, in order."""
        undone = {step: self.training.pop(step) for step in steps}
        later = self.prescribed
        self.prescribed = {step: takings + later.pop(step, []) for step, takings in undone.items()}
        self.prescribed |= later
        return [rollout for takings in undone.values() for taking in takings for rollout in taking]

    def prescribe(self, step: int, taking: list[int]) -> bool:
        """Prescribe these rollouts for `step`, the last prescribed one or a later one. Returns
        False if they were already prescribed."""
        takings = self.prescribed.setdefault(step, [])
        new = taking not in takings
        if new:
            takings.append(taking)
        return new
