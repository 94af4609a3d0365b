"""Healing of a run: one that loses its trainer or coordinator starts again by itself, and continues
as a resumed run does.

    life 0: coordinator, trainer, rollout × N …  → the trainer is killed → every actor of it ends
    life 1: the same, from the last checkpoint and the journal → …       → the run is over

Nothing that was journalled is lost. The steps since the last checkpoint are taken again, from the
same rollouts. Invariant: a life begins when everything of the one before is dead.
"""

from __future__ import annotations

import msgspec

from asyncrl.config.errors import BAD_INPUT
from asyncrl.messages import Exited, Role
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd

HEAD: tuple[Role, ...] = ("trainer", "coordinator")
KILLED, STOOD_STILL = -9, 0
"""The exit codes of a coordinator that was silent, and killed for it, and of a trainer that did not
end while nothing went on."""


class Healing:
    """Says whether a run goes on by itself, at the end of each of its lives.

    `supervision.heals` lives in a row may end without a new step; the end of the next one ends the
    run, with its own words. A life that stalls or fails by an error of its own before the first
    step of all is not healed: what it was started with is at fault.

    Example: with 1 allowed, a run that is lost at steps 5, 9, 9 and 9 continues three times, and
    ends at the fourth loss: its third life made no step, and its fourth is one too many.
    """

    def __init__(self, heals: int) -> None:
        """`heals` is at least 0; 0: a run is never healed."""
        self._heals = heals
        self._first: int | None = None  # the step that the run was at when it was heard of first
        self._newest = 0
        self._reached = 0  # the newest step, when a life ended last
        self._in_vain = 0
        self.lost: list[Exited] = []
        """Those whose loss was healed, in order."""

    def stepped(self, step: int) -> None:
        """The run has taken so many steps."""
        if self._first is None:
            self._first = self._reached = step
        self._newest = max(self._newest, step)

    def again(self, end: SupervisedEnd) -> bool:
        """True if another life begins after this end. It is kept in `lost`."""
        lost = lost_head(end)
        if lost is None or not self._heals:
            return False
        if self._newest > self._reached:
            self._in_vain = 0
        elif lost.code >= 0 and self._newest == (self._first or 0):
            return False
        else:
            self._in_vain += 1
        self._reached = max(self._reached, self._newest)
        if self._in_vain > self._heals:
            return False
        self.lost.append(lost)
        return True


def lost_head(end: SupervisedEnd) -> Exited | None:
    """The trainer or coordinator whose loss ended a run; the trainer, too, where nothing went on.
    None where the run ended for another reason, or refused what it was given.

    Example: `Exited("coordinator", 0, -9, True)` where SIGKILL ended the coordinator.
    """
    failure, finished = end.failure, end.finished
    ends = [each for each in end.unrestarted if each.role in HEAD]
    for role in HEAD:
        if failure is not None and failure.actor[0] == role:
            ends.append(Exited(role, failure.actor[1], failure.code or KILLED, False))
    if any(each.code == BAD_INPUT for each in ends):
        return None
    if not (ends if finished is None else finished.heals):
        return None
    first = ends[0] if ends else Exited("trainer", 0, STOOD_STILL, False)
    return msgspec.structs.replace(first, restarting=True)
