"""The coordinator: one loop around the pure heart.

Invariant: every decision is made in `_pump`, from the state, whatever woke the loop.

task       consumes                 produces                        waits for   unblocked by
--------   ----------------------   -----------------------------   ---------   ------------------
attend     an actor's messages      events, and a change            its link    the actor, its end
conduct    changes                  leases, score requests,         a change    attend, tick
                                    micro-batches, publications
tick       time                     deadlines, status, metrics      a second    the clock

    _pump:  dismiss engines that leave → end rollouts → let groups grow, and take foreign answers in
            → feed the trainer → lend its devices, or take them back → answer agents → admit prompts
            → begin episodes → lease rollouts → evaluate → ask verdicts → publish
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress

import trio

from asyncrl.actors.coordinator.carry_out import carry_out
from asyncrl.actors.coordinator.collect_status import collect_status
from asyncrl.actors.coordinator.collect_summary import collect_summary
from asyncrl.actors.coordinator.components import Observers, assemble
from asyncrl.actors.coordinator.connections import Connections
from asyncrl.actors.coordinator.decisions import Decision
from asyncrl.actors.coordinator.ending import ending
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.imports import ForeignAnswers
from asyncrl.actors.coordinator.lifecycle import GOODBYE_S, Outcome, Phase
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.actors.coordinator.sent_images import SentImages
from asyncrl.actors.coordinator.sharing import Sharing
from asyncrl.actors.coordinator.shutdown import drain
from asyncrl.actors.coordinator.stepping import Stepping
from asyncrl.actors.coordinator.watchdog import tick
from asyncrl.config import Config
from asyncrl.config.flow import max_lag
from asyncrl.explain.conditions.disks import RESUMES
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.summary import Summary
from asyncrl.messages import RunFinished
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits

logger = logging.getLogger(__name__)


class Coordinator:
    """One run, from the first connection to its summary."""

    def __init__(
        self,
        config: Config,
        store: EventStore,
        prompts: PromptSource,
        waits: Waits,
        observers: Observers,
        foreign: ForeignAnswers | None = None,
        sharing: Sharing | None = None,
        images: SentImages | None = None,
    ) -> None:
        self.parts = assemble(config, store, prompts, waits, observers, foreign, sharing, images)
        self._connections = Connections(self.parts)
        curve = observers.curve
        for version, accuracy in curve.evaluated.items():  # of the run's earlier lives
            observers.metrics.evaluated(version, accuracy, curve.figures[version], curve.asked)

    def status(self) -> RunStatus:
        """The state of the run at this moment."""
        return collect_status(self.parts)

    def summary(self, outcome: Outcome) -> Summary:
        """The result of the run so far, which ends with `outcome`."""
        return collect_summary(self.parts, outcome.ok, outcome.reason)

    # --------------------------------------------------------------------------------------- links

    async def attend(self, link: Link) -> None:
        """Serve one connection until it ends. Raises LinkError if its peer does something wrong."""
        await self._connections.attend(link)

    async def converse(self, peer: Peer) -> None:
        """Serve a connection whose peer is known already."""
        await self._connections.converse(peer)

    # ------------------------------------------------------------------------------------- conduct

    async def conduct(self) -> Outcome:
        """Run to the end, and drain. The links are attended by other tasks (`attend`)."""
        parts = self.parts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, parts, self._connections.replace)
            if parts.sharing is not None:
                nursery.start_soon(parts.sharing.run, parts.waits)
            if parts.games is not None:
                nursery.start_soon(parts.games.keep)
            while (outcome := ending(parts)) is None:
                began = time.perf_counter()
                self._pump()
                parts.statistics.pumped(time.perf_counter() - began)
                await parts.changes.next("progress")
            logger.info("the run ends: %s", outcome.reason)
            parts.outcome = outcome
            parts.lifecycle.over(parts.clock.now())
            await drain(parts)
            nursery.cancel_scope.cancel()
        if outcome.ok and (trouble := parts.journal_status().trouble):
            outcome = parts.outcome = Outcome(
                False, f"the run's last events are not on the disk: {trouble}, {RESUMES}"
            )
        parts.lifecycle.drained(parts.clock.now())
        return outcome

    def _pump(self) -> None:
        """Do all that is due."""
        parts, stepping = self.parts, self.parts.stepping
        self._connections.dismiss()
        if stepping is None or parts.lifecycle.phase is Phase.INIT:
            return
        parts.forking.decide()
        parts.pruning.decide()
        parts.admission.sizes.decide()
        parts.imports.decide()
        if parts.sharing is not None:
            parts.sharing.look(parts.store)
        stepping.feed(parts.publishing.committed, parts.publishing.served)
        if parts.publishing.committed is not None:
            self._carry_out(parts.lent.pump(stepping.idle, stepping.version, parts.clock.now()))
            parts.playing.pump(stepping.version - max_lag(parts.config))
            self._generate(stepping)
            self._carry_out(parts.evaluation.pump())
            parts.playing.observe()
        parts.scoring.dispatch()
        if (stepping.finished or stepping.starved) and not stepping.unsaved:
            stepping.save()
        self._publish(stepping)

    def _generate(self, stepping: Stepping) -> None:
        """Keep engines busy with training rollouts, or let them rest."""
        games = self.parts.games
        plays = games is None or not games.guest
        if stepping.takes_more and not stepping.resting(self.parts.publishing.committed):
            answers, rollout = self.parts.scoring.failures, self.parts.config.rollout
            now, most = self.parts.clock.now(), rollout.filter_patience
            self.parts.admission.admit(answers.paced(stepping.groups_to_admit, now, most))
            if games is not None:
                games.answer(begin=True)
            if plays:
                self.parts.playing.begin("train")
            self.parts.placement.lease("train")
        else:
            if games is not None:
                games.answer(begin=False)
            self.parts.reclaiming.park("train")

    def _publish(self, stepping: Stepping) -> None:
        """Publish the trainer's version to the engines, unless the trainer is about to change it,
        or must redo steps after a crash, or engines must keep the one that is evaluated."""
        publishing, evaluation = self.parts.publishing, self.parts.evaluation
        if not (stepping.closing or stepping.redoing or evaluation.holds_publication):
            last = stepping.finished or stepping.starved
            held = stepping.checkpoints.holds
            due = evaluation.due(stepping.version, last, held=held)
            self._carry_out(publishing.pump(stepping.version, due))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        carry_out(self.parts, decisions, self._connections.replace)

    async def give_up(self, launcher: Link) -> Outcome | None:
        """The outcome of a run whose journal has given up on its disk; None if it has not. The
        launcher is told first, because the disk may have no room to write about it."""
        if not (why := self.parts.journal_status().given_up):
            return None
        if (run := self.parts.config.run.dir) not in why:
            why = f"nothing can be written to the disk of {run}: {why}"
        outcome = Outcome(False, why)
        goodbye = trio.CancelScope(deadline=trio.current_time() + GOODBYE_S, shield=True)
        with goodbye, suppress(LinkError, EndOfStream):
            await launcher.send(RunFinished(*outcome))
            while True:  # until it hangs up
                await launcher.receive()
        return outcome

    async def say_goodbye(self, outcome: Outcome) -> None:
        """Tell the launcher that the summary is written, and wait until it hangs up."""
        parts = self.parts
        for launcher in parts.roster.of("launcher"):
            launcher.send(RunFinished(*outcome))
        await parts.changes.until(
            "the launcher's goodbye",
            lambda: not any(parts.roster.of("launcher")),
            parts.lifecycle.deadline(0.0),
        )
