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
"""Of a counter, which cannot go down: another one does not parse."""


Command = Literal["micro-batch", "proximal scores", "optimizer step", "checkpoint"]
"""The work that a trainer is told to do, one at a time."""


class Busy(Part, frozen=True):
    """A trainer has been at `command` for so many seconds. Those in which its process did not run
    are not among them."""

    command: Command
    seconds: Duration


class Report(Message, frozen=True):
    """Actor to coordinator, about once a second: its work since the last report.

    `idle` maps a cause to seconds spent waiting for it; `counts` maps a counter to its increase;
    `waits` is the table now. `busy` is what a trainer is at; None: it waits for a command. Beside
    that it has been writing a checkpoint for `saving_s`; None: it writes none.
    """

    seconds: Duration
    idle: dict[str, Duration]
    counts: dict[str, Increase]
    waits: list[Wait]
    busy: Busy | None = None
    saving_s: Duration | None = None
