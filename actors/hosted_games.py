"""Games of several runs, at the host: its agents actor takes a seat in each guest's run for each
attempt, and ends the game in all.

Invariant: a game has ended well in the host's run only if it has in all guests', whatever is
killed. The order is: all of the attempt is on the disks, with its outcome; then each guest ends it,
on its disk; then the host does. An attempt that is killed between these finds a guest that has
ended, and is played again from the notes of the attempt that ended it (`game_table`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import trio

from asyncrl.actors.agent_pool import AgentAttempt
from asyncrl.actors.guest_gateways import GuestGateways, GuestRefused, Guests
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, failed
from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.game_table import GameOutcome, GuestSeat, Table, outcome_of
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.policy_calls import PolicyCalls
from asyncrl.config import Config
from asyncrl.messages.game_messages import OUTCOME
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

logger = logging.getLogger(__name__)

SEAT_S = 60.0
"""Seconds that an attempt waits for a seat. Then it makes room for others, and is no failure."""
AGAIN_S = 1.0
"""Seconds until a guest that cannot be reached is asked again: it gives no notice of its start."""
END_S = 660.0
"""Seconds in which a guest's disk must take the end of a game."""
REPLAYS = 32
"""Attempts at a game that has ended in a guest's run, before a failure of its agent counts."""
LEAVE_S = 5.0
"""Seconds in which a guest hears that an attempt is over. If it does not, the next one tells it."""


class HostedGames:
    """The games of one agents actor of a host. It is made by `open_games`."""

    def __init__(
        self,
        policy: str,
        names: tuple[str, ...],
        guests: Guests,
        keeping: DiskWaits,
        waits: Waits,
    ) -> None:
        """The host trains `policy`, and the guests those of these `names`."""
        self._policy, self._guests, self._asked = policy, names, guests
        self._keeping, self._waits = keeping, waits

    async def play(
        self, session: PlayedSession, play: Callable[[], Awaitable[AgentAttempt]]
    ) -> AgentAttempt:
        """Play an attempt with a seat in each guest's run, and end the game in all."""
        outcome = outcome_of(session.play.notes)
        seats = dict[str, GuestSeat]()
        try:
            for name in self._guests:
                found = await self._seat(name, session)
                if isinstance(found, GuestSeat):
                    seats[name] = found
                elif isinstance(found, AgentFailed):
                    return AgentAttempt(found, 0.0, "")
                elif found == "given_up" or outcome is None:
                    why = f"the run of {name} has given this game up ({found})"
                    return AgentAttempt(failed("game given up", why), 0.0, "")
            session.table = Table(seats, outcome if len(seats) < len(self._guests) else None)
            attempt = await play()
            if isinstance(attempt.end, AgentFailed):
                return self._again(session, session.table, attempt, attempt.end)
            end = await self._ended(session, session.table, attempt.end)
            return msgspec.structs.replace(attempt, end=end)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(LEAVE_S):
                for seat in seats.values():
                    await self._leave(seat)

    def _again(
        self, session: PlayedSession, table: Table, attempt: AgentAttempt, end: AgentFailed
    ) -> AgentAttempt:
        """An attempt that failed. Where a guest has ended the game, it is no failure of it, for
        some attempts."""
        if table.outcome is None or session.play.attempt > table.outcome.attempt + REPLAYS:
            return attempt
        return msgspec.structs.replace(attempt, end=failed("left", f"{end.kind}: {end.text}"))

    async def _seat(self, name: str, session: PlayedSession) -> GuestSeat | AgentFailed | str:
        """A seat in the run of a guest, or the state of the game there, or the failure of an
        attempt that waited for too long."""
        play, owner = session.play, f"prompt {session.play.prompt_index}"
        assert play.game is not None, "a host is told its games"
        asked = {"key": play.seed, **msgspec.structs.asdict(play.game)}
        try:
            with self._waits.on(f"a seat of policy {name}", owner=owner, deadline_s=SEAT_S):
                while True:
                    try:
                        if (found := await self._asked.seek(name, asked)) is not None:
                            return found
                    except GuestRefused as refused:
                        logger.info("no seat yet: %s", refused)
                        await trio.sleep(AGAIN_S)
        except WaitExpired:
            return failed("no seat", f"the run of {name} did not take part within {SEAT_S:g} s")

    async def _ended(self, session: PlayedSession, table: Table, end: AgentEnded) -> AgentEnd:
        """End a game in all guests' runs, and return how it ends in this one."""
        policies = {self._policy, *self._guests}
        if not isinstance(end.reward, dict) or set(end.reward) != policies:
            return failed(
                "no outcome",
                f"a game returns the reward of each policy: {{{', '.join(sorted(policies))}}}",
            )
        outcome = table.outcome or GameOutcome(session.play.attempt, end.reward)
        try:
            if table.outcome is None:
                session.note(f"{OUTCOME}{outcome.attempt}", msgspec.json.encode(outcome))
            await self._promised(session, table)
            for name, seat in table.seats.items():
                body = {"reward": outcome.rewards[name]}
                await self._tell(seat, "end", body, "ended")
        except (GuestRefused, WaitExpired) as error:
            return failed("no seat", f"a game could not end in all runs: {error}")
        return AgentEnded(outcome.rewards[self._policy])

    async def _promised(self, session: PlayedSession, table: Table) -> None:
        """Return once all of the attempt is on the disk of each run. Raises GuestRefused."""
        if (state := await self._keeping.kept(session.play)) != "live":
            raise GuestRefused(f"the host's attempt is {state}")
        for seat in table.seats.values():
            await self._tell(seat, "kept", {}, "live")

    async def _tell(self, seat: GuestSeat, what: str, body: object, state: str) -> None:
        with self._waits.on("a guest's journal", owner=f"session {seat.session}", deadline_s=END_S):
            said = await self._asked.tell(seat, what, body)
        if said != state:
            raise GuestRefused(f"session {seat.session} is {said}")

    async def _leave(self, seat: GuestSeat) -> None:
        """Tell a guest that this attempt is over; one that has ended knows."""
        try:
            await self._asked.leave(seat)
        except GuestRefused as refused:
            logger.debug("a guest did not hear that an attempt is over: %s", refused)


@asynccontextmanager
async def open_games(
    config: Config, run: Path, keeping: DiskWaits, waits: Waits
) -> AsyncIterator[tuple[HostedGames, PolicyCalls] | None]:
    """The games of a host in the block, and the calls of its guests; None for any other run."""
    game = config.game
    if not game.guests:
        yield None
        return
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=4.0)
    async with httpx2.AsyncClient(
        timeout=httpx2.Timeout(None), limits=limits, trust_env=False, follow_redirects=False
    ) as client:
        games = HostedGames(game.policy, game.guests, GuestGateways(run, client), keeping, waits)
        call_s = config.agent.call_s
        yield games, PolicyCalls(game.policy, game.guests, client, waits, call_s, game.past)
