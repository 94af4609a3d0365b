"""The agents' door of a rollout actor. Invariant: a session that has ended is a line of `RUN/sessions/rollout-N.jsonl`, at the latest when
the actor has drained; what its engine samples for agents is nobody's lease.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import trio

from asyncrl.config import Config
from asyncrl.door.app import application
from asyncrl.door.door import Door, Settings
from asyncrl.door.engine import EngineGenerator
from asyncrl.door.serve import serve
from asyncrl.engines.protocol import Chunk, Engine
from asyncrl.places import DOOR_KEY, SESSIONS
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer
from asyncrl.waits import Waits

MODEL = "policy"
"""What agents call the model."""

logger = logging.getLogger(__name__)


class Agents:
    """An open door: it takes its chunks, and closes before the engine does."""

    def __init__(self, generator: EngineGenerator) -> None:
        self._generator = generator
        self.closing, self.closed = trio.Event(), trio.Event()

    def take(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Those of leases; the others are the door's."""
        return self._generator.take(chunks)

    async def close(self) -> None:
        """Take no more calls, end those that run, and return when every session is written."""
        self.closing.set()
        await self.closed.wait()


@asynccontextmanager
async def open_agents(config: Config, run: Path, initial: Path, index: int, engine: Engine, waits: Waits) -> AsyncIterator[Agents]:
    """The door of the rollout actor `index`, at its port of loopback. The engine must run while it is open."""
    generator = EngineGenerator(engine)
    agents, tokenizer = Agents(generator), _tokenizer(initial)
    settings = Settings(model=MODEL, context_tokens=config.engine.context_tokens, vocabulary=tokenizer.sampled)
    door = Door(generator, tokenizer, settings, waits)
    app = application(door, (run / DOOR_KEY).read_text())
    path = run / SESSIONS / f"rollout-{index}.jsonl"
    path.parent.mkdir(exist_ok=True)
    port, drain_s = config.door.port + index, config.run.grace_s / 2

    async def attend(*, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as writing:
            writing.start_soon(_write, door, path)
            await serve(door, app, port=port, close=agents.closing, drain_s=drain_s, task_status=task_status)
            writing.cancel_scope.cancel()
        with trio.move_on_after(0):  # what ended with the door
            await _write(door, path)
        agents.closed.set()

    async with trio.open_nursery() as nursery:
        url = await nursery.start(attend)
        logger.info("agents are answered at %s", url)
        yield agents
        nursery.cancel_scope.cancel()


def _tokenizer(initial: Path) -> Tokenizer:
    """With the model's chat template, where it has one."""
    try:
        return Tokenizer(initial, chat=True)
    except TaskError as error:
        logger.info("agents have /v1/completions alone: %s", error)
        return Tokenizer(initial)


async def _write(door: Door, path: Path) -> None:
    """One line for each session, in the order in which they end."""
    while True:
        finished = await door.fetch()
        await trio.to_thread.run_sync(partial(_append, path, msgspec.json.encode(finished) + b"\n"))


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
