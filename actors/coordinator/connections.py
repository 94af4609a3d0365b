"""The links of the coordinator: connected peers, and the messages that each may send. Invariant: a
peer that misbehaves loses its own connection; the others and the run continue.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from asyncrl.actors.coordinator.carry_out import carry_out
from asyncrl.actors.coordinator.collect_point import step_point
from asyncrl.actors.coordinator.collect_summary import judged_answers
from asyncrl.actors.coordinator.common_failure import KINDS
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.decisions import Decision
from asyncrl.actors.coordinator.disk_watch import look_outside
from asyncrl.actors.coordinator.engine_pool import EngineHandle
from asyncrl.actors.coordinator.peers import LastSeen, Peer
from asyncrl.actors.coordinator.stepping import Stepping, StepSources
from asyncrl.config.errors import BAD_INPUT
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.explain.summary import STOPPED_EARLY
from asyncrl.messages import (
    Ask,
    Chunks,
    Committed,
    Consumed,
    Drain,
    Drained,
    EngineReady,
    Enough,
    Exited,
    GiveFailure,
    GiveReward,
    GroupScoreResult,
    Healable,
    Hello,
    Joined,
    KeepGame,
    Leaving,
    Message,
    Note,
    Played,
    Prepared,
    Quiesced,
    Replace,
    Report,
    Role,
    Saved,
    ScoredProximal,
    ScoreResult,
    Seek,
    Stepped,
    TrainerReady,
    Transferred,
    Unseek,
)
from asyncrl.runtime.ipc.endpoints import first_message
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.processes.supervisor import describe_exit

ACTORS: tuple[Role, ...] = ("rollout", "reward", "agents", "trainer")

ACCEPTED: dict[Role, dict[type[Message], int]] = {
    "rollout": {
        EngineReady: 0,
        Leaving: 0,
        Chunks: 2,
        Joined: 0,
        Quiesced: 0,
        Prepared: 0,
        Committed: 0,
        Report: 0,
        Drained: 0,
    },
    "reward": {ScoreResult: 0, GroupScoreResult: 0, Report: 0, Drained: 0},
    "agents": {
        Ask: 1,
        Enough: 0,
        Note: 0,
        GiveReward: 0,
        GiveFailure: 0,
        Played: 0,
        Seek: 0,
        Unseek: 0,
        KeepGame: 0,
        Report: 0,
        Drained: 0,
    },
    "trainer": {
        TrainerReady: 0,
        Consumed: 0,
        Stepped: 0,
        Saved: 0,
        ScoredProximal: 0,
        Joined: 0,
        Transferred: 0,
        Report: 0,
        Drained: 0,
    },
    "launcher": {Exited: 0, Drain: 0},
    "coordinator": {},
}
"""The messages that each role may send, with their number of buffers."""

OPTIONAL: Mapping[type[Message], int] = {Chunks: 1}
"""Buffers that a message may have beside those: the routing of tokens."""

logger = logging.getLogger(__name__)


class Connections:
    """Handles messages, and takes back the work of actors that are gone."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts

    async def attend(self, link: Link) -> None:
        """Serve one connection until it ends. Raises LinkError, which ends this connection, if its
        peer misbehaves."""
        peer = Peer(await first_message(link, Hello), link)
        if peer.name not in self._parts.lifecycle.expected:
            raise LinkError("malformed", f"{peer.name} is none of this run's actors")
        await self.converse(peer)

    async def converse(self, peer: Peer) -> None:
        """Exchange messages with one peer until its link ends."""
        roster, lifecycle = self._parts.roster, self._parts.lifecycle
        if (previous := roster.add(peer)) is not None:
            self._take_back(previous)
            previous.scope.cancel()
        peer.last_message = self._parts.clock.now()
        logger.info("%s is here (process %d, start %d)", peer.name, peer.pid, peer.incarnation)
        if lifecycle.ending and peer.role in ACTORS:
            peer.send(Drain())
        elif peer.role in ("reward", "agents"):
            lifecycle.came(peer.name, self._parts.clock.now())
        try:
            with peer.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peer.write)
                    async for message, buffers in peer.link:
                        peer.last_message = self._parts.clock.now()
                        self._accept(peer, message, buffers)
                        if not isinstance(message, Report):  # a report makes nothing due
                            self._parts.changes.set()
                        await self._parts.store.log.room()
                    nursery.cancel_scope.cancel()
        finally:
            self._lost(peer)

    def replace(self, name: str, reason: str) -> None:
        """Cut an actor off, take back its work, and have the launcher end it and start another."""
        peer = self._parts.roster.get(name)
        if peer is None or peer.scope.cancel_called:
            return
        logger.warning("%s is replaced: %s", name, reason)
        peer.scope.cancel()
        self._take_back(peer)
        for launcher in self._parts.roster.of("launcher"):
            launcher.send(Replace(peer.role, peer.index, peer.incarnation, reason))

    def dismiss(self) -> None:
        """Dismiss draining engines that hold nothing any more, each as soon as no publication waits
        for it."""
        for engine in self._parts.engines.drained:
            if not self._parts.publishing.involves(engine.peer.index):
                self._take_back(engine.peer)
                engine.peer.send(Drain())

    # ------------------------------------------------------------------------------------ messages

    def _accept(self, peer: Peer, message: Message, buffers: tuple[memoryview, ...]) -> None:
        """Handle one message. Raises LinkError if such a peer may not send it, or if it is
        incomplete."""
        expected, sent = ACCEPTED[peer.role].get(type(message)), len(buffers)
        if expected is None or not expected <= sent <= expected + OPTIONAL.get(type(message), 0):
            raise LinkError(
                "malformed",
                f"{peer.name} sent {type(message).__name__} with {sent} buffers, which it "
                "may not send",
            )
        if peer.role == "trainer" and not self._is_trainer(peer, message):
            raise LinkError(
                "malformed",
                f"{peer.name} sent {type(message).__name__}, but is not the run's trainer",
            )
        try:
            self._dispatch(peer, message, buffers)
        except ImpossibleEvent as refused:
            if peer.role == "trainer":
                self._parts.end(False, f"{peer.name} sent what cannot be: {refused}")
            self.replace(peer.name, f"it sent what cannot be: {refused}")

    def _is_trainer(self, peer: Peer, message: Message) -> bool:
        """True if the peer may speak as the trainer of this run: the one that was ready first."""
        stepping = self._parts.stepping
        if stepping is None:
            return isinstance(message, TrainerReady | Report | Drained)
        return stepping.trainer is peer and not isinstance(message, TrainerReady)

    def _dispatch(self, peer: Peer, message: Message, buffers: tuple[memoryview, ...]) -> None:
        parts = self._parts
        match message:
            case Chunks():
                parts.chunks.on_chunks(peer.name, message, *buffers)
            case ScoreResult():
                parts.metrics.judged(message.verdict, message.seconds)
                parts.scoring.on_score_result(peer, message)
            case GroupScoreResult():
                for _, verdict in message.verdicts:
                    parts.metrics.judged(verdict, message.seconds)
                parts.scoring.on_group_result(peer, message)
            case Consumed() | ScoredProximal() | Stepped() | Saved() if parts.stepping is not None:
                self._from_trainer(parts.stepping, message)
            case Joined() | Quiesced() | Transferred() | Prepared() | Committed():
                carry_out(parts, self._of_publication(peer, message), self.replace)
            case Ask() | Enough() | Note() | GiveReward() | GiveFailure() | Played():
                parts.playing.on_message(peer, message, buffers)
            case Seek() | Unseek() | KeepGame() if parts.games is not None:
                parts.games.on_message(peer, message)
            case Report():
                working = parts.publishing.committed is not None and peer.name not in parts.lent
                parts.statistics.on_report(peer, message, working)
                parts.metrics.reported(peer.role, peer.index, message)
            case EngineReady() if peer.ready:
                logger.info("%s repeats that it is ready", peer.name)  # it may be leaving by now
            case EngineReady(slots):
                peer.ready = True
                parts.engines.add(EngineHandle(peer, slots))
                parts.publishing.join(peer.index)
                parts.lifecycle.came(peer.name, parts.clock.now())
            case Leaving():
                self._drain(peer)
            case TrainerReady(version, store):
                parts.stepping = Stepping(
                    parts.store,
                    parts.config,
                    parts.clock,
                    StepSources(parts.admission, parts.leases, parts.lent),
                    peer,
                    version,
                )
                parts.publishing.trainer(peer, store)
                parts.lifecycle.came(peer.name, parts.clock.now())
            case Drained():
                parts.roster.drained.add(peer.name)
            case Exited():
                self._exited(message)
            case Drain():
                parts.end(True, STOPPED_EARLY)
            case _:
                raise LinkError(
                    "malformed",
                    f"{peer.name} sent {type(message).__name__}, which it may not send now",
                )

    def _of_publication(
        self, peer: Peer, message: Joined | Quiesced | Transferred | Prepared | Committed
    ) -> list[Decision]:
        publishing = self._parts.publishing
        match message:
            case Joined():
                member = None if peer.role == "trainer" else peer.index
                return publishing.on_joined(member, message)
            case Quiesced():
                return publishing.on_quiesced(peer.index, message)
            case Transferred():
                return publishing.on_transferred(message)
            case Prepared():
                return publishing.on_prepared(peer.index, message)
            case Committed():
                return publishing.on_committed(peer.index, peer.name, message)

    def _from_trainer(
        self, stepping: Stepping, message: Consumed | ScoredProximal | Stepped | Saved
    ) -> None:
        match message:
            case Consumed():
                stepping.on_consumed(message)
            case ScoredProximal():
                stepping.on_scored_proximal(message)
            case Stepped():
                stepping.alarms.judged(judged_answers(self._parts.scoring.failures, KINDS))
                stepping.on_stepped(message, self._parts.curve)
                self._parts.metrics.stepped(message.seconds, stepping.metrics)
                self._parts.curve.add(step_point(self._parts, stepping, message.seconds))
                self._parts.metrics.alarmed(alarm.name for alarm in self._parts.alarms)
            case Saved():
                stepping.on_saved(message)
                self._parts.metrics.saved(bool(message.path))
                look_outside(self._parts)

    # ------------------------------------------------------------------------- those that are gone

    def _drain(self, peer: Peer) -> None:
        """Drain a rollout actor that was told to end: take back what it holds, with every token,
        and give it no more work."""
        parts = self._parts
        engine = parts.engines.get(peer.name)
        if engine is None or engine.peer is not peer:
            peer.send(Drain())  # it was never ready, so it has nothing
            return
        logger.info("%s was told to end, and gives back what it holds", peer.name)
        parts.engines.drain(engine)
        parts.publishing.drain(peer.index)
        parts.reclaiming.drain(engine)

    def _lost(self, peer: Peer) -> None:
        """Handle the end of a link."""
        parts = self._parts
        if not parts.roster.remove(peer):
            return
        logger.info("%s is gone", peer.name)
        now = parts.clock.now()
        parts.roster.last_seen[peer.name] = LastSeen(peer.incarnation, peer.pid, now)
        if peer.role == "trainer" and not parts.lifecycle.ending:
            parts.end(False, "the trainer was lost", heals="lost")
        self._take_back(peer)
        parts.changes.set()

    def _take_back(self, peer: Peer) -> None:
        """Take back the work that a peer had."""
        parts = self._parts
        if peer.role == "reward":
            parts.scoring.lose(peer)
        if peer.role == "agents":
            parts.playing.lose(peer)
            if parts.games is not None:
                parts.games.lose(peer)
        engine = parts.engines.get(peer.name)
        if engine is not None and engine.peer is peer:
            parts.engines.remove(peer.name)
            parts.chunks.suspects.forget(peer.name)
            parts.reclaiming.lose(engine)
            carry_out(parts, parts.publishing.lose(peer.index, "it was lost"), self.replace)

    def _exited(self, message: Exited) -> None:
        """Handle the end of a process. The run continues without a rollout actor that is not
        restarted, as long as another one is left."""
        parts, name = self._parts, f"{message.role}-{message.index}"
        if message.restarting:
            parts.statistics.restarts[message.role] += 1
            parts.metrics.restarted(message.role)
            return
        said = f": {message.words}" if message.words else ""
        if message.role == "rollout" and not parts.lifecycle.ending:
            spent = "is not started again" if said else "its restarts are spent"
            why = f"{describe_exit(message.code)}, and {spent}{said}"
            parts.lifecycle.remove(name, why, parts.clock.now())
            if parts.lifecycle.rollout_actors:
                logger.warning("the run continues without %s, which %s", name, why)
                parts.metrics.removed(message.role)
                return
        heals: Healable | None = (
            "lost" if message.role == "trainer" and message.code != BAD_INPUT else None
        )
        parts.end(False, f"{name} {describe_exit(message.code)}{said}", heals=heals)
