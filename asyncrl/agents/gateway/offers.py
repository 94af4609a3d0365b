"""Episodes for programs elsewhere (`agent.run = "http"`): each waits here until a program takes it,
and then for its end.

Invariant: an episode is taken once, and the first end that is reported counts.
"""

from __future__ import annotations

import math
from typing import Literal

import trio

from asyncrl.agents.gateway.played_session import ended

Outcome = Literal["rewarded", "given_up"]


class Offer:
    """An episode that waits for a program, or that a program plays. `facts` is the JSON for the
    program."""

    def __init__(self, session: str, facts: bytes) -> None:
        self.session, self.facts, self.withdrawn = session, facts, False
        self.taken, self.over = trio.Event(), trio.Event()
        self.outcome: Outcome | None = None
        self.reason = ""


class Offers:
    """The episodes that programs elsewhere may take, the oldest first."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Offer](math.inf)
        self._offers: dict[str, Offer] = {}

    def put(self, session: str, facts: bytes) -> Offer:
        """Offer an episode. No more can wait than the actor has episodes."""
        offer = self._offers[session] = Offer(session, facts)
        self._send.send_nowait(offer)
        return offer

    def withdraw(self, offer: Offer) -> None:
        """Withdraw an offer: no program takes it or continues it."""
        offer.withdrawn = True
        del self._offers[offer.session]

    async def take(self) -> bytes:
        """Take the next episode as soon as there is one, and return its facts."""
        while True:
            offer = await self._receive.receive()
            if not offer.withdrawn:
                offer.taken.set()
                return offer.facts

    def end(self, session: str, outcome: Outcome, reason: str = "") -> None:
        """Record how an episode ended, and why. Raises GatewayError (404) if no program has it."""
        offer = self._offers.get(session)
        if offer is None or not offer.taken.is_set():
            raise ended(session)
        if offer.outcome is None:
            offer.outcome, offer.reason = outcome, reason
        offer.over.set()
