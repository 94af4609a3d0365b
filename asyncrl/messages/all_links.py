"""Messages that any actor and the coordinator exchange."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from asyncrl.messages.parts import Message, Part, Role


class Hello(Message, frozen=True):
    """The first message of every actor. `incarnation` counts the starts of this actor, from 0."""

    role: Role
    index: int
    incarnation: int
    pid: int


class Drain(Message, frozen=True):
    """Coordinator to actor: no more work will come; finish or park what you hold, answer `Drained`,
    and end. Launcher to coordinator: end the run early, keeping everything."""


class Drained(Message, frozen=True):
    """Actor to coordinator: the end of its stream; nothing follows."""


Duration = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""Seconds; no number at all, a negative or an endless one does not parse."""


class Wait(Part, frozen=True):
    """One row of the table of waits: `owner` has waited `seconds` for `name`. `bound` is the most
    seconds that it may wait, or the event that ends the wait, in words."""

    name: str
    owner: str
    seconds: Duration
    bound: Duration | str


Increase = Annotated[float, msgspec.Meta(ge=0)]
"""Increase of a counter; a negative one does not parse."""


Command = Literal["micro-batch", "proximal scores", "optimizer step", "checkpoint", "held-out loss"]
"""The commands of a trainer, one at a time."""


class Busy(Part, frozen=True):
    """A trainer has worked on `command` for this many seconds, not counting standstills of its
    process."""

    command: Command
    seconds: Duration


class StartCounts(Part, frozen=True):
    """Attempts of agents' programs at one actor: those that are `waiting` to start, those that are
    `starting`, of at most `most` at a time, and the `seconds` that a start takes; 0 before any is
    known."""

    waiting: int
    starting: int
    most: int
    seconds: Duration

    @property
    def left_s(self) -> float:
        """Seconds until the last one that waits has started."""
        return (self.waiting + self.starting) * self.seconds / max(self.most, 1)


class Report(Message, frozen=True):
    """Actor to coordinator, about once a second: its work since the last report.

    `idle` maps a cause to seconds spent waiting for it; `counts` maps a counter to its increase;
    `waits` is the table now. `busy` is a trainer's current command; None: it waits for one. Beside
    that it has been writing a checkpoint for `saving_s`; None: it writes none. `starts` are
    those of agents' programs.
    """

    seconds: Duration
    idle: dict[str, Duration]
    counts: dict[str, Increase]
    waits: list[Wait]
    busy: Busy | None = None
    saving_s: Duration | None = None
    starts: StartCounts | None = None
