"""Every kind of fault that only a run with agents may meet. Each is a small async function of the
`Injector`, as those of `fault_kinds.py` are."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import trio

from asyncrl.simulation.fake_player import AgentFailing
from asyncrl.simulation.fault_kinds import (
    Kind,
    cut_link,
    delay_link,
    half_open_link,
    kill,
    repeat_link,
    restart_beside,
    stop,
)
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.sim_process import SimProcess

AGENT_KINDS: dict[str, Kind] = {
    "kill_agents": partial(kill, "agents"),
    "stop_agents": partial(stop, "agents"),
    "link_delayed_agents": partial(delay_link, "link_delayed_agents", ["agents"]),
    "link_cut_agents": partial(cut_link, "link_cut_agents", ["agents"]),
    "link_half_open_agents": partial(half_open_link, "link_half_open_agents", ["agents"]),
    "link_repeats_agents": partial(repeat_link, ["agents"]),
    "restart_beside_agents": partial(restart_beside, "restart_beside_agents", ["agents"]),
}

HANGING_S = 3600.0
"""Virtual seconds that the agents of one fault hang at most if they do so one after another."""

SAID = (b"Ask", b"Enough", b"Note", b"GiveReward", b"GiveFailure", b"Played")
HEARD = (b"Play", b"Reply", b"StopPlaying")
"""Messages of an agents actor, and those to it, by which the states of an episode change."""


async def _agents(injector: Injector, draw: random.Random) -> SimProcess | None:
    process = await injector.one(draw, ["agents"])
    return None if process is None or process.player is None else process


def _lives(injector: Injector, process: SimProcess) -> bool:
    return process in injector.world.alive(process.role)


async def _outlast(true: Callable[[], bool], injector: Injector, process: SimProcess) -> None:
    """Wait until it is true or this actor has ended, for as long as its agents may think."""
    while not await injector.until(lambda: true() or not _lives(injector, process)):
        pass


async def _fail(what: str, fails: AgentFailing, injector: Injector, draw: random.Random) -> None:
    """The next agents that act fail. If their actor ends before, those of the next one do."""
    while (process := await _agents(injector, draw)) is not None:
        if await _failed(what, fails, process, injector, draw):
            return


async def _failed(
    what: str, fails: AgentFailing, process: SimProcess, injector: Injector, draw: random.Random
) -> bool:
    """Have this actor's next agents fail. Returns False if none did in time: it ended, or another
    fault had yet to happen to them."""
    player, met = process.player, False
    assert player is not None

    def faulted() -> None:
        nonlocal met
        met = True
        injector.happened(what, process)

    if not player.failures:
        player.faulted = faulted
        player.fails, player.failures = fails, draw.choice((1, 1, 3, 8))
        if fails == "hang":
            most = max(1, int(HANGING_S / injector.world.config.agent.episode_s))
            player.failures = min(player.failures, most)
    await _outlast(lambda: not player.failures, injector, process)
    return met


AGENT_KINDS |= {
    "agent_raises": partial(_fail, "agent_raises", "raised"),
    "agent_crashes": partial(_fail, "agent_crashes", "crashed"),
    "agent_gives_up": partial(_fail, "agent_gives_up", "given up"),
    "agent_hangs": partial(_fail, "agent_hangs", "hang"),
    "agents_lost": partial(_fail, "agents_lost", "lost"),
}


async def agent_slow(injector: Injector, draw: random.Random) -> None:
    """Agents that think for long."""
    if (process := await _agents(injector, draw)) is not None and process.player is not None:
        player = process.player
        player.slowness = draw.choice((5.0, 30.0))
        await injector.during("agent_slow", draw.choice((2.0, 20.0)), process)
        player.slowness = 1.0


async def _amid(what: str, victim: str, injector: Injector, draw: random.Random) -> None:
    """A process is killed at the moment of a message of an episode, which is lost with it or
    arrives. If the actor whose message it is ends before, that of the next one is awaited."""
    while (process := await _agents(injector, draw)) is not None:
        if await _killed(what, victim, process, injector, draw):
            return


async def _killed(
    what: str, victim: str, process: SimProcess, injector: Injector, draw: random.Random
) -> bool:
    """Kill at the moment of a message of this actor, or to it. Returns False if none came in time:
    it ended, or another fault had yet to happen to its link."""
    said, lost = draw.random() < 0.7, draw.random() < 0.5
    tag, left = draw.choice(SAID if said else HEARD), draw.choice((0, 1, 3))
    wire, met = process.pipes[0].out if said else process.pipes[0].into, False

    def edit(frame: bytes) -> Iterable[bytes]:
        nonlocal left, met
        if tag not in frame[:64]:
            return [frame]
        left -= 1
        if left >= 0:
            return [frame]
        wire.edit, met = None, True
        injector.happened(what, None if victim == "everything" else process)
        if victim == "everything":
            injector.world.kill_everything()
        else:  # whose message it is, which may run beside one that has its name by now
            (injector.world.processes[victim] if victim else process).kill()
        return [] if lost else [frame]

    if wire.edit is None:
        wire.edit = edit
    await _outlast(lambda: wire.edit is None, injector, process)
    return met


AGENT_KINDS |= {
    "agent_slow": agent_slow,
    "kill_agents_amid": partial(_amid, "kill_agents_amid", ""),
    "kill_coordinator_amid": partial(_amid, "kill_coordinator_amid", "coordinator-0"),
    "kill_everything_amid": partial(_amid, "kill_everything_amid", "everything"),
}


# None of AGENT_KINDS: of those each seed's faults are drawn, and one more would change all of them.
async def coordinator_starved(injector: Injector, draw: random.Random) -> None:
    """A coordinator that has a core for moments only: it finds much that it was told meanwhile
    before its loop turns again."""
    strike = None
    for _ in range(draw.choice((30, 300, 1000))):
        if (process := await injector.one(draw, ["coordinator"])) is None:
            return
        strike = strike or injector.happened("coordinator_starved", process)
        process.freeze(True)
        await trio.sleep(draw.choice((0.05, 0.3, 1.0)) * draw.uniform(0.5, 1.5))
        process.freeze(False)
        strike.until = trio.current_time()
        await trio.sleep(draw.choice((0.001, 0.02, 0.1)))


async def agents_repeat(injector: Injector, draw: random.Random) -> None:
    """An agents actor says once more how attempts ended, among what it says of others."""
    times = draw.choice((5, 20))
    while times and (process := await _agents(injector, draw)) is not None:
        times = await _repeated(times, process, injector, draw)


async def _repeated(
    times: int, process: SimProcess, injector: Injector, draw: random.Random
) -> int:
    """Have this actor repeat itself so often. Returns how often it has not, if it ended before."""
    wire, ends, said = process.pipes[0].out, deque[bytes](maxlen=4), 0
    every = draw.choice((2, 5))

    def edit(frame: bytes) -> Iterable[bytes]:
        nonlocal said, times
        said += 1
        yield frame
        if b"Played" in frame[:64]:
            ends.append(frame)
        elif ends and not said % every:
            injector.happened("agents_repeat", process)
            times -= 1
            yield draw.choice(ends)
        if not times:
            wire.edit = None

    await _outlast(lambda: wire.edit is None, injector, process)  # of another fault
    wire.edit = edit
    await _outlast(lambda: wire.edit is None, injector, process)
    return times


OF_CROWDED = {"coordinator_starved": coordinator_starved, "agents_repeat": agents_repeat}
