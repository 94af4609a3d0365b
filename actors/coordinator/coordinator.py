"""The coordinator: one loop around the pure heart. Invariant: every decision is made in `_pump`,
from the state, whatever woke it.

loop        consumes                          produces                         waits for          unblocked by
---------   -------------------------------   ------------------------------   ----------------   ---------------------------
attend      an actor's messages               events, and a pulse              its link           the actor, or its end
conduct     the pulse                         leases, judgements, micro-       a change           attend, tick
                                              batches, publications
tick        time                              deadlines, status, metrics       a second           the clock

_pump:  feed the trainer → admit prompts → lease rollouts → evaluate → ask verdicts → publish
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from actors.coordinator.collect_status import collect_status
from actors.coordinator.engine_pool import EngineHandle, EnginePool
from actors.coordinator.evaluation import Evaluation
from actors.coordinator.event_store import EventStore
from actors.coordinator.generation import Generation
from actors.coordinator.lifecycle import Lifecycle, Phase
from actors.coordinator.peers import Peer, Roster
from actors.coordinator.prompts import PromptSource
from actors.coordinator.publishing import Publishing
from actors.coordinator.scoring import Scoring
from actors.coordinator.shutdown import drain
from actors.coordinator.statistics import RunStatistics
from actors.coordinator.stepping import Stepping
from actors.coordinator.watchdog import tick
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.experience.rollout import ImpossibleEvent
from asyncrl.ipc.link import Link, LinkError
from asyncrl.ipc.messages import (
    Chunks,
    Committed,
    Consumed,
    Drain,
    Drained,
    EngineReady,
    Exited,
    Hello,
    Message,
    Prepared,
    Replace,
    Report,
    Role,
    RunFinished,
    Saved,
    ScoreResult,
    Stepped,
    TrainerReady,
    Transferred,
)
from asyncrl.ipc.waits import Pulse, WaitExpired, Waits
from asyncrl.observe.metrics import Metrics
from asyncrl.observe.run_status import JournalStatus, RunStatus
from asyncrl.observe.summary import Summary
from asyncrl.strategies.acceptance import below_floor

HELLO_S = 10.0
ACTORS: tuple[Role, ...] = ("rollout", "reward", "trainer")

TAKEN: dict[Role, dict[type[Message], int]] = {
    "rollout": {EngineReady: 0, Chunks: 2, Prepared: 0, Committed: 0, Report: 0, Drained: 0},
    "reward": {ScoreResult: 0, Report: 0, Drained: 0},
    "trainer": {
        TrainerReady: 0,
        Consumed: 0,
        Stepped: 0,
        Saved: 0,
        Transferred: 0,
        Report: 0,
        Drained: 0,
    },
    "launcher": {Exited: 0, Drain: 0},
    "coordinator": {},
}
"""What each role may say, and with how many buffers."""

_EASIER = "choose an easier or harder task, a larger rollout.group_size, or rollout.filter = none"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Why a run ended."""

    ok: bool
    reason: str


class Coordinator:
    """One run. `summary` is what it came to, `run_status` how it stands, at any moment."""

    def __init__(
        self,
        config: Config,
        store: EventStore,
        prompts: PromptSource,
        metrics: Metrics,
        waits: Waits,
        progress: RunStatistics,
        *,
        journal: Callable[[], JournalStatus] = JournalStatus,
        stalled: Callable[[RunStatus], None] = lambda run_status: None,
    ) -> None:
        """`journal` says how the journal stands; `stalled` hears how the run stands when the
        watchdog ends it."""
        self.config = config
        self.store = store
        self.metrics = metrics
        self.waits = waits
        self.pulse = Pulse()
        self.progress = progress
        self.roster = Roster(self.pulse.set)
        self.keeps = capabilities(config.engine.kind).keeps_versions
        self.engine_pool = EnginePool(keeps=self.keeps)
        self.generation = Generation(store, self.engine_pool, prompts, config, metrics.garbled)
        self.scoring = Scoring(store, self.roster, config)
        self.publishing = Publishing(
            store,
            self.engine_pool,
            config,
            fence=self.replace,
            give_up=partial(self.end, False),
            done=self._published,
        )
        self.evaluation = Evaluation(
            store, self.generation, self.engine_pool, prompts, config, metrics.evaluated
        )
        self.training: Stepping | None = None
        self.journal = journal
        self.stalled = stalled
        rollouts, rewards = config.rollout.actors, config.reward.actors
        self.expected = [
            "trainer-0",
            *(f"rollout-{n}" for n in range(rollouts)),
            *(f"reward-{n}" for n in range(rewards)),
        ]
        self.life = Lifecycle(self.expected, config.supervision, trio.current_time())
        self.outcome: Outcome | None = None
        self.gone: dict[
            str, tuple[int, int, float]
        ] = {}  # who was here and is lost: incarnation, process, when
        self.drained: set[str] = set()

    def status(self) -> RunStatus:
        return collect_status(self)

    def summary(self, outcome: Outcome) -> Summary:
        return self.progress.summary(self, outcome.ok, outcome.reason)

    # ------------------------------------------------------------------------------------- conduct

    async def conduct(self) -> Outcome:
        """Run to the end, and drain. The links are attended by others (`attend`)."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, self)
            while (outcome := self._over()) is None:
                began = time.perf_counter()
                self._pump()
                self.progress.pumped(time.perf_counter() - began)
                await self._change("progress")
            logger.info("the run ends: %s", outcome.reason)
            self.outcome = outcome
            self.life.over(trio.current_time())
            await drain(self)
            nursery.cancel_scope.cancel()
        self.life.drained(trio.current_time())
        return outcome

    def _pump(self) -> None:
        """Do everything that is due."""
        training, published = self.training, self.publishing.published
        if training is None or self.life.phase is Phase.INIT:
            return
        training.feed(published)
        if published is not None:
            if training.useful and not training.resting(published):
                self.generation.admit(training.wanted)
                self.generation.lease("train")
            else:
                self.generation.park("train")
            self.evaluation.pump()
        self.scoring.dispatch()
        last = training.finished or training.starved
        if training.starved and not training.unsaved:
            training.save()
        evaluated_first = self.evaluation.running is not None and not self.keeps
        if not (training.closing or training.redoing or evaluated_first):
            self.publishing.pump(training.version, self.evaluation.wants(training.version, last))

    def _over(self) -> Outcome | None:
        """Whether the run is over, and why."""
        training, steps = self.training, self.config.train.steps
        if self.outcome is not None or training is None:
            return self.outcome
        if training.filtered >= self.config.rollout.filter_patience:
            return Outcome(
                False,
                f"the last {training.filtered} groups were all filtered, so nothing can be "
                f"learned{self.scoring.complaint()}: {_EASIER}",
            )
        if self.config.rollout.filter == "zero_variance":
            recent, patience = (
                self.store.experience.history.recent,
                self.config.rollout.filter_patience,
            )
            if poor := below_floor(recent, self.config.rollout.accept_floor, patience):
                return Outcome(False, f"{poor}{self.scoring.complaint()}: {_EASIER}")
        if self.generation.too_long >= self.config.rollout.filter_patience:
            return Outcome(
                False,
                f"the last {self.generation.too_long} prompts left no room for an answer of "
                "rollout.max_new_tokens in "
                f"engine.context_tokens = {self.config.engine.context_tokens}: enlarge it",
            )
        last = training.finished or training.starved
        if last and training.unsaved:
            return Outcome(
                False,
                f"the last checkpoint was not written: {training.unsaved}; see to it, and "
                "continue with --resume",
            )
        complete = (
            last
            and training.saved == training.version == self.publishing.published
            and not self.publishing.busy
            and self.evaluation.running is None
            and not self.evaluation.wants(training.version, True)
        )
        if not complete:
            return None
        if training.finished:
            return Outcome(True, f"all {steps} steps are done")
        return Outcome(
            True,
            f"the prompts were used up after {training.version} of {steps} steps (task.epochs = "
            f"{self.config.task.epochs})",
        )

    async def _change(self, name: str) -> None:
        """Wait until something happened; `tick` sees to it that something does. Only where this
        process itself stood still does the wait expire, and then there is more to do than ever."""
        with (
            suppress(WaitExpired),
            self.waits.on(name, owner="coordinator", deadline_s=self.config.supervision.stall_s),
        ):
            await self.pulse.wait()

    async def until(self, name: str, done: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition, or for the deadline, which is said."""
        with trio.move_on_at(deadline) as patience:
            while not done():
                await self._change(name)
        if patience.cancelled_caught:
            logger.warning("drained without %s", name)

    async def say_goodbye(self, outcome: Outcome) -> None:
        """Tell the launcher that the summary is written, and wait until it has hung up."""
        for peer in self.roster.of("launcher"):
            peer.send(RunFinished(outcome.ok, outcome.reason))
        await self.until(
            "the launcher's goodbye",
            lambda: not any(self.roster.of("launcher")),
            self.life.deadline(0.0),
        )

    def end(self, ok: bool, reason: str) -> None:
        """End the run; the first reason counts."""
        if self.outcome is None:
            self.outcome = Outcome(ok, reason)
        self.pulse.set()

    # --------------------------------------------------------------------------------------- links

    async def attend(self, link: Link) -> None:
        """Serve one connection until it ends. What its peer does wrong ends this connection, not
        the run."""
        hello: Message | None = None
        with trio.move_on_after(HELLO_S):
            hello, _ = await link.receive()
        if hello is None:
            raise LinkError("silent", f"a peer did not say who it is within {HELLO_S:g} s")
        if not isinstance(hello, Hello):
            raise LinkError(
                "malformed", f"a peer began with {type(hello).__name__} instead of Hello"
            )
        await self.converse(Peer(hello, link))

    async def converse(self, peer: Peer) -> None:
        """Send to and take from one peer until its link ends."""
        if (previous := self.roster.add(peer)) is not None:
            self._forget(previous)
            previous.scope.cancel()
        peer.heard = trio.current_time()
        logger.info("%s is here (process %d, start %d)", peer.name, peer.pid, peer.incarnation)
        if self.life.ending and peer.role in ACTORS:
            peer.send(Drain())
        elif peer.role == "reward":
            self.life.came(peer.name, trio.current_time())
        try:
            with peer.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peer.write)
                    async for message, buffers in peer.link:
                        peer.heard = trio.current_time()
                        self._take(peer, message, buffers)
                        if not isinstance(message, Report):  # of which nothing becomes due
                            self.pulse.set()
                        await self.store.log.room()
                    nursery.cancel_scope.cancel()
        finally:
            self._lost(peer)

    def _take(self, peer: Peer, message: Message, buffers: tuple[memoryview, ...]) -> None:
        """Let one message in. Raises LinkError for one that such a peer does not send, or that is
        not whole."""
        if TAKEN[peer.role].get(type(message)) != len(buffers):
            raise LinkError(
                "malformed",
                f"{peer.name} sent {type(message).__name__} with {len(buffers)} buffers, which "
                "is not taken from it",
            )
        if peer.role == "trainer" and not self._is_trainer(peer, message):
            raise LinkError(
                "malformed",
                f"{peer.name} sent {type(message).__name__}, and is not the run's trainer",
            )
        try:
            self._dispatch(peer, message, buffers)
        except ImpossibleEvent as refused:
            if peer.role == "trainer":
                self.end(False, f"{peer.name} sent what cannot be: {refused}")
            self.replace(peer.name, f"it sent what cannot be: {refused}")

    def _is_trainer(self, peer: Peer, message: Message) -> bool:
        """Whether it may speak as the trainer of this run: who was ready first, and is one."""
        if self.training is None:
            return peer.name in self.expected and isinstance(
                message, TrainerReady | Report | Drained
            )
        return self.training.trainer is peer and not isinstance(message, TrainerReady)

    def _dispatch(self, peer: Peer, message: Message, buffers: tuple[memoryview, ...]) -> None:
        training = self.training
        match message:
            case Chunks():
                self.generation.on_chunks(peer.name, message, buffers[0], buffers[1])
            case ScoreResult():
                self.metrics.judged(message.verdict, message.seconds)
                self.scoring.on_score_result(peer, message)
            case Consumed() if training is not None:
                training.on_consumed(message)
            case Stepped() if training is not None:
                training.on_stepped(message)
                self.metrics.stepped(message.seconds, training.metrics)
                self.metrics.alarmed(alarm.name for alarm in training.alarms)
            case Saved() if training is not None:
                training.on_saved(message)
            case Transferred():
                self.publishing.on_transferred(message)
            case Prepared():
                self.publishing.on_prepared(peer.index, message)
            case Committed():
                self.publishing.on_committed(peer.index, peer.name, message)
            case Report():
                self.progress.on_report(peer, message, self.publishing.published is not None)
                self.metrics.reported(peer.role, peer.index, message)
            case EngineReady(slots):
                self.engine_pool.add(EngineHandle(peer, slots))
                self.publishing.join(peer.index)
                self.life.came(peer.name, trio.current_time())
            case TrainerReady(version, port):
                self.training = Stepping(self.store, self.generation, peer, version, self.config)
                self.publishing.trainer(peer, port)
                self.life.came(peer.name, trio.current_time())
            case Drained():
                self.drained.add(peer.name)
            case Exited():
                self._exited(message)
            case Drain():
                self.end(True, "stopped early, as asked; continue with --resume")
            case _:
                raise LinkError(
                    "malformed",
                    f"{peer.name} sent {type(message).__name__}, which the coordinator does not "
                    "take from it now",
                )

    def _published(self, version: int, pinned: bool) -> None:
        """Every engine serves `version`."""
        self.life.published(trio.current_time())
        self.metrics.published(self.publishing.seconds[-1], self.publishing.pauses[-1])
        if pinned:
            self.evaluation.start(version)
        self.generation.let_go(self.evaluation.running)

    # ----------------------------------------------------------------------------------- lost ones

    def _lost(self, peer: Peer) -> None:
        """A link ended."""
        if not self.roster.remove(peer):
            return
        logger.info("%s is gone", peer.name)
        self.gone[peer.name] = peer.incarnation, peer.pid, trio.current_time()
        if peer.role == "trainer" and peer.name in self.expected and not self.life.ending:
            self.end(False, "the trainer was lost")
        self._forget(peer)
        self.pulse.set()

    def _forget(self, peer: Peer) -> None:
        """Take back what a peer held."""
        if peer.role == "reward":
            self.scoring.lose(peer)
        if (
            engine_handle := self.engine_pool.get(peer.name)
        ) is not None and engine_handle.peer is peer:
            self.engine_pool.remove(peer.name)
            self.generation.lose(engine_handle)
            self.publishing.lose(peer.index, "it was lost")

    def _exited(self, message: Exited) -> None:
        """The launcher saw a process end."""
        name = f"{message.role}-{message.index}"
        if name not in self.gone and self.roster.get(name) is None:
            self.end(
                False,
                f"{name} ended with code {message.code} before it had begun, so starting it "
                "again would not help",
            )
        elif message.restarting:
            self.progress.restarts[message.role] += 1
            self.metrics.restarted(message.role)
        else:
            self.end(False, f"{name} ended with code {message.code}")

    def replace(self, name: str, reason: str) -> None:
        """Cut an actor off, take back what it holds, and have the launcher end it and start
        another."""
        peer = self.roster.get(name)
        if peer is None or peer.scope.cancel_called:
            return
        logger.warning("%s is replaced: %s", name, reason)
        peer.scope.cancel()
        self._forget(peer)
        for launcher in self.roster.of("launcher"):
            launcher.send(Replace(peer.role, peer.index, peer.incarnation, reason))
