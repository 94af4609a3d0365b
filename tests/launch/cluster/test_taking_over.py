"""Actors that may go on with a server that another one has left: none that is started again where
it has ended by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from memory_link import memory_links

from asyncrl.config import Config
from asyncrl.config.cores import divide_cores
from asyncrl.launch.cluster import agent as agent_module
from asyncrl.launch.cluster import local_placement
from asyncrl.launch.cluster.agent import _Agent
from asyncrl.launch.cluster.local_placement import TAKES_OVER, LocalPlacement
from asyncrl.launch.cluster.places import Places
from asyncrl.messages import Join, StartActor


async def no_signals() -> AsyncIterator[int]:
    """No signal, ever."""
    await trio.sleep_forever()
    yield 0


class Ended:
    """A process that has ended."""

    async def wait(self) -> int:
        return 1

    async def kill_group(self) -> int:
        return 1

    def tail(self) -> str:
        return ""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, int, int], bool]]:
    """The actors that are started, each with its word: True if it may take over a server."""
    found = []

    def start_actor(
        server: Any, run: Path, actor: Any, cores: Any, arguments: Sequence[str], *_: Any
    ) -> Ended:
        found.append((actor, TAKES_OVER in arguments))
        return Ended()

    for module in (agent_module, local_placement):
        monkeypatch.setattr(module, "start_actor", start_actor)
    return found


def test_on_the_launchers_machine_the_first_of_a_life_may(tmp_path: Path, started: Any) -> None:
    config = Config()
    placement: Any = LocalPlacement(config, tmp_path, None, divide_cores([0, 1], 1, 1, 0))  # type: ignore[arg-type]
    for incarnation in (0, 1, 2):
        placement.start("rollout", 0, incarnation, resume=False)
    placement.start("rollout", 0, 0, resume=True)
    assert started == [
        (("rollout", 0, 0), True),
        (("rollout", 0, 1), False),
        (("rollout", 0, 2), False),
        (("rollout", 0, 0), True),
    ]


async def test_on_a_machine_one_that_ended_there_may_not_until_the_next_life(
    tmp_path: Path, started: Any
) -> None:
    """Its machine was cut off, and joins again while its actors are at their fourth start."""
    here, _ = memory_links()
    machine = _Agent(here, tmp_path, [0, 1], Join("m", 32 * "0", 2, {}), no_signals())
    places = Places([0, 1], room=2, gpus=0, each=0)

    async def start(index: int, incarnation: int) -> bool:
        order = StartActor("rollout", index, incarnation, False, "tcp:127.0.0.1:1", "")
        place = places.take(("rollout", index, incarnation))
        assert place is not None
        process: Any = machine._started(None, order, place)  # type: ignore[arg-type]
        await machine._until_it_ends(("rollout", index, incarnation), process, places)
        return bool(started[-1][1])

    assert await start(0, 3)
    assert not await start(0, 4)
    assert await start(1, 2), "another one may"
    assert not await start(1, 3)
    assert await start(0, 0) and await start(1, 0), "a life begins"
