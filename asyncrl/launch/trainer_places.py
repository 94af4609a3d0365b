"""The places of a trainer's ranks over the lives of a run: they become fewer with what is lost, or
fails repeatedly, and more with machines that join. Invariant: a life has at least
`train.min_ranks`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

from asyncrl.config import Config
from asyncrl.config.ranks import ranks_of
from asyncrl.launch.cluster.joined_machine import RemoteActor
from asyncrl.launch.cluster.machines import Machines
from asyncrl.launch.machine_left import NONE_FAULTY, cores_here, settings_left
from asyncrl.runtime.processes.healing import lost_head
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd
from asyncrl.runtime.processes.supervisor import Child
from asyncrl.training.checkpoint_index import complete

logger = logging.getLogger(__name__)


class TrainerPlaces:
    """Those of one launch, for a run of the `requested` settings; `note` shows a sentence."""

    def __init__(self, requested: Config, note: Callable[[str], None]) -> None:
        self._requested, self._show = requested, note
        self.machines: Machines | None = None
        """Those that join; None where none may."""
        self._faulty = NONE_FAULTY
        self._ranks: dict[int, Child] = {}  # started last
        self._since: int | None = None  # the newest checkpoint when a machine was there for ranks

    def _note(self, sentence: str) -> None:
        """Show a sentence to the user, and log it."""
        logger.warning("%s", sentence)
        self._show(sentence)

    @property
    def gpus(self) -> str | None:
        """GPUs of this machine that actors may use, as in CUDA_VISIBLE_DEVICES; None: all."""
        return self._faulty.visible

    def started(self, index: int, child: Child) -> None:
        """Note the start of a rank."""
        self._ranks[index] = child

    def displaced(self, end: SupervisedEnd) -> bool:
        """True if a rank ended a life because its machine was lost."""
        lost = lost_head(end)
        child = self._ranks.get(lost.index) if lost and lost.role == "trainer" else None
        return child is not None and child.displaced

    async def leave_out(self, settings: Config, index: int) -> None:
        """Leave out the place of a rank that failed repeatedly in lives of these settings."""
        self._note(f"trainer-{index} keeps failing, and is left out.")
        child = self._ranks[index]
        if isinstance(child, RemoteActor):
            assert self.machines is not None
            self.machines.leave_out(child)
        else:
            self._faulty = await self._faulty.and_rank(settings, index)

    def more(self, settings: Config, run: Path) -> bool:
        """True at the first checkpoint after machines joined for ranks that a life of these
        settings lacks: the next one would have them, and lose no step. Called about each second."""
        wanted, had = self._requested.cluster.trainer_agents, settings.cluster.trainer_agents
        if min(self._come, wanted) <= had:
            self._since = None
            return False
        newest = max((checkpoint.version for checkpoint in complete(run)), default=-1)
        if self._since is None:
            self._since = newest
        return newest > self._since

    async def settings(self, settings: Config) -> Config | None:
        """The settings of the next life, by the cores and GPUs that this machine has now, and the
        machines that joined for the trainer. None if that is too little, also when machines had
        time to join."""
        self._since = None
        left, least = await self._left(), self._requested.train.min_ranks
        if left is None:
            return settings
        if ranks_of(left[0].train) < least and self.machines is not None:
            here = ranks_of(left[0].train) // (1 + left[0].cluster.trainer_agents)
            self._note(f"{left[1]} train.min_ranks is {least}: it waits for machines.")
            await self.machines.come("trainer", math.ceil(least / here) - 1)
            left = await self._left() or left
        found, sentence = left
        if (ranks := ranks_of(found.train)) < least:
            self._note(
                f"The run ends: {ranks} of {ranks_of(self._requested.train)} ranks are left, and "
                f"train.min_ranks is {least}; continue with --resume when there are more."
            )
            return None
        if ranks == ranks_of(settings.train):
            return settings
        self._note(sentence)
        return found

    async def _left(self) -> tuple[Config, str] | None:
        """The settings that fit what is left, and a sentence about them; None: it is not known."""
        cores = len(cores_here(self._requested))
        return await settings_left(self._requested, cores, self._come, self._faulty)

    @property
    def _come(self) -> int:
        """Number of machines that are there for the trainer."""
        return 0 if self.machines is None else self.machines.count_for("trainer")
