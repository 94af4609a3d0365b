"""The run status: the state of a run at one moment, with every wait and its seconds.

It is one plain struct. So the status of a live or killed run (`status.json`) and that of a stalled
one (`stall.json`) are read alike. It names actors, and at most NAMED rollouts; the rest it counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from asyncrl.explain.json_files import read_json, write_json
from asyncrl.explain.recent_outcomes import RecentOutcomes
from asyncrl.explain.sft_figures import SftFigures
from asyncrl.explain.summary import ForeignTotals, JudgedAnswers, RolloutTotals, TokenTotals
from asyncrl.messages import Busy, Role, StartCounts, Wait

NAMED = 5
"""The most rollouts that a run status names."""

PhaseName = Literal["init", "ready", "run", "drain", "stop"]


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. If it is `here`, `seconds` have passed since its last message. Else they have
    passed since it was lost, or, if it never came (`incarnation` -1), since the run began.

    `idle` are shares of its last report's seconds, 0 to 1, by cause; `waits` are its open waits at
    that report. `holds` counts its work: leased rollouts, answers to judge, or taken rollouts. For
    rollout actors, `version` is the one that it serves, and `streamed_s` have passed since its last
    token; None before. `busy` is what a trainer was at, at that report, and `saving_s` the seconds
    for which it had been writing a checkpoint by then; None: it wrote none. An actor that is not
    started again was `removed` for a reason; the run continues without it.
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
    busy: Busy | None = None
    saving_s: float | None = None
    removed: str = ""


class AwaitedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that has been with the actor `holder` for `seconds`, of the `deadline_s` that its
    lease has. It has so many `tokens`."""

    rollout: int
    holder: str
    attempt: int
    tokens: int
    seconds: float
    deadline_s: float


class PublicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A publication of `version`, under way for `seconds`. It waits for the actors in
    `waiting_for` (in words), and its phase has `left_s` seconds left."""

    number: int
    version: int
    phase: str
    waiting_for: str
    seconds: float
    left_s: float


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The journal. Events are numbered from 1. `trouble` says why nothing can be written now, and
    `given_up` why its disk is not waited for any more; they are empty if all is well. `slowest_s`
    are the seconds of the slowest commit."""

    appended: int = 0
    durable: int = 0
    pending_bytes: int = 0
    disk_bytes: int = 0
    commits: int = 0
    slowest_s: float = 0.0
    trouble: str = ""
    given_up: str = ""


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Training groups: the `live` ones, the `max_live` that admission allows, the `complete` ones
    that no step has taken, those that were `filtered` since the last that was trained, and the
    number of these that ends the run (`patience`)."""

    live: int = 0
    max_live: int = 0
    complete: int = 0
    filtered: int = 0
    patience: int = 0

    @property
    def most(self) -> str:
        """The limit of live groups, in words: more live where the filter leaves many out.

        >>> GroupCounts(live=8, max_live=8).most, GroupCounts(live=20, max_live=8).most
        ('8', '8 that pass the filter')
        """
        over = self.live > self.max_live > 0
        return f"{self.max_live}" + " that pass the filter" * over


class EpisodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes: those that are `live`, of these those whose agents have the ball, `thinking`, and
    the `most` of a split that may be live, as engines can use them. `starts` are those of programs;
    None: there are none."""

    live: int = 0
    thinking: int = 0
    most: int = 0
    starts: StartCounts | None = None


class FailedEpisodes(msgspec.Struct, frozen=True, kw_only=True):
    """The agents actor `name`, all of whose last `episodes` failed, the last one for a reason."""

    name: str
    episodes: int
    reason: str


class LendingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of lending the trainer's devices to so many `engines`. `worth` is True if a loan is
    worth its switch, `lent` while there is one; `loans` have begun, and lasted `seconds` together;
    `changes` counts how often it became worth it, or ceased to be. Of the last loans `cost_s` went
    by without use, and `used_s` were used, in their mean."""

    engines: int
    worth: bool
    lent: bool
    loans: int
    changes: int
    seconds: float
    cost_s: float
    used_s: float


class TagCounts(msgspec.Struct, frozen=True):
    """Leases of prompts that prefer a tag: `there`, to rollout actors that have it, and
    `elsewhere`."""

    there: int = 0
    elsewhere: int = 0


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the whole run. `at` is in seconds since 1970; `seconds` have passed since the
    coordinator started. Actors report every `report_s`.

    `committed` is the version whose publication was decided last; None before the first. `token_s`,
    `verdict_s` and `step_s` have passed since the last token, verdict and step, or since the start.
    `idle` are shares of the last `window_s` seconds, 0 to 1, by role and cause; the rates are over
    the same seconds. `rollouts` counts the live ones by status. `alarms` are the sentences of
    alarms: of the disk and the judge as they are now, and of the last step. The last `unwritten`
    checkpoints were not written, the last of them because of `unwritten_why`. Of the last answers
    the judge gave a share no verdict (`judge_missed`), because of `judge_why`. Of the
    `tool_replies` to agents' calls with tools, `unread_calls` could not be read. Groups `shared`
    with other runs since the coordinator started, how often that failed (`share_failed`), and the
    leases of prompts that prefer a tag (`preferred`, by tag) are counted. `recent` is what came of
    the last answers, groups, calls and attempts. `ok` is None while the run goes on, and `reason`
    says why it ended. `sft` is of a supervised run, None for any other.
    """

    at: float
    seconds: float
    phase: PhaseName
    step: int
    steps: int
    committed: int | None
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
    foreign: ForeignTotals = ForeignTotals()
    shared: int = 0
    share_failed: int = 0
    preferred: dict[str, TagCounts] = {}
    lending: LendingStatus | None = None
    episodes: EpisodeCounts = EpisodeCounts()
    failing: list[FailedEpisodes] = []
    verdicts: JudgedAnswers = JudgedAnswers()
    alarms: list[str] = []
    unwritten: int = 0
    unwritten_why: str = ""
    judge_missed: float = 0.0
    judge_why: str = ""
    tool_replies: int = 0
    unread_calls: int = 0
    recent: RecentOutcomes = RecentOutcomes()
    ok: bool | None = None
    reason: str = ""
    sft: SftFigures | None = None


def write(run_status: RunStatus, path: Path) -> None:
    """Write a run status, for every process to read. Raises OSError."""
    write_json(run_status, path, forced=False)


def read(path: Path) -> RunStatus:
    """Read what `write` wrote. Raises OSError, msgspec.DecodeError (no JSON) or
    msgspec.ValidationError (no run status)."""
    return read_json(path, RunStatus)
