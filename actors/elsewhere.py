"""Programs elsewhere as players of an agents actor (`agent.run = "http"`): an episode is offered,
taken by a program, and ends with its reward, with a refusal, or with its clock."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd, AgentEnded, failed, no_facts
from asyncrl.agents.gateway.offers import Offers
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

TAKEN_S = 600.0
"""Seconds after which the wait for a program is renewed: an episode that no program takes has not
failed."""


class ElsewherePool:
    """Plays episodes by programs that take them over HTTP."""

    def __init__(self, offers: Offers, waits: Waits) -> None:
        self._offers, self._waits = offers, waits

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Offer an episode, and wait for its end. The clock runs from when a program has it."""
        fields = {"session": facts.session, **msgspec.structs.asdict(facts)}
        del fields["boxes"]  # nor open its sandboxes
        del fields["socket"]  # programs elsewhere do not run in the run's sandbox
        try:
            encoded = msgspec.json.encode(fields)
        except Exception as error:  # noqa: BLE001 (an entry may hold what no message can)
            return AgentAttempt(no_facts(error), clock.spent_s, "")
        offer, owner = self._offers.put(facts.session, encoded), f"prompt {facts.prompt_index}"
        try:
            while not offer.taken.is_set():
                with (
                    suppress(WaitExpired),
                    self._waits.on("a program's request", owner=owner, deadline_s=TAKEN_S),
                ):
                    await offer.taken.wait()
            with clock.running():
                await offer.over.wait()
        finally:
            self._offers.withdraw(offer)
        match offer.outcome:
            case "rewarded":
                end: AgentEnd = AgentEnded(None)
            case "given_up":
                end = failed("given up", offer.reason or "the program gave the episode up")
            case None:
                end = failed("timeout", f"the program had the ball for {clock.limit_s:g} s")
        return AgentAttempt(end, clock.spent_s, "")
