"""The agents' gateway of a rollout actor.

Invariant: a session that has ended is a line of `RUN/sessions/rollout-N.jsonl`, at the latest when
the actor has drained. Tokens that the engine samples for agents belong to no lease. The task's
verifiers run in processes that can be killed, as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import msgspec
import trio

from actors.reporting import Reporter
from actors.reward_actor import VerifierPool, open_verifiers
from actors.session_file import SessionFile, write_sessions
from asyncrl.config import Config
from asyncrl.engines.protocol import Chunk, Engine
from asyncrl.gateway.app import application, has_key
from asyncrl.gateway.engine_generator import EngineGenerator, first_number
from asyncrl.gateway.gateway import Gateway
from asyncrl.gateway.gateway_settings import Settings
from asyncrl.gateway.serve import serve
from asyncrl.httpd.asgi import HttpRefusal
from asyncrl.ipc.keys import read_private
from asyncrl.ipc.messages import Finish, Verdict
from asyncrl.ipc.waits import Waits
from asyncrl.observe.run_dir import GATEWAY_KEY, SESSIONS
from asyncrl.sessions.recorder import Bounds
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.text import Tokenizer

MODEL = "policy"
"""The name by which agents call the model."""

logger = logging.getLogger(__name__)


class Agents:
    """An open gateway. It takes its chunks, and closes before the engine does."""

    def __init__(self, generator: EngineGenerator, waits: Waits, close_s: float) -> None:
        self._generator, self._waits, self._close_s = generator, waits, close_s
        self.closing, self.closed = trio.Event(), trio.Event()

    def take(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Keep the chunks of agents for the gateway. Returns those of leases."""
        return self._generator.take(chunks)

    async def close(self) -> None:
        """Take no more calls, end those that run, and return when every session is written. Raises
        WaitExpired if that takes longer than `supervision.grace_s`."""
        self.closing.set()
        with self._waits.on("the agents' gateway", owner="rollout", deadline_s=self._close_s):
            await self.closed.wait()


class PooledTaskVerifier:
    """The run's task as a `TaskVerifier`, which judges so many replies at a time. What ends its
    verifier processes ends the actor."""

    def __init__(
        self, task: Task, verifiers: VerifierPool, concurrency: int, nursery: trio.Nursery
    ) -> None:
        self._task, self._verifiers, self._nursery = task, verifiers, nursery
        self._places, self._reading = trio.Semaphore(concurrency), trio.CapacityLimiter(1)

    async def prompt(self, prompt_index: int) -> str:
        return await trio.to_thread.run_sync(
            self._task.prompt, "train", prompt_index, limiter=self._reading, abandon_on_cancel=True
        )

    async def judge(self, prompt_index: int, reply: bytes, finish: Finish) -> Verdict:
        """Judge a reply, as long as the caller waits. It runs in the actor's nursery, because an
        error of the verifiers must end the actor and not this one call alone."""
        send, receive = trio.open_memory_channel[Verdict](1)
        scope = trio.CancelScope()

        async def judge() -> None:
            with scope:
                async with self._places:
                    given = await self._verifiers.judge("train", prompt_index, reply, finish)
                send.send_nowait(given.verdict)

        self._nursery.start_soon(judge)
        try:
            return await receive.receive()
        finally:
            scope.cancel()


@asynccontextmanager
async def open_agents(
    config: Config,
    run: Path,
    initial: Path,
    index: int,
    incarnation: int,
    engine: Engine,
    waits: Waits,
    reporter: Reporter,
) -> AsyncIterator[Agents]:
    """Open the gateway of the rollout actor `index`, at its port of loopback. The engine must run
    while it is open. Raises WorkersLost if the task cannot be opened."""
    generator = EngineGenerator(engine, first_number(index, incarnation))
    agents = Agents(generator, waits, config.supervision.grace_s)
    tokenizer = chat_tokenizer(initial)
    settings = _settings(config.engine.context_tokens, tokenizer.sampled)
    path = run / SESSIONS / f"rollout-{index}.jsonl"
    path.parent.mkdir(exist_ok=True)
    most = config.gateway.session_bytes // config.rollout.actors

    def refused(refusal: HttpRefusal) -> None:
        reporter.count(f"agents_refused_{refusal}")

    async def attend(gateway: Gateway, *, task_status: trio.TaskStatus[str]) -> None:
        key = read_private(run / GATEWAY_KEY, 1024).decode()
        with closing(SessionFile(path, most)) as file:
            async with trio.open_nursery() as writing:
                writing.start_soon(write_sessions, gateway, file, reporter, waits, agents.closing)
                # what runs is interrupted at once, as leases are when a run is over
                await serve(
                    gateway,
                    application(gateway, key),
                    partial(has_key, key.encode()),
                    port=config.gateway.port + index,
                    close=agents.closing,
                    drain_s=0.0,
                    refused=refused,
                    task_status=task_status,
                )
                writing.cancel_scope.cancel()  # it writes what is there, and ends
        agents.closed.set()

    task = await trio.to_thread.run_sync(open_task, config.task, config.run.seed)
    async with (
        open_verifiers(config.task, config.run.seed, str(initial), waits) as verifiers,
        trio.open_nursery() as nursery,
    ):
        verifier = PooledTaskVerifier(task, verifiers, config.reward.concurrency, nursery)
        url = await nursery.start(attend, Gateway(generator, tokenizer, settings, waits, verifier))
        logger.info("agents are answered at %s", url)
        yield agents
        nursery.cancel_scope.cancel()


def _settings(context_tokens: int, vocabulary: int) -> Settings:
    """Room for as many calls as may run at a time, each with all of the context."""
    settings = Settings(model=MODEL, context_tokens=context_tokens, vocabulary=vocabulary)
    bounds = Bounds()
    most = max(bounds.all_tokens, settings.calls * context_tokens)
    return msgspec.structs.replace(
        settings, bounds=msgspec.structs.replace(bounds, all_tokens=most)
    )


def chat_tokenizer(initial: Path) -> Tokenizer:
    """The model's tokenizer, with its chat template if it has one."""
    try:
        return Tokenizer(initial, chat=True)
    except TaskError as error:
        logger.info("agents have /v1/completions alone: %s", error)
        return Tokenizer(initial)
