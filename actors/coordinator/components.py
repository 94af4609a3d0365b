"""The parts of a coordinator, and nothing that acts on them.

The loop, the links, the status, the watchdog and the shutdown depend on `Components`, and none of
them on another. A part that needs an action of the loop returns a decision (`decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.attempts import PlayingLimits
from asyncrl.actors.coordinator.changes import Changes
from asyncrl.actors.coordinator.chunks import ChunkIntake
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.episode_placement import EpisodePlacement
from asyncrl.actors.coordinator.evaluation import Evaluation, evaluation_plan
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.forking import Forking
from asyncrl.actors.coordinator.game_answers import Games
from asyncrl.actors.coordinator.imports import ForeignAnswers, Imports
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.lent_engines import LentEngines
from asyncrl.actors.coordinator.lifecycle import Lifecycle, Outcome
from asyncrl.actors.coordinator.outside_alarms import OutsideAlarms
from asyncrl.actors.coordinator.peers import Roster
from asyncrl.actors.coordinator.pinning import Pinning
from asyncrl.actors.coordinator.placement import Placement, temperature_of
from asyncrl.actors.coordinator.playing import Playing
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.actors.coordinator.pruning import Pruning
from asyncrl.actors.coordinator.publishing import Publishing
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.actors.coordinator.scoring import Scoring
from asyncrl.actors.coordinator.sent_images import SentImages
from asyncrl.actors.coordinator.sharing import Sharing
from asyncrl.actors.coordinator.statistics import RunStatistics
from asyncrl.actors.coordinator.stepping import Stepping
from asyncrl.actors.coordinator.underway import Underway
from asyncrl.config import Config
from asyncrl.config.engines import keeps_versions
from asyncrl.config.flow import admission_policy
from asyncrl.config.journal_size import steps
from asyncrl.config.losses import credit_of
from asyncrl.experience.call import Call
from asyncrl.experience.games import standing
from asyncrl.explain.conditions.condition import Finding
from asyncrl.explain.curve import Curve
from asyncrl.explain.metrics import Metrics
from asyncrl.explain.run_status import JournalStatus, RunStatus
from asyncrl.messages import Healable, Standing
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.standstill import RunClock


@dataclass(eq=False)
class Components:
    """One part for each subject. `playing` has no episode without agents. `stepping` is None until
    the trainer is ready, `outcome` until the run is over. All deadlines are on `clock`. The run has
    `steps` at most, and `max_live` live groups.
    `journal_status()` returns the journal's status; `stalled(run_status)` gets the run's status
    when the watchdog ends it."""

    config: Config
    steps: int
    max_live: int
    store: EventStore
    metrics: Metrics
    statistics: RunStatistics
    journal_status: Callable[[], JournalStatus]
    stalled: Callable[[RunStatus], None]
    waits: Waits
    clock: RunClock
    changes: Changes
    roster: Roster
    lifecycle: Lifecycle
    engines: EnginePool
    leases: LeaseTable
    lent: LentEngines
    reclaiming: Reclaiming
    pinning: Pinning
    forking: Forking
    pruning: Pruning
    placement: Placement
    episode_placement: EpisodePlacement
    playing: Playing
    games: Games | None
    admission: Admission
    imports: Imports
    chunks: ChunkIntake
    scoring: Scoring
    publishing: Publishing
    evaluation: Evaluation
    curve: Curve
    underway: Underway
    outside_alarms: OutsideAlarms = field(default_factory=OutsideAlarms)
    stepping: Stepping | None = None
    sharing: Sharing | None = None
    outcome: Outcome | None = None

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The alarms of the disk, as it is now, and those of the last step."""
        of_step = self.stepping.alarms.last if self.stepping else ()
        return (*self.outside_alarms.last, *of_step)

    def end(self, ok: bool, reason: str, *, heals: Healable | None = None) -> None:
        """End the run. The first reason counts."""
        if self.outcome is None:
            self.outcome = Outcome(ok, reason, heals)
        self.changes.set()


class Observers(NamedTuple):
    """Observers of a run: its metrics, its displayed counts and its curve. `journal_status()` gives
    the state of the journal; the watchdog calls `stalled(run_status)` when it ends the run.
    """

    metrics: Metrics
    statistics: RunStatistics
    curve: Curve
    journal_status: Callable[[], JournalStatus] = JournalStatus
    stalled: Callable[[RunStatus], None] = lambda run_status: None


def assemble(
    config: Config,
    store: EventStore,
    prompts: PromptSource,
    waits: Waits,
    observers: Observers,
    foreign: ForeignAnswers | None = None,
    sharing: Sharing | None = None,
    images: SentImages | None = None,
) -> Components:
    """Build the parts of a run that begins now. `foreign` are the answers that may join groups;
    `images` brings them to engines on other machines."""
    clock = RunClock()
    changes = Changes(waits, clock, config.supervision.stall_s)
    roster = Roster(changes.set)
    engines = EnginePool(keeps=keeps_versions(config.engine.kind, adapters=config.model.lora.alone))
    leases = LeaseTable(config.rollout.lease_s)
    reclaiming = Reclaiming(store, engines, leases, config)
    pinning = Pinning(store, engines, leases, reclaiming, config)
    admission = Admission(store, prompts, config)
    episode_placement = EpisodePlacement(
        roster, engines, clock, config.agent.concurrency, config.supervision.stall_s
    )
    pruning = Pruning(store, reclaiming, config)
    forking = Forking(store, config)

    def extended(call: Call) -> None:
        pruning.extended(call)
        forking.extended(call)

    chunks = ChunkIntake(
        store,
        engines,
        leases,
        reclaiming,
        clock,
        vocabulary=prompts.vocabulary,
        garbled=observers.metrics.garbled,
        extended=extended,
    )
    plan = evaluation_plan(config, prompts)
    playing = _playing(config, store, episode_placement, reclaiming, clock)
    return Components(
        metrics=observers.metrics,
        statistics=observers.statistics,
        curve=observers.curve,
        journal_status=observers.journal_status,
        stalled=observers.stalled,
        underway=Underway(),
        config=config,
        steps=steps(config),
        max_live=admission_policy(config).max_live,
        store=store,
        waits=waits,
        clock=clock,
        changes=changes,
        roster=roster,
        lifecycle=Lifecycle(_expected(config), config.supervision, clock.now()),
        engines=engines,
        leases=leases,
        lent=LentEngines(engines, reclaiming, chunks, config),
        reclaiming=reclaiming,
        pinning=pinning,
        forking=forking,
        pruning=pruning,
        placement=Placement(
            store, engines, leases, reclaiming, pinning, config, clock, admission.label, images
        ),
        episode_placement=episode_placement,
        playing=playing,
        games=_games(config, store, playing),
        admission=admission,
        imports=Imports(store, config, foreign),
        sharing=sharing,
        chunks=chunks,
        scoring=Scoring(store, roster, config, clock),
        publishing=Publishing(store, engines, config, clock),
        evaluation=Evaluation(store, engines, admission, clock, plan, observers.curve.evaluated),
    )


def _expected(config: Config) -> list[str]:
    """The names of a run's actors."""
    return [
        "trainer-0",
        *(f"rollout-{n}" for n in range(config.rollout.actors)),
        *(f"reward-{n}" for n in range(config.reward.actors)),
        *(f"agents-{n}" for n in range(config.agent.actors if config.agent.run else 0)),
    ]


def _playing(
    config: Config,
    store: EventStore,
    placement: EpisodePlacement,
    reclaiming: Reclaiming,
    clock: RunClock,
) -> Playing:
    return Playing(
        store,
        placement,
        reclaiming,
        PlayingLimits(
            max_calls=config.agent.max_calls,
            attempts=config.agent.attempts,
            context_tokens=config.engine.context_tokens,
            ends_rewarded=credit_of(config.train).of_branches,
        ),
        partial(temperature_of, config=config),
        clock,
        partial(_standing, config, store),
    )


def _standing(config: Config, store: EventStore) -> Standing | None:
    return standing(store.experience, config.rollout.group_size) if config.game.guests else None


def _games(config: Config, store: EventStore, playing: Playing) -> Games | None:
    if not config.game.policy:
        return None
    return Games(store, playing, config.rollout.group_size, guest=not config.game.guests)
