"""Injection of faults into a world, and their count. A fault is counted when it has really happened
to somebody."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import trio
from trio.testing import MockClock

from asyncrl.ipc.messages import Role
from asyncrl.simulation.fake_world import FakeWorld
from asyncrl.simulation.network import MemoryPipe
from asyncrl.simulation.sim_process import SimProcess

LOOK_S = 0.05
"""Seconds between two looks for a victim."""
PATIENCE_S = 60.0
"""Seconds after which a fault without a victim is given up."""


class Injector:
    """Injects a plan's faults into a world. `injected` counts them by kind, `here` those that touch
    the present life, `lasting` those that last now."""

    def __init__(self, world: FakeWorld, clock: MockClock) -> None:
        self.world, self.clock = world, clock
        self.injected: Counter[str] = Counter()
        self.here: Counter[str] = Counter()
        self.lasting: Counter[str] = Counter()
        self._repeats: dict[str, tuple[list[bytes], bool]] = {}
        self._garbled: set[str] = set()  # starts of actors that sent bad chunks
        world.dialled = self._dialled

    def life(self) -> None:
        """Begin another life."""
        self.here = +self.lasting
        self._repeats.clear()  # actors end with their run, and what they had said ends with them

    def happened(self, kind: str) -> None:
        self.injected[kind] += 1
        self.here[kind] += 1

    async def one(
        self, draw: random.Random, roles: Sequence[Role], connected: bool = True
    ) -> SimProcess | None:
        """An actor of one of these roles, drawn at random; None if none comes."""
        with trio.move_on_after(PATIENCE_S):
            while True:
                found = [
                    p for role in roles for p in self.world.alive(role) if not connected or p.pipes
                ]
                if found:
                    return draw.choice(sorted(found, key=lambda p: p.name))
                await trio.sleep(LOOK_S)
        return None

    async def until(self, true: Callable[[], bool]) -> bool:
        with trio.move_on_after(PATIENCE_S):
            while not true():  # noqa: ASYNC110 (nobody tells a fault when its moment has come)
                await trio.sleep(LOOK_S)
            return True
        return False

    async def during(self, kind: str, seconds: float) -> None:
        """Have a fault last so many seconds, whatever ends meanwhile."""
        self.happened(kind)
        self.lasting[kind] += 1
        try:
            await trio.sleep(seconds)
        finally:
            self.lasting[kind] -= 1

    def garbled(self, process: SimProcess, chunks: int) -> None:
        """Say that an actor sends so many bad chunks."""
        start = self.world.start_of(process)
        self._garbled.add(start)
        self.world.observer.on_garbage(start, chunks)

    def repeat(self, process: SimProcess) -> None:
        """Have whoever takes this actor's place say again what it said last."""
        garbled = self.world.start_of(process) in self._garbled
        self._repeats[process.name] = list(process.pipes[0].sent), garbled

    def _dialled(self, process: SimProcess, pipe: MemoryPipe) -> None:
        pipe.sent = deque(maxlen=6)
        frames, garbled = self._repeats.pop(process.name, ([], False))
        if frames:
            first = True

            def edit(frame: bytes) -> Iterable[bytes]:
                nonlocal first
                yield frame
                if first:
                    first = False
                    self.happened("link_repeats")
                    if garbled:
                        self.garbled(process, len(frames))
                    yield from (old for old in frames if b"Hello" not in old)

            pipe.out.edit = edit
