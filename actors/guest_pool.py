"""The agents of another run as players of an agents actor (`agent.run = "guest"`): an episode is
given to the host that sought it, and ends with its reward, or when the host leaves it."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnded, failed, no_facts
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.seats import Seats
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

PLAYED_S = 600.0
"""Seconds after which the wait for a host is renewed: its own clock bounds its attempt, and a newer
attempt, or the end of the run, ends this one."""


class GuestPool:
    """Plays episodes by the host of their games."""

    def __init__(self, seats: Seats, sessions: PlayedSessions, waits: Waits) -> None:
        self._seats, self._sessions, self._waits = seats, sessions, waits

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Give an episode to its seeker, and wait for its end."""
        session, owner = self._sessions.named(facts.session), f"prompt {facts.prompt_index}"
        given = {
            "session": facts.session,
            "base_url": facts.base_url,
            "api_key": facts.api_key,
            "reward_key": facts.reward_key,
        }
        try:
            encoded = msgspec.json.encode(given)
        except Exception as error:  # noqa: BLE001 (as for programs elsewhere)
            return AgentAttempt(no_facts(error), clock.spent_s, "")
        seat = self._seats.give(session.play.ticket, facts.session, encoded)
        if seat is None:
            return AgentAttempt(failed("left", "the host did not wait"), clock.spent_s, "")
        try:
            while not seat.over.is_set():
                with (
                    suppress(WaitExpired),
                    self._waits.on("the host of the game", owner=owner, deadline_s=PLAYED_S),
                ):
                    await seat.over.wait()
        finally:
            self._seats.take_back(facts.session)
        end = failed("left", seat.left) if seat.left else AgentEnded(None)
        return AgentAttempt(end, clock.spent_s, "")
