"""How a run stands at one moment: who waits for what, since when, and for whom. Invariant: it is
one plain struct, so that what a live run shows, what a stalled one leaves (`stall.json`), and what
is left of a killed one (`run_status.json`) are read alike.

Nothing in it is true of another moment. It names actors and counts the rest, and of what is awaited
it names at most a few.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from asyncrl.ipc.messages import Role, Wait
from asyncrl.observe.summary import RolloutTotals, TokenTotals

NAMED = 5
"""Most rollouts that a status names."""

PhaseName = Literal["init", "ready", "run", "drain", "stop"]


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. `seconds` have passed since its last word where it is `here`, else since it was
    lost, or since the run began where it never came (`incarnation` -1). `idle` are shares of the
    time before its last report, by cause; `waits` is its table at that moment.

    `holds` counts what it has: leased rollouts, answers to judge, taken rollouts. `streamed_s` have
    passed since its last token, `version` is the one it serves; both are for rollout actors that
    have got so far.
    """

    name: str
    role: Role
    here: bool
    incarnation: int
    pid: int
    seconds: float
    idle: dict[str, float] = {}
    waits: list[Wait] = []
    holds: int = 0
    version: int | None = None
    streamed_s: float | None = None


class AwaitedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that is with an engine for `seconds`, of the `deadline_s` that its lease has; it
    holds so many `tokens`."""

    rollout: int
    owner: str
    attempt: int
    tokens: int
    seconds: float
    deadline_s: float


class PublicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A publication: of which version, in which phase, since how many `seconds`; whom it waits for,
    in words, and for how long it may."""

    number: int
    version: int
    phase: str
    waiting_for: str
    seconds: float
    left_s: float


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Events are numbered from 1. `trouble` says why nothing can be written now; empty where it
    can. `slowest_s` is of one commit."""

    appended: int = 0
    durable: int = 0
    pending_bytes: int = 0
    disk_bytes: int = 0
    commits: int = 0
    slowest_s: float = 0.0
    trouble: str = ""


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Training groups: `live` ones, the `most` that admission allows, those `complete` that no step
    has taken, those `filtered` in a row since the last that was trained, and the `patience` with
    them."""

    live: int = 0
    most: int = 0
    complete: int = 0
    filtered: int = 0
    patience: int = 0


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it. `at` is seconds since 1970, `seconds` count from the coordinator's start.
    Actors report every `report_s`.

    `token_s`, `verdict_s` and `step_s` have passed since the last token, verdict, and step (or
    since the start). `idle` are shares of the last `window_s` seconds, by role and cause; the rates
    are over them too. `rollouts` counts the live ones by status. `ok` is None while the run is not
    over, and then `reason` says why it is. `alarms` are what the last step raised, each a sentence.
    """

    at: float
    seconds: float
    phase: PhaseName
    step: int
    steps: int
    published: int | None
    token_s: float
    verdict_s: float
    step_s: float
    stall_s: float
    report_s: float
    window_s: float
    idle: dict[Role, dict[str, float]]
    generated_per_s: float
    trained_per_s: float
    actors: list[ActorStatus]
    waits: list[Wait]
    publication: PublicationStatus | None
    evaluating: int | None
    rollouts: dict[str, int]
    groups: GroupCounts
    awaited: list[AwaitedRollout]
    lease_p95_s: float | None
    lease_deadline_s: float
    pump_s: float
    tokens: TokenTotals
    ledger: RolloutTotals
    journal: JournalStatus
    restarts: dict[str, int]
    alarms: list[str] = []
    ok: bool | None = None
    reason: str = ""


def write(run_status: RunStatus, path: Path) -> None:
    """Write it whole or not at all. It is not forced to the disk: it outlives every process, not
    the machine. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(run_status), indent=2) + b"\n")
    partial.replace(path)


def read(path: Path) -> RunStatus:
    """What `write` wrote. Raises OSError, msgspec.DecodeError (no JSON) or msgspec.ValidationError
    (no status)."""
    return msgspec.json.decode(path.read_bytes(), type=RunStatus)
