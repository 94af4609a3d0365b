"""The places of a machine that joins: cores and GPUs for each actor that it has. GPUs are not
shared; cores are shared if more actors come than were expected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.config.cores import divide_cores
from asyncrl.config.errors import ConfigError
from asyncrl.config.gpus import visible


class Place(NamedTuple):
    """The numbers of an actor's cores, and of its GPUs, which count those that the machine's agent
    may use."""

    cores: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that restrict the actor to its GPUs; none if it needs none."""
        if not self.gpus:
            return {}
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        return {"CUDA_VISIBLE_DEVICES": visible(self.gpus, allowed)}


class Places:
    """The places of one machine. Its `cores` are divided for `room` actors; each actor gets the
    first free block of `each` of its `gpus` GPUs. Raises ConfigError if those are too few for
    `least` actors; `who` names the part of the run that needs them.

    Example: three cores, five GPUs, two of them for each actor.

    >>> places = Places([0, 1, 2], room=3, gpus=5, each=2)
    >>> places.count, places.take("a"), places.take("b"), places.take("c")
    (2, Place(cores=(0,), gpus=(0, 1)), Place(cores=(1,), gpus=(2, 3)), None)
    >>> places.leave("a")
    >>> places.take("c")
    Place(cores=(0,), gpus=(0, 1))
    """

    def __init__(
        self,
        cores: Sequence[int],
        room: int,
        gpus: int,
        each: int,
        *,
        least: int = 1,
        who: str = "a rollout actor",
    ) -> None:
        self.count = gpus // each if each else None
        if self.count is not None and self.count < least:
            raise ConfigError(
                f"it has {gpus or 'no'} GPU{'s' if gpus > 1 else ''} that it may use, and {who} "
                f"needs {each * least}"
            )
        self._shares = divide_cores(cores, 0, room, 0).rollouts
        self._each = each
        self._taken: dict[object, Place] = {}

    def take(self, actor: object) -> Place | None:
        """Give an actor the cores that the fewest others have, and free GPUs; None if there are too
        few."""
        held = {gpu for place in self._taken.values() for gpu in place.gpus}
        gpus: tuple[int, ...] = ()
        if self.count is not None:
            blocks = (range(at * self._each, (at + 1) * self._each) for at in range(self.count))
            free = next((block for block in blocks if block[0] not in held), None)
            if free is None:
                return None
            gpus = tuple(free)
        taken = [place.cores for place in self._taken.values()]
        place = self._taken[actor] = Place(min(self._shares, key=taken.count), gpus)
        return place

    def leave(self, actor: object) -> None:
        """Free the place of an actor that has ended."""
        del self._taken[actor]
