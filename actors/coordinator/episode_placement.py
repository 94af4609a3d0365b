"""Finds an agents actor for each waiting episode.

Invariant: at an agents actor at most `agent.concurrency` episodes of a split are live, and in all
at most as many as engines can use: where agents are quick, few; where their tools are slow, many
(`staleness/live_episodes.py`). More live episodes would only wait, with ageing tokens. Where all
agents of an actor fail, it gets episodes one at a time, and rarely (`agent_failures.py`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator

from asyncrl.actors.coordinator.agent_failures import FREE, LONGEST_S, AgentFailures
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.peers import Peer, Roster
from asyncrl.explain.run_status import FailedEpisodes
from asyncrl.messages import StartCounts, Wait
from asyncrl.runtime.processes.standstill import RunClock
from asyncrl.staleness.live_episodes import LiveEpisodes

logger = logging.getLogger(__name__)

REASON = 400
"""Characters of a reason."""


class EpisodePlacement:
    """Capacity for episodes. Each split has its own: paused training does not block an
    evaluation."""

    def __init__(
        self,
        roster: Roster,
        engines: EnginePool,
        clock: RunClock,
        concurrency: int,
        stall_s: float,
    ) -> None:
        """A run that is silent for `stall_s` seconds ends, so no pause is longer than half of
        that."""
        self._roster, self._engines, self._clock = roster, engines, clock
        self._concurrency = concurrency
        self._live = LiveEpisodes()
        longest_s = min(LONGEST_S, stall_s / 2)
        self._failures: defaultdict[str, AgentFailures] = defaultdict(
            lambda: AgentFailures(longest_s)  # by actor
        )

    @property
    def most(self) -> int:
        """The episodes of a split that may be live, as far as agents actors have room."""
        return self._live.most(self._engines.slots)

    @property
    def starts(self) -> StartCounts | None:
        """The starts of agents' programs at all agents actors, as they last reported; None where
        none has any."""
        found = [
            peer.report.starts
            for peer in self._roster.of("agents")
            if peer.report.starts is not None
        ]
        if not found:
            return None
        return StartCounts(
            waiting=sum(starts.waiting for starts in found),
            starting=sum(starts.starting for starts in found),
            most=sum(starts.most for starts in found),
            seconds=max(starts.seconds for starts in found),
        )

    def observe(self, thinking: int) -> None:
        """Set the number of agents that work from now on. Of these, attempts that wait to start are
        left out: more live episodes would only wait beside them."""
        waiting = starts.waiting if (starts := self.starts) is not None else 0
        decoding = min(self._engines.slots, self._engines.held.total())
        self._live.observe(self._clock.now(), max(0, thinking - waiting), decoding)

    def call_ended(self) -> None:
        """Note that a call of an episode has ended."""
        self._live.ended(self._engines.slots)

    def played(self, peer: Peer) -> None:
        """Note that an attempt was played to its end."""
        self._failures.pop(peer.name, None)

    def failed(self, peer: Peer, reason: str) -> None:
        """Note that an attempt failed, for a reason of at most REASON printable characters."""
        failures = self._failures[peer.name]
        failures.failed(reason, self._clock.now())
        if failures.count == FREE:
            logger.warning(
                "all of the last %d episodes of %s failed; the last one: %s",
                FREE,
                peer.name,
                failures.reason,
            )

    @property
    def failing(self) -> list[FailedEpisodes]:
        """The agents actors all of whose last episodes failed."""
        return [
            FailedEpisodes(name=name, episodes=failures.count, reason=failures.reason)
            for name, failures in sorted(self._failures.items())
            if failures.count >= FREE
        ]

    @property
    def waits(self) -> list[Wait]:
        """The waits of failing agents actors until another episode begins."""
        now = self._clock.now()
        return [
            Wait("agents that fail", name, now - failures.since, failures.until - failures.since)
            for name, failures in sorted(self._failures.items())
            if failures.delays(now)
        ]

    def places(self, live: Counter[Peer]) -> Iterator[Peer]:
        """The agents actors for the next episodes of a split, of which so many are live: each time
        the one that has the most room. The caller begins an episode there before it takes the
        next."""
        room = {peer: self._concurrency - live[peer] for peer in self._roster.of("agents")}
        for _ in range(self.most - live.total()):
            open_to_more = [peer for peer in room if room[peer] > 0 and self._takes_one(peer)]
            if not open_to_more:
                return
            peer = max(open_to_more, key=lambda peer: room[peer])
            room[peer] -= 1
            if peer.name in self._failures:
                self._failures[peer.name].begins(self._clock.now())
            yield peer

    def _takes_one(self, peer: Peer) -> bool:
        failures = self._failures.get(peer.name)
        delayed = failures is not None and failures.delays(self._clock.now())
        return not delayed and peer.has_room()
