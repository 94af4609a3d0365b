"""The launcher's side of machines, against any order of what machines say, what the run asks, and
what is lost: a plain account of who may have which actor is right after each of them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl import messages as m
from asyncrl.config import load
from asyncrl.launch.cluster.joined_machine import KILLED, Machine, RemoteActor
from asyncrl.launch.cluster.machines import Machines
from asyncrl.launch.cluster.versions import own_versions
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.run_dir import COORDINATOR_ADDRESS, INITIAL, RUN_TOML

NAMES = ("one", "two", "three")
ROLES: dict[str, m.JoinedRole] = {"one": "rollout", "two": "rollout", "three": "reward"}
SAID = ("joins", "is equipped", "is refused", "leaves", "ends", "ends early", "is lost")
ASKED = ("start", "kill", "dismiss")

Step = tuple[str, str, int]
"""An occurrence, its machine or the role that it is for, and a number."""


class Told:
    """The end of a link at which a machine hears, and says what a step wants said."""

    def __init__(self) -> None:
        self.orders = list[m.Message]()
        self._say, self._said = trio.open_memory_channel[m.Message](100)

    def say(self, message: m.Message) -> None:
        self._say.send_nowait(message)

    def hang_up(self) -> None:
        self._say.close()

    async def send(self, message: m.Message, *_: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.orders.append(message)

    async def receive(self) -> tuple[m.Message, tuple[memoryview, ...]]:
        try:
            return await self._said.receive(), ()
        except trio.EndOfChannel:
            raise EndOfStream("it has ended") from None


class Seen:
    """A machine that is linked, as the steps tell of it."""

    def __init__(self, told: Told, role: m.JoinedRole) -> None:
        self.told, self.role, self.equipped, self.out = told, role, False, False
        self.places: int | None = None


class Account:
    """The real `Machines`, and what must be true of them."""

    def __init__(self, machines: Machines, nursery: trio.Nursery) -> None:
        self.machines, self.nursery = machines, nursery
        self.linked: dict[str, Seen] = {}
        self.actors: list[RemoteActor] = []
        self.ends: dict[int, int] = {}
        self.over = False

    async def step(self, what: str, name: str, number: int) -> None:
        seen, actors = self.linked.get(name), self.machines
        match what:
            case "joins" if seen is None:
                self._join(name)
            case "is equipped" if seen is not None:
                seen.places = number or None
                if not (seen.equipped or seen.out or self.over):
                    seen.equipped = True
                else:  # what was said first stands
                    seen.places = self._machine(name).places
                seen.told.say(m.Equipped(number or None))
            case "is refused" | "leaves" if seen is not None:
                seen.told.say(m.Unequipped("no GPU") if what[0] == "i" else m.MachineLeaving())
                if seen.out:  # it is cut off
                    self._lost(name)
                seen.out = True
            case "ends" | "ends early" if seen is not None:
                held = list(self._machine(name).actors.values())
                if held:
                    actor = held[number % len(held)]
                    code = number if what == "ends" else 9
                    self.ends.setdefault(self.actors.index(actor), code)
                    seen.told.say(m.ActorExited(*actor.actor, code, "its words"))
            case "is lost" if seen is not None:
                seen.told.hang_up()
                self._lost(name)
            case "start" if not self.over:
                self.actors.append(actors.start(ROLES[name], len(self.actors), 0, resume=False))
            case "kill" if self.actors:
                at = number % len(self.actors)
                if self.actors[at].machine is None:
                    self.ends.setdefault(at, KILLED)
                self.actors[at].kill()
            case "dismiss":
                self.over = True
                self.nursery.start_soon(actors.dismiss)
        await trio.testing.wait_all_tasks_blocked()
        self.check()

    def _join(self, name: str) -> None:
        told = Told()
        self.linked[name] = Seen(told, ROLES[name])
        told.say(m.Join(name, name, 2, own_versions(), ROLES[name]))

        async def attend() -> None:
            try:
                await self.machines._attend(cast(Link, told))
            except* LinkError:
                pass

        self.nursery.start_soon(attend)

    def _machine(self, name: str) -> Machine:
        return self.machines._linked[name]

    def _lost(self, name: str) -> None:
        del self.linked[name]
        for actor in self.machines._linked[name].actors.values():
            self.ends.setdefault(self.actors.index(actor), KILLED)

    def check(self) -> None:
        machines, linked = self.machines, self.machines._linked
        assert linked.keys() == self.linked.keys()
        members = {name for name, seen in self.linked.items() if seen.equipped and not seen.out}
        assert set(machines._members) == members and machines.count == len(members)
        free: dict[str, int] = {}
        for name, seen in self.linked.items():
            machine = linked[name]
            held = machine.actors.values()
            orders = [o for o in seen.told.orders if isinstance(o, m.StartActor)]
            assert {(o.role, o.index, o.incarnation) for o in orders} >= machine.actors.keys()
            assert all(not actor.over and actor.machine is machine for actor in held)
            assert all(actor.order.role == seen.role for actor in held)
            assert seen.equipped or not held
            assert machine.places == (seen.places if seen.equipped else None)
            room = 1 if seen.places is None else seen.places - len(held)
            assert room >= 0, "more actors than places"
            if name in members:
                free[seen.role] = free.get(seen.role, 0) + room
        for at, actor in enumerate(self.actors):
            holders = [name for name in linked if actor in linked[name].actors.values()]
            assert actor.over == (at in self.ends)
            assert len(holders) <= (not actor.over)
            if actor.over:
                actor.end(7, "once more")
                assert actor._code == self.ends[at], "the first end is the one that counts"
            elif not holders:
                assert actor in machines._waiting
                assert not free.get(actor.order.role), "it waits, and there is a place"


STEPS = st.tuples(
    st.sampled_from((*ASKED, *SAID)), st.sampled_from(("one", *NAMES)), st.sampled_from((0, 1, 2))
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model has no files."""
    run = tmp_path_factory.mktemp("run")
    (run / INITIAL).mkdir()
    (run / RUN_TOML).write_text("")
    (run / COORDINATOR_ADDRESS).write_text("tcp:127.0.0.1:9")
    return run


LEFT: list[Step] = [("joins", "one", 0), ("leaves", "one", 0), ("is equipped", "one", 2)]
REFUSED: list[Step] = [("joins", "one", 0), ("is equipped", "one", 0), ("is refused", "one", 0)]
KILLED_BEFORE: list[Step] = [("start", "one", 0), ("kill", "one", 0), ("joins", "one", 0)]
OVER: list[Step] = [("dismiss", "one", 0), ("joins", "two", 0), ("is equipped", "two", 0)]
TWO_ACTORS: list[Step] = [("joins", "one", 0), ("is equipped", "one", 1)]
TWO_ACTORS += [("start", "one", 0)] * 2
ENDS: list[Step] = [("ends", "one", 0), ("leaves", "one", 0), ("ends", "one", 2)]


@example(steps=[*LEFT, ("start", "one", 0)])
@example(steps=[*REFUSED, ("is equipped", "one", 0), ("start", "one", 0)])
@example(steps=[*KILLED_BEFORE, ("is equipped", "one", 0), *OVER])
@example(steps=[*TWO_ACTORS, *ENDS, ("is lost", "one", 0)])
@given(steps=st.lists(STEPS, min_size=10, max_size=30))
def test_an_account_of_machines_is_right_after_any_order(steps: list[Step], run: Path) -> None:
    config = load(None, ["cluster.kind=agents", "cluster.reward_agents=1", "rollout.actors=2"], {})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            account = Account(Machines(config, run, lambda note: None), nursery)
            for step in steps:
                await account.step(*step)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())
