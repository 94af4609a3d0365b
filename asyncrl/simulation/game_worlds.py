"""Runs that play one game, two to four, in virtual time: the worlds of a host and its guests,
between which all but HTTP is the product's own, while processes and whole runs are killed and
agents fail.

Invariants, looked at at every event: the host ends a game well only once the end of each guest is
on that guest's disk, a guest only once the outcome is on the host's; none gives up what another has
ended; and each run samples its own contexts alone. While no run is over, each game ends in all of
them within `GAME_S` of its beginning, and another one ends within that time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio

from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.actors.agents_actor import Asking, EpisodePlayer, agents_actor
from asyncrl.actors.guest_gateways import GuestRefused
from asyncrl.actors.guest_pool import GuestPool
from asyncrl.actors.hosted_games import HostedGames
from asyncrl.actors.reporting import Reporter
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd, AgentEnded, failed
from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.game_table import GuestSeat
from asyncrl.agents.gateway.other_call import OtherAnswer, OtherCall
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.policy_calls import PolicyCalls
from asyncrl.agents.gateway.seats import Seats
from asyncrl.config import Config
from asyncrl.messages import Standing
from asyncrl.runtime.ipc.link import Link
from asyncrl.simulation.fake_world import BETWEEN_LIVES_S, FakeWorld, Speeds, no_text
from asyncrl.simulation.game_side import FIRST, HOST, MORE, GameSide
from asyncrl.simulation.observer import Violation
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.virtual_clock import VirtualClock

LIVES, LIMIT_S, LAST_S = 60, 4 * 3600.0, 900.0
"""Lives of a run, and virtual seconds of all, after which it is stuck; and those in which a run
ends after the other has."""
SEEK_S = 20.0
GAME_S = 120.0
"""Virtual seconds from the beginning of a game to its end in all runs, at most, and from the end of
one to that of the next: several attempts, each with a seat, the starts of what was killed, and the
time until a lost seat is noticed."""


@dataclass
class GameReport:
    """Report of one seed: lives, games by how they ended in all runs, the virtual seconds of the
    slowest one and of all, the weights of each version of each policy, and what was wrong."""

    seed: int
    lives: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    given_up: int = 0
    replayed: int = 0
    slowest_s: float = 0.0
    virtual_s: float = 0.0
    weights: dict[str, dict[int, int]] = field(default_factory=dict)
    events: int = 0
    violation: Violation | None = None


class _GameWorld(FakeWorld):
    """One of the two runs. `play_s` draws the seconds between two acts of the agent of a seed."""

    def __init__(self, side: GameSide, seed: int, config: Config, speeds: Speeds) -> None:
        super().__init__(seed, config, side, speeds)
        self.side, side.world = side, self
        self.guests = dict[str, _GameWorld]()
        self.over = False
        self.failures = 0
        """Attempts that fail next."""
        self.table: tuple[SimProcess, PlayedSessions, Seats] | None = None

    async def play(self, link: Link, process: SimProcess) -> None:
        sessions, reporter = PlayedSessions(b"the run's key"), Reporter(process.waits)
        keeping = DiskWaits(sessions.say, process.waits)
        seats, games = None, None
        player: GuestPool | _ScriptedGame
        if self.side.policy != HOST:
            seats = Seats(sessions.say, keeping, process.waits)
            player = GuestPool(seats, sessions, process.waits)
            self.table = process, sessions, seats
        else:
            guests = _MemoryGuests(self.guests)
            games = HostedGames(HOST, (*self.guests,), guests, keeping, process.waits)
            player = _ScriptedGame(self, sessions, _MemoryCalls(guests, process))
        episodes = EpisodePlayer(
            player,
            sessions,
            no_text,
            reporter,
            url=f"http://{self.side.policy}",
            episode_s=self.config.agent.episode_s,
            games=games,
            asking=Asking(keeping, seats),
        )
        await agents_actor(link, episodes, sessions, reporter)

    async def live(self) -> None:
        """Life after life, until the run is done."""
        for _ in range(LIVES):
            ending = await self.life()
            if ending.finished and "stopped early" not in ending.reason:
                self.over = True
                return
            await trio.sleep(BETWEEN_LIVES_S)
        self.side.violated(
            "liveness", f"the {self.side.policy} is not done in {LIVES} lives: {ending.reason}"
        )


class _MemoryGuests:
    """The guests' gateways without HTTP."""

    def __init__(self, guests: Mapping[str, _GameWorld]) -> None:
        self._guests = guests

    async def seek(self, name: str, asked: dict[str, Any]) -> GuestSeat | str | None:
        if self._guests[name].over:
            return "gone"
        standing = Standing(asked["next"], asked["live"], asked["buried"])
        found = await self.at(name, lambda _, seats: seats.seek(asked["key"], standing, SEEK_S))
        return msgspec.json.decode(found, type=GuestSeat) if isinstance(found, bytes) else found

    async def tell(self, seat: GuestSeat, what: str, body: Any) -> str:
        async def told(sessions: PlayedSessions, seats: Seats) -> str:
            session = sessions.named(seat.session)
            if what == "kept":
                return await seats.keeping.kept(session.play)
            return await seats.end(session, body["reward"])

        return str(await self.at(_policy_of(seat), told))

    async def leave(self, seat: GuestSeat) -> None:
        async def left(sessions: PlayedSessions, seats: Seats) -> None:
            await trio.lowlevel.checkpoint()
            seats.leave(sessions.named(seat.session), "")

        await self.at(_policy_of(seat), left)

    async def at(self, name: str, ask: Callable[[PlayedSessions, Seats], Awaitable[Any]]) -> Any:
        """The answer of a guest's agents actor; GuestRefused as it dies, or refuses."""
        if (table := self._guests[name].table) is None or not table[0].alive:
            raise GuestRefused("nobody answers")
        process, sessions, seats = table
        answer: Any = None
        refused = ""

        async def asked() -> None:
            nonlocal answer, refused
            try:
                answer = await ask(sessions, seats)
            except GatewayError as error:
                refused = str(error)
            nursery.cancel_scope.cancel()

        async def died() -> None:
            nonlocal refused
            await process.wait()
            refused = "it died"
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked)
            nursery.start_soon(died)
        if refused or not process.alive:
            raise GuestRefused(refused)
        return answer


def _policy_of(seat: GuestSeat) -> str:
    return seat.base_url.removeprefix("http://").partition("/")[0]


class _MemoryCalls(PolicyCalls):
    """The product's calls of other policies, but for HTTP."""

    def __init__(self, guests: _MemoryGuests, process: SimProcess) -> None:
        self._guests, self._waits, self._past = guests, process.waits, ()

    async def _asked(self, seat: GuestSeat, call: OtherCall) -> OtherAnswer:
        asked = json.loads(call.body)

        async def said(sessions: PlayedSessions, seats: Seats) -> OtherAnswer:
            session = sessions.named(seat.session)
            ids = await _say(session, tuple(asked["ids"]), asked["budget"])
            return OtherAnswer("", json.dumps(ids), 200 if ids is not None else 422)

        try:
            return await self._guests.at(call.model, said)  # type: ignore[no-any-return]
        except GuestRefused as refused:
            raise GatewayError(502, "other_policy", str(refused)) from None


async def _say(session: PlayedSession, ids: tuple[int, ...], budget: int) -> list[int] | None:
    """The tokens that a policy says; None if it was refused."""
    said = list[int]()
    with session.ask(ids, budget, ()) as answer:
        async for piece in answer:
            if piece.refused:
                return None
            said += piece.ids.tolist()
    return said


class _ScriptedGame:
    """The host's agents: what each does follows from its seed, and from what it was answered."""

    def __init__(self, world: _GameWorld, sessions: PlayedSessions, calls: PolicyCalls) -> None:
        self._world, self._sessions, self._calls = world, sessions, calls

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Play to the end, or to that of the clock."""
        session = self._sessions.named(facts.session)
        if session.table is not None and session.table.outcome is not None:
            self._world.side.replayed += 1
        end: AgentEnd = failed("timeout", f"the agent had the ball for {clock.limit_s:g} s")
        with clock.running():
            end = await self._played(session, facts.seed)
        return AgentAttempt(end, clock.spent_s, "")

    async def _played(self, session: PlayedSession, seed: int) -> AgentEnd:
        draw, seen = random.Random(f"game/{seed}"), list[int]()
        for turn in range(draw.randint(1, 3)):
            await trio.sleep(self._world.speeds.think_s(seed))
            if self._world.failures:
                self._world.failures -= 1
                return failed("raised", "the plan says so")
            said = await _say(session, (FIRST[HOST], turn, *seen), draw.choice((1, 2, 4)))
            if said is None:
                break
            seen += said
            for guest in self._world.guests:
                asked = {"ids": [FIRST[guest], turn, *seen], "budget": draw.choice((1, 3))}
                call = OtherCall(guest, "/say", {}, json.dumps({"model": guest} | asked).encode())
                try:
                    answer = await self._calls.answer(session, call)
                except GatewayError as error:
                    return failed("raised", str(error))
                if answer.status != 200:
                    return _rewards(self._world, seen)
                seen += json.loads(answer.body)
        return _rewards(self._world, seen)


def _rewards(host: _GameWorld, seen: list[int]) -> AgentEnded:
    guests = dict.fromkeys(host.guests, float(len(seen) % 2))
    return AgentEnded({HOST: float(sum(seen) % 3), **guests})


class GamePlan(NamedTuple):
    """The choices beside a seed's draws: whether faults happen, whether all runs are at lag 0, and
    the policies that take no time to train."""

    faults: bool = True
    on_policy: bool = False
    free: tuple[str, ...] = ()


def play_games(seed: int, plan: GamePlan) -> GameReport:
    """Run the runs of a seed to their end."""
    clock = VirtualClock()
    with replayable(seed):
        return trio.run(partial(_run, seed, plan), clock=clock, strict_exception_groups=True)


def _config(policy: str, draw: random.Random, shared: dict[str, Any]) -> Config:
    lag, depth = draw.choice(((0, 0), (1, 1), (2, 1)))
    if shared["on_policy"]:
        lag, depth = 0, 0
    host = policy == HOST
    return msgspec.convert(
        {
            "task": {"eval_size": 0, "train_size": 1000, "verdict_s": 2.0},
            "engine": {
                "kind": "scripted",
                "slots": draw.choice((2, 4, 8)),
                "chunk_tokens": 2,
                "context_tokens": 64,
            },
            "agent": {
                "run": "scripted:game" if host else "guest",
                "actors": draw.choice((1, 2)) if host else 1,
                "concurrency": draw.choice((1, 2, 4)),
                "episode_s": 20.0,
                "attempts": draw.choice((2, 3)),
            },
            "game": {"policy": policy, "guests": shared["guests"] if host else []},
            "rollout": {
                "actors": draw.choice((1, 2)),
                "group_size": shared["size"],
                "max_new_tokens": draw.choice((6, 20)),
                "filter": "none",
                "lease_s": 8.0,
            },
            "train": {
                "steps": shared["steps"],
                "batch_groups": shared["batch"],
                "eval_every": 0,
                "checkpoint_every": draw.choice((1, 2)),
            },
            "staleness": {
                "max_lag": lag,
                "depth": depth,
                "on_stale": draw.choice(("mask", "drop")) if lag else "mask",
            },
            "journal": {"commit_ms": draw.choice((10, 100, 400))},
            "supervision": {"stall_s": 600.0},
            "run": {"seed": 0},
        },
        Config,
    )


def _worlds(seed: int, plan: GamePlan) -> dict[str, _GameWorld]:
    """The runs of a seed's game, each of which knows the others."""
    draw = random.Random(f"games/{seed}")
    policies = MORE[: random.Random(f"policies/{seed}").choice((2, 2, 3, 4))]
    shared = {
        "size": draw.choice((2, 3)),
        "steps": 4,
        "batch": draw.choice((1, 2)),
        "guests": policies[1:],
        "on_policy": plan.on_policy,
    }
    worlds = dict[str, _GameWorld]()
    for policy in policies:
        pace = draw.choice((0.02, 0.1))
        think = draw.choice((0.05, 0.5))
        speeds = Speeds(
            pace=partial(draw.choice, (pace, pace, 4 * pace)),
            step_s=draw.choice((0.02, 0.5)) * (policy not in plan.free),
            think_s=lambda seed, think=think: think * (1 + seed % 3),  # type: ignore[misc]
        )
        worlds[policy] = _GameWorld(GameSide(policy), seed, _config(policy, draw, shared), speeds)
    worlds[HOST].guests = {policy: worlds[policy] for policy in policies[1:]}
    for world in worlds.values():
        world.side.others = [each.side for each in worlds.values() if each is not world]
    return worlds


async def _run(seed: int, plan: GamePlan) -> GameReport:
    worlds = _worlds(seed, plan)
    virtual_s = 0.0
    host, sides = worlds[HOST].side, [world.side for world in worlds.values()]
    slowest_s = [0.0]
    with trio.move_on_after(LIMIT_S) as limit:
        async with trio.open_nursery() as nursery:

            async def live(world: _GameWorld) -> None:
                nonlocal virtual_s
                await world.live()
                virtual_s = trio.current_time()
                if not all(each.over for each in worlds.values()):
                    await trio.sleep(LAST_S)
                nursery.cancel_scope.cancel()

            for world in worlds.values():
                world.side.stop = nursery.cancel_scope.cancel
                nursery.start_soon(live, world)
            nursery.start_soon(_look_at_ends, worlds, slowest_s)
            if seed % 10 and plan.faults:
                nursery.start_soon(_faults, worlds, random.Random(f"faults/{seed}"))
    if limit.cancelled_caught:
        host.violated("liveness", f"{LIMIT_S:g} virtual seconds, and the game is not over")
    if not any(side.violation for side in sides):
        # one whose steps lost stale tokens may need games that another does not play any more;
        # its launcher drains it then
        done = any(world.over for world in worlds.values())
        host.hold("liveness", done, "no run made its steps")
    ends = [done.sealed for done in host.done.values()]
    return GameReport(
        seed=seed,
        lives={name: len(world.lives) for name, world in worlds.items()},
        ended=sum(ends),
        given_up=len(ends) - sum(ends),
        replayed=host.replayed,
        slowest_s=slowest_s[0],
        virtual_s=virtual_s,
        weights={side.policy: side.weights for side in sides},
        events=sum(len(side.events) for side in sides),
        violation=next((side.violation for side in sides if side.violation), None),
    )


async def _look_at_ends(worlds: Mapping[str, _GameWorld], slowest_s: list[float]) -> None:
    """While no run is over, hold that each game that the host has begun ends in all runs in time,
    and that games go on ending."""
    host, sides = worlds[HOST].side, [world.side for world in worlds.values()]
    last = trio.current_time()
    ended = 0
    while not any(world.over for world in worlds.values()):
        await trio.sleep(1.0)
        now = trio.current_time()
        for key, begun in host.begun_at.items():
            ends = [side.ended_at.get(key, now) for side in sides]
            late = max(ends) - begun
            slowest_s[0] = max(slowest_s[0], late)
            host.hold(
                "liveness", late <= GAME_S, "game {} has not ended in all runs in {} s", key, late
            )
        if (count := sum(len(side.ended_at) for side in sides)) != ended:
            ended, last = count, now
        host.hold("liveness", now - last <= GAME_S, "no game has ended for {} s", now - last)


async def _faults(worlds: Mapping[str, _GameWorld], draw: random.Random) -> None:
    """Kill processes, a run, and all runs, and have agents fail, at drawn times."""
    for _ in range(draw.randint(1, 8)):
        await trio.sleep(draw.choice((0.3, 1.0, 4.0)) * draw.random())
        kind, world = draw.randrange(6), worlds[draw.choice([*worlds])]
        hit = [*worlds.values()] if kind == 0 else [world]
        if kind < 2:
            for each in hit:
                if each.processes and not each.over:
                    each.kill_everything()
        elif kind == 2:
            worlds[HOST].failures += draw.choice((1, 1, 3, 8))
        elif alive := world.alive(draw.choice(("agents", "agents", "coordinator", "rollout"))):
            draw.choice(alive).kill()
