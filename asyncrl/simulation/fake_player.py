"""A player of scripted agents: what stands in an agents actor for the processes of a user's code.
Invariant: it reaches the model as agents do, by the sessions of its actor, and knows nothing of the
coordinator.

Its attributes say what goes wrong; the kinds of fault (`agent_faults.py`) set them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from typing import Literal

import trio

from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, FailureKind, failed
from asyncrl.agents.gateway.generation import Generation
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.messages import Play
from asyncrl.simulation.agent_script import (
    Act,
    ScriptedAsk,
    ScriptedFailure,
    ScriptedNote,
    ScriptedReward,
    script,
)

RETRIES = 0.1
"""Share of the calls that an unsteady agent makes a second time, before the first is answered."""

MIDST_S = 0.1
"""Seconds of an act after which an agent fails in its middle."""

Answer = tuple[int, ...] | None
"""Token ids; None where a call was refused."""

AgentFailing = FailureKind | Literal["hang", "lost"]
"""A way in which an agent fails: as it may end, or it hangs, or takes its actor with it."""


class AgentsLost(RuntimeError):
    """A fault of the plan."""


class FakePlayer:
    """Plays the agent that an episode's seed says. `steady` ones do the same in each attempt, and
    `think_s(seed)` draws the seconds between two acts of an agent, `slowness` times as many. With
    `ends` most of them give each call a reward. The next `failures` agents that act fail as `fails`
    says; `faulted` hears of each. `ended` hears of each end: the attempt, the reason why it has to
    be played again, empty if not, and the calls whose whole answers its agent did not want. With
    `clients`, calls that an agent abandons stay open there, until they are answered or the attempt
    is over; without, they are closed at once."""

    def __init__(
        self,
        sessions: PlayedSessions,
        think_s: Callable[[int], float],
        ended: Callable[[Play, str, Collection[int]], None],
        *,
        steady: bool,
        ends: bool = False,
        clients: trio.Nursery | None = None,
    ) -> None:
        self._ends = ends
        self._sessions, self._think_s, self._steady = sessions, think_s, steady
        self._ended, self._clients = ended, clients
        self.slowness = 1.0
        self.fails: AgentFailing = "raised"
        self.failures = 0
        self.faulted: Callable[[], None] = lambda: None

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Play to the end, or to that of the clock."""
        session = self._sessions.named(facts.session)
        whims = None if self._steady else facts.seed + facts.attempt
        acting = _Acting(session, whims, self._clients)
        end: AgentEnd = failed("timeout", f"the agent had the ball for {clock.limit_s:g} s")
        with clock.running():
            end = await self._act(acting, facts)
        failed_by = ""
        if isinstance(end, AgentFailed) and not (end.kind == "raised" and _full(session)):
            failed_by = end.kind.replace(" ", "_")
        left = acting.left if failed_by else acting.left | acting.unread
        self._ended(session.play, failed_by, left)
        return AgentAttempt(end, clock.spent_s, "")

    async def _act(self, acting: _Acting, facts: EpisodeFacts) -> AgentEnd:
        """Play, and say how it ended."""
        acts = script(facts.seed, facts.attempt + 1, unsteady=not self._steady, ends=self._ends)
        try:
            act = next(acts)
            while True:
                await self._think(facts.seed)
                if self.failures:
                    return await self._failing(acting, act)
                found = await acting.do(act)
                if acting.refused:
                    return failed("raised", "the model did not answer")
                act = acts.send(found)
        except StopIteration:
            return AgentEnded(acting.reward)

    async def _think(self, seed: int) -> None:
        await trio.sleep(self.slowness * self._think_s(seed))

    async def _failing(self, acting: _Acting, act: Act) -> AgentEnd:
        """Fail, in the middle of the act if that takes time."""
        self.failures -= 1
        self.faulted()
        if self.failures % 2 and isinstance(act, list):
            with trio.move_on_after(MIDST_S):
                await acting.do(act)
        if self.fails == "hang":
            await trio.sleep_forever()
        if self.fails == "lost":
            raise AgentsLost("the plan says that agents take their actor with them")
        return failed(self.fails, "the plan says so")


def _full(session: PlayedSession) -> bool:
    """True if an episode is as long as it may be: then it has not failed where its agent raises."""
    return session.full and bool(session.answered)


class _Acting:
    """The acts of one attempt. `numbers` are those of the script's calls in the session, `reward`
    what the agent returns in the end. Of calls, by the session's numbers, `left` are those of whose
    answers it had enough or that it left, and `unread` those whose answers it reads. `refused`: a
    call had no answer."""

    def __init__(
        self, session: PlayedSession, whims: int | None, clients: trio.Nursery | None
    ) -> None:
        self._session, self._clients = session, clients
        self._whims = None if whims is None else random.Random(f"retries/{whims}")
        self._asked = 0
        self.numbers: list[int] = []
        self.reward: float | None = None
        self.refused = False
        self.left = set[int]()
        self.unread = set[int]()

    async def do(self, act: Act) -> list[Answer]:
        """Act, and return what the script is to be sent."""
        match act:
            case ScriptedNote(name, value):
                return [tuple(self._session.note(name, value))]
            case ScriptedReward(None, reward):
                self.reward = reward
            case ScriptedReward(number, reward, key):
                if (turn := self._turn(number)) is not None:
                    self._session.reward(reward, turn, key)
            case ScriptedFailure(number, tool):
                if (turn := self._turn(number)) is not None:
                    self._session.fail(tool, turn)
            case _:
                return await self._ask(act)
        return []

    def _turn(self, number: int | None) -> int | None:
        """The turn of a call of the script; None where its agent has seen nothing of it."""
        assert number is not None
        answered = sorted(self._session._answered)
        own = self.numbers[number]
        return answered.index(own) if own in answered else None

    async def _ask(self, asks: list[ScriptedAsk]) -> list[Answer]:
        """Make these calls at one time, and wait for the answers that are not abandoned."""
        found: list[Answer] = [None] * len(asks)
        with ExitStack() as opened:
            async with trio.open_nursery() as nursery:
                for place, ask in enumerate(asks):
                    if self._whims is not None and self._whims.random() < RETRIES:
                        self.left.add(self._asked)
                        with self._open(ask):
                            await trio.lowlevel.checkpoint()
                    self.numbers.append(self._asked)
                    if ask.abandoned:
                        self._abandon(ask)
                        continue
                    answer = opened.enter_context(self._open(ask))
                    self.unread.add(self.numbers[-1])
                    nursery.start_soon(self._read, answer, ask, place, found, self.numbers[-1])
        return found

    def _abandon(self, ask: ScriptedAsk) -> None:
        """Make a call, and do not wait for its answer."""
        self.left.add(self._asked)
        with ExitStack() as opened:
            answer = opened.enter_context(self._open(ask))
            if self._clients is not None:
                self._clients.start_soon(_cling, opened.pop_all(), answer)

    def _open(self, ask: ScriptedAsk) -> AbstractContextManager[Generation]:
        self._asked += 1
        return self._session.ask(ask.context, ask.budget, (), ask.role)

    async def _read(
        self,
        answer: Generation,
        ask: ScriptedAsk,
        place: int,
        found: list[Answer],
        number: int,
    ) -> None:
        """Read an answer as far as its agent needs it."""
        ids = list[int]()
        if ask.needs == 0:
            self.left.add(number)
            answer.interrupt(0)
        async for piece in answer:
            if piece.refused:
                self.refused = True
                self._session.full |= piece.finish == "length"
                self.unread.remove(number)
                return
            ids += piece.ids.tolist()
            if ask.needs is not None and len(ids) >= ask.needs:
                self.left.add(number)
                answer.interrupt(ask.needs)
        self.unread.remove(number)
        found[place] = tuple(ids[: ask.needs])


async def _cling(opened: ExitStack, answer: Generation) -> None:
    """Be a client that its agent has forgotten."""
    with opened:
        async for _ in answer:
            pass
