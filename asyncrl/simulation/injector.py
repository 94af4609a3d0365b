"""Injection of faults into a world, and their count. A fault is counted when it has really happened
to somebody; it is remembered to whom and when, so that a bad end can be laid to its cause alone."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from asyncrl.messages import Role
from asyncrl.simulation.fake_world import FakeWorld
from asyncrl.simulation.network import MemoryPipe
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.virtual_clock import VirtualClock

LOOK_S = 0.05
"""Seconds between two looks for a victim."""
PATIENCE_S = 60.0
"""Seconds after which a fault without a victim is given up."""


EVERYBODY = "", "coordinator-0"
"""Victims whose fault touches every actor: all of them, and the one that they all talk to."""


@dataclass
class Strike:
    """A fault that touches the actor `victim`, or everybody if that is empty, between two times
    (virtual seconds)."""

    kind: str
    victim: str
    since: float
    until: float


class Injector:
    """Injects a plan's faults into a world. `injected` counts them by kind, `strikes` says whom
    each touched, and when."""

    def __init__(self, world: FakeWorld, clock: VirtualClock) -> None:
        self.world, self.clock = world, clock
        self.injected: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        self._endless: list[Strike] = []  # those that last as long as the life
        self._repeats: dict[str, tuple[list[bytes], bool]] = {}
        self._garbled: set[str] = set()  # starts of actors that sent bad chunks
        world.dialled = self._dialled

    def life(self) -> None:
        """Begin another life."""
        for strike in self._endless:
            strike.until = trio.current_time()
        self._endless.clear()
        self._repeats.clear()  # actors end with their run, and what they had said ends with them

    def happened(self, kind: str, process: SimProcess | None = None) -> Strike:
        """Count a fault, which touches `process`, or everybody."""
        self.injected[kind] += 1
        return self.struck(kind, process)

    def struck(self, kind: str, process: SimProcess | None = None) -> Strike:
        """Remember a fault that is not counted, or not yet."""
        now = trio.current_time()
        self.strikes.append(Strike(kind, "" if process is None else process.name, now, now))
        return self.strikes[-1]

    def for_good(self, kind: str, process: SimProcess | None = None) -> None:
        """Count a fault that lasts as long as this life."""
        strike = self.happened(kind, process)
        strike.until = math.inf
        self._endless.append(strike)

    def explains(self, kinds: str, victims: Iterable[str] | None, window_s: float) -> bool:
        """True if a fault of one of these kinds (a pattern) touched one of the actors `victims`, or
        everybody, within the last `window_s` seconds. None stands for any actor. Seconds over which
        the clock has leapt do not count."""
        since = trio.current_time() - window_s
        leapt = [s for s in self.strikes if s.kind == "clock_jumps" and s.until >= since]
        since -= sum(strike.until - strike.since for strike in leapt)
        touched = None if victims is None else {*EVERYBODY, *victims}
        return any(
            strike.until >= since
            and re.fullmatch(kinds, strike.kind)
            and (touched is None or strike.victim in touched)
            for strike in self.strikes
        )

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

    async def during(self, kind: str, seconds: float, process: SimProcess | None = None) -> None:
        """Have a fault last so many seconds, whatever ends meanwhile."""
        strike = self.happened(kind, process)
        strike.until = math.inf
        try:
            await trio.sleep(seconds)
        finally:
            strike.until = trio.current_time()

    def garbled(self, process: SimProcess, chunks: int) -> None:
        """Say that an actor sends so many bad chunks."""
        start = self.world.start_of(process)
        self._garbled.add(start)
        self.world.observer.on_garbage(start, chunks)

    def repeat(self, process: SimProcess) -> None:
        """Have whoever takes this actor's place say again what it said last."""
        garbled = self.world.start_of(process) in self._garbled
        self._repeats[process.name] = list(process.pipes[0].sent), garbled

    @staticmethod
    def repeated(process: SimProcess) -> str:
        """The kind of fault that an actor which repeats itself has."""
        return "link_repeats_agents" if process.role == "agents" else "link_repeats"

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
                    self.happened(self.repeated(process), process)
                    if garbled:
                        self.garbled(process, len(frames))
                    yield from (old for old in frames if b"Hello" not in old)

            pipe.out.edit = edit
