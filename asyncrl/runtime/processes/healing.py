"""Healing of a run: one that loses its trainer or coordinator starts again by itself, and continues
as a resumed run does.

    life 0: coordinator, trainer, rollout × N …  → the trainer is killed → all its actors end
    life 1: the same, from the last checkpoint and the journal → …       → the run is over

Nothing that was journalled is lost. The steps since the last checkpoint are taken again, from the
same rollouts. Invariant: a life begins when everything of the one before is dead.
"""

from __future__ import annotations

import msgspec

from asyncrl.config.errors import BAD_INPUT, DISK_NOT_READY
from asyncrl.messages import Exited, Role
from asyncrl.runtime.processes.blame import blamed_rank
from asyncrl.runtime.processes.repeated_ends import RepeatedEnds
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd, words_of

HEAD: tuple[Role, ...] = ("trainer", "coordinator")
FAILED_LIVES = 3
"""Lives in a row that end with the same rank, after which it counts as faulty."""
KILLED, STALLED = -9, 0
"""Exit codes of a coordinator that was killed because it was silent, and of a trainer that did not
end though the run made no progress."""


class Healing:
    """Decides at the end of each life of a run whether another one begins.

    `supervision.heals` lives in a row may end without a new step; the end of the next one ends the
    run, with its own message. A life that stalls or fails by an error of its own before the very
    first step is not healed: its input is at fault. Nor is one that a disk without room has ended:
    the next one would meet the same disk. Nor is one that ends by the same error as the one before,
    with no new step between them (`repeated_ends`).

    A rank of the trainer that ends so, or FAILED_LIVES in a row, is `faulty`, if ranks may be left
    out: the next life has to do without its place. If that brings no step, it was not at fault, and
    no other one is left out.

    Example: with 1 allowed, a run that is lost at steps 5, 9, 9 and 9 continues three times, and
    ends at the fourth loss: its third life made no step, and its fourth is one too many.
    """

    def __init__(self, heals: int, *, leaves_out: bool = False) -> None:
        """`heals` is at least 0; 0: a run is never healed. `leaves_out`: ranks may be left out."""
        self._heals, self._leaves_out = heals, leaves_out
        self._first: int | None = None  # the step of the run at its first report
        self._newest = 0
        self._reached = 0  # the newest step, when a life ended last
        self._in_vain = 0
        self._ends: dict[Role, RepeatedEnds] = {}  # since the last new step
        self._in_a_row: list[int] = []  # the ranks whose own ends ended the last lives
        self._left_out_in_vain = False
        self.faulty: int | None = None
        """The rank that the next life has to do without."""
        self.lost: list[Exited] = []
        """Those whose loss was healed, in order."""

    def stepped(self, step: int) -> None:
        """Note that the run has taken `step` steps."""
        if self._first is None:
            self._first = self._reached = step
        self._newest = max(self._newest, step)

    def again(self, end: SupervisedEnd, *, displaced: bool = False) -> bool:
        """True if another life begins after this end, whose loss is then kept in `lost`.
        `displaced`: whoever was lost was lost with its machine."""
        lost, self.faulty = lost_head(end), None
        if lost is None or not self._heals:
            return False
        if self._newest > self._reached:
            self._in_vain = 0
            self._ends.clear()
            self._left_out_in_vain = False
        elif lost.code >= 0 and self._newest == (self._first or 0):
            return False
        else:
            self._in_vain += 1
        self._reached = max(self._reached, self._newest)
        repeated = self._ends.setdefault(lost.role, RepeatedEnds()).final(lost.code, lost.words)
        self._judge_rank(lost, repeated, displaced)
        if self._in_vain > self._heals or (repeated and self.faulty is None):
            return False
        self.lost.append(lost)
        return True

    def _judge_rank(self, lost: Exited, repeated: bool, displaced: bool) -> None:
        """Say if a rank is faulty, by its end and those before it."""
        own = lost.role == "trainer" and lost.code != STALLED and not displaced
        last = self._in_a_row[-1:]
        if not own or last != [lost.index]:
            self._in_a_row.clear()
        if not own:
            return
        self._in_a_row.append(lost.index)
        failed = len(self._in_a_row) >= FAILED_LIVES or (repeated and last == [lost.index])
        if self._leaves_out and failed and not self._left_out_in_vain:
            self.faulty, self._left_out_in_vain = lost.index, True
            self._in_a_row.clear()


def healed(end: SupervisedEnd, lost: Exited) -> str:
    """The sentence about an end after which another life begins. A stall is told with its cause:
    the trainer, which counts as `lost` then, may not be at fault.

    Example: `"trainer-0 was lost, and the run continues from its last checkpoint."`
    """
    finished = end.finished
    if finished is not None and finished.heals == "stalled":
        reason = finished.reason.rstrip(".")
        return f"The run continues from its last checkpoint, because it stalled: {reason}."
    return f"{lost.role}-{lost.index} was lost, and the run continues from its last checkpoint."


def lost_head(end: SupervisedEnd) -> Exited | None:
    """The trainer or coordinator whose loss ended a run; the trainer, too, if the run made no
    progress; a rank that another one blames, in its place. None if the run ended for another
    reason, refused its input, or its disk took nothing.

    Example: `Exited("coordinator", 0, -9, True)` if SIGKILL ended the coordinator.
    """
    failure, finished = end.failure, end.finished
    ends = [each for each in end.unrestarted if each.role in HEAD]
    for role in HEAD:
        if failure is not None and failure.actor[0] == role:
            words = words_of(failure.code, failure.traceback)
            code = failure.code or KILLED
            ends.append(Exited(role, failure.actor[1], code, False, words))
    if any(each.code in (BAD_INPUT, DISK_NOT_READY) for each in ends):
        return None
    if not (ends if finished is None else finished.heals):
        return None
    first = ends[0] if ends else Exited("trainer", 0, STALLED, False)
    blamed = blamed_rank(first.words) if first.role == "trainer" else None
    index = first.index if blamed is None else blamed
    return msgspec.structs.replace(first, index=index, restarting=True)
