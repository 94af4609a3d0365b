"""`asyncrl play`: one episode of a run's agent in the foreground, or one response where the run has
no agent. It trains nothing, and leaves nothing behind.

The agent, its gateway, the engine and the verifiers are those of a run. The coordinator's part is
`OneEpisode`.
"""

from __future__ import annotations

import logging
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.actors.agents_gateway import EpisodeWatch, open_episodes
from asyncrl.actors.reporting import Reporter
from asyncrl.actors.reward_actor import open_verifiers
from asyncrl.actors.verifier_process import Reply as VerifierReply
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.actors.worker_forks import WorkersLost
from asyncrl.config import Config, ConfigError
from asyncrl.config.errors import input_error
from asyncrl.config.keyed_models import keyed_models
from asyncrl.config.mix import named as task_name
from asyncrl.config.paths import reachable
from asyncrl.config.schema import PLAYED_ELSEWHERE
from asyncrl.engines.protocol import Chunk, Engine, Request
from asyncrl.escape import escaped
from asyncrl.experience.image_marks import without_images
from asyncrl.launch import preflight
from asyncrl.launch.hub.hub_models import named_models
from asyncrl.launch.model_directories import check_directory
from asyncrl.launch.play.one_episode import OneEpisode
from asyncrl.launch.play.refusals import Refusals
from asyncrl.launch.play.transcript import Transcript
from asyncrl.messages import (
    Ask,
    Enough,
    GiveFailure,
    GiveReward,
    Message,
    Note,
    NoVerdict,
    Play,
    Played,
    Reply,
    Split,
    Verdict,
)
from asyncrl.own_folder import own_folder
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.runtime.processes.told_to_end import ending, obeying
from asyncrl.runtime.run_dir import GATEWAY_KEY, JUDGED
from asyncrl.runtime.waiting import Doing, waiting
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.judge_checks import check_judging, opened
from asyncrl.tasks.text import Tokenizer
from asyncrl.words import sentence

E = TypeVar("E", bound=BaseException)
SLOTS = 8
"""Calls that the engine decodes at a time."""

Say = Callable[[str], None]


def play(
    config: Config, split: Split, prompt: int, seed: int, replies: Sequence[str], say: Say
) -> int:
    """Play the episode of a prompt of `split`, and print by `say` what happens. A seed gives the
    same episode again, of an agent that draws by it. With `replies` the model is a script that says
    these in turn, the last one again and again. Returns the exit status: 0, or 1 if the agent
    failed or there is no reward. Raises ConfigError."""
    if config.agent.run == PLAYED_ELSEWHERE and not config.agent.port:
        raise ConfigError(
            "agent.port is 0, but programs elsewhere must know the gateway's port: set it."
        )
    with waiting() as doing, named_models(doing) as named:
        config = named.find(config, None)
        if named.missing:
            named.download()
            config = named.settled(config)
        with reachable():
            config = _of_one(preflight.resolved(config, None, datetime.now()), bool(replies))
            doing("opening the task")
            task = opened(config.task, config.run.seed)
            check_judging(config.task, task)
            keyed_models(config.agent)
            if config.model.path:
                check_directory("model.path", Path(config.model.path))
        if not 0 <= prompt < task.size(split):
            raise ConfigError(
                f"--prompt is {prompt}, and the {split} split has {task.size(split)} prompts, "
                "numbered from 0."
            )
        initial = _initial(config, doing)
    one = Play(
        rollout=0,
        attempt=1,
        split=split,
        prompt_index=prompt,
        seed=seed,
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=config.rollout.temperature,
        notes={},
    )
    with _unlogged(), _ended_once(), own_folder("play") as folder:
        player = partial(_play, config, task, initial, folder, one, replies, say)
        try:
            return trio.run(_unless_told_to_end, player)
        except BaseException as error:
            if (wrong := input_error(error) or _within(error, WorkersLost)) is None:
                raise
            raise ConfigError(f"{escaped(str(wrong)).removesuffix('.')}.") from None


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep log lines off the terminal in the block: the transcript says what happens."""
    root, nowhere = logging.getLogger("asyncrl"), logging.NullHandler()
    root.addHandler(nowhere)
    try:
        yield
    finally:
        root.removeHandler(nowhere)


@contextmanager
def _ended_once() -> Iterator[None]:
    """Let no signal end the process in the block, where each is listened for: a second one would
    leave behind what the block removes at its end."""
    before = {number: signal.signal(number, lambda *_: None) for number in ending()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _within(error: BaseException, kind: type[E]) -> E | None:
    """The first error of a kind in an error, which may be a group of them; None if there is
    none."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _within(one, kind))), None)
    return error if isinstance(error, kind) else None


def _of_one(config: Config, scripted: bool) -> Config:
    """The settings of one episode: a small engine, and with a script a model that has learned
    nothing."""
    return msgspec.structs.replace(
        config,
        engine=msgspec.structs.replace(config.engine, kind="embedded", slots=SLOTS),
        model=msgspec.structs.replace(config.model, warmup_steps=0) if scripted else config.model,
    )


def _initial(config: Config, doing: Doing) -> Path:
    """The model that a run would start from, which may have to be warmed up now."""
    import torch
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from asyncrl.bundled.warmup import prepare_model

    torch.set_num_threads(1)  # as in a run: more make so small a model slower
    disable_progress_bar()
    set_verbosity_error()
    doing("preparing the model")
    steps = count(1)

    def lesson(_: object) -> None:
        doing(f"warming up the bundled model, step {next(steps)} of {config.model.warmup_steps}")

    try:
        return prepare_model(config, lesson)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None


async def _unless_told_to_end(player: Callable[[], Awaitable[int]]) -> int:
    """The exit status of what is played, or that of the first signal, which ends it with all that
    it opened."""
    told, playing = list[signal.Signals](), trio.CancelScope()

    def end(number: signal.Signals) -> None:
        told.append(number)
        playing.cancel()

    status = 1
    async with obeying(end):
        with playing:
            status = await player()
    return 128 + told[0] if told else status


async def _play(
    config: Config,
    task: Task,
    initial: Path,
    run: Path,
    one: Play,
    replies: Sequence[str],
    say: Say,
) -> int:
    waits = own_waits()
    write_key(run / GATEWAY_KEY, secrets.token_urlsafe().encode())
    tokenizer = Tokenizer(initial, chat=config.task.chat)
    transcript = Transcript(say, partial(tokenizer.decode, special=True))
    transcript.begin(one, task_name(config.task))
    engine = await _open_engine(config, initial, tokenizer, run, replies)
    episode = OneEpisode(
        one, max_calls=config.agent.max_calls, context_tokens=config.engine.context_tokens
    )
    desk = _Desk(episode, engine, transcript)
    async with (
        _decoding(engine, desk),
        open_verifiers(config.task, config.run.seed, str(initial), waits) as verifiers,
    ):
        if config.agent.run:
            await _have_played(config, run, initial, waits, desk, transcript, say)
        else:
            ids = np.array(tokenizer.encode(task.prompt(one.split, one.prompt_index)), np.int32)
            await desk.ask_once(ids, one.max_new_tokens)
        if desk.failed:
            return 1
        if desk.rewarded:
            return 0
        if not desk.episode.turns:
            raise ConfigError("the agent made no call and gave no reward, so nothing is judged.")
        last = desk.episode.turns[-1]
        reply = await verifiers.judge(
            one.split,
            one.prompt_index,
            last.response.tobytes(),
            last.finish,
            without_images(last.context.tobytes()),
        )
        verdict = await _verdict(config, run, waits, reply)
        transcript.verdict(verdict)
        return int(isinstance(verdict, NoVerdict))


async def _verdict(config: Config, run: Path, waits: Waits, reply: VerifierReply) -> Verdict:
    """The verdict of a verifier's reply, which may be to ask a judge on a server."""
    if isinstance(reply, TimedVerdict):
        return reply.verdict
    from asyncrl.judges.judge_client import open_judge

    async with open_judge(config, waits, run / JUDGED) as judge:
        return await judge.ask(reply)


async def _open_engine(
    config: Config, initial: Path, tokenizer: Tokenizer, run: Path, replies: Sequence[str]
) -> Engine:
    """The engine, ready to decode version 0."""
    from asyncrl.launch.play.own_engine import embedded, scripted

    if replies:
        engine = scripted(config, tokenizer, replies)
        await engine.load(0, None)
        return engine
    with waiting() as doing:
        doing("loading the model")
        model, weights = await trio.to_thread.run_sync(embedded, config, initial, tokenizer, run)
        await model.load(0, weights)
    return model


async def _have_played(
    config: Config,
    run: Path,
    initial: Path,
    waits: Waits,
    desk: _Desk,
    transcript: Transcript,
    say: Say,
) -> None:
    """Have the agent play, and return when it has."""
    watch = EpisodeWatch(
        partial(Refusals, transcript.error),
        lambda play, attempt: transcript.ended(attempt),
        transcript.warned,
    )
    async with (
        open_episodes(config, run, initial, 0, waits, Reporter(waits), watch) as (
            episodes,
            sessions,
        ),
        trio.open_nursery() as nursery,
    ):
        if config.agent.run == PLAYED_ELSEWHERE:
            say(
                f"── a program elsewhere plays: its key is in {escaped(str(run / GATEWAY_KEY))}, "
                f"the port is {config.agent.port}"
            )
        desk.answer = sessions.take
        nursery.start_soon(sessions.send, desk)
        episodes.begin(desk.episode.play, nursery)
        await desk.over.wait()
        nursery.cancel_scope.cancel()


class _Desk:
    """Stands between the gateway's sessions, which send it messages, and the engine."""

    def __init__(self, episode: OneEpisode, engine: Engine, transcript: Transcript) -> None:
        self.episode, self._engine, self._transcript = episode, engine, transcript
        self.over = trio.Event()
        self.failed, self.rewarded = False, False
        self.answer: Callable[[Reply, memoryview, memoryview], None] = lambda *_: None

    async def ask_once(self, ids: NDArray[np.int32], most: int) -> None:
        """Ask the engine for the only response there is, and wait for it."""
        play = self.episode.play

        def ended(reply: Reply, *_: memoryview) -> None:
            if reply.finish or reply.refused:
                self.over.set()

        self.answer = ended
        await self.send(Ask(play.rollout, play.attempt, 0, most, []), ids.tobytes())
        await self.over.wait()

    async def send(self, message: Message, *buffers: bytes | memoryview) -> None:
        """Take a message of the session."""
        await trio.lowlevel.checkpoint()
        match message:
            case Ask():
                self._ask(message, np.frombuffer(bytes(buffers[0]), np.int32))
            case Enough():
                if stopped := self.episode.enough(message):
                    self._engine.interrupt(stopped)
                    for number in stopped:
                        self._transcript.response(self.episode.turn(number))
            case Note() | GiveReward() | GiveFailure():
                self.rewarded |= isinstance(message, GiveReward) and message.number is None
                self._transcript.note(message)
            case Played():
                self.failed = bool(message.failed)
                self.over.set()

    def _ask(self, message: Ask, context: NDArray[np.int32]) -> None:
        asked = self.episode.ask(message, context)
        if isinstance(asked, Request):
            try:
                self._engine.submit([asked])
            except ValueError as error:
                self.episode.turns.pop()
                asked = Reply(message.rollout, message.attempt, message.number, 0, "", str(error))
        if isinstance(asked, Request):
            self._transcript.context(self.episode.turns[-1])
            return
        self._transcript.refused(message.number, asked.refused)
        self.answer(asked, memoryview(b""), memoryview(b""))

    async def emit(self, chunks: Sequence[Chunk]) -> None:
        """Take the engine's chunks."""
        await trio.lowlevel.checkpoint()
        for chunk in chunks:
            if (reply := self.episode.take(chunk)) is None:
                continue
            if chunk.finish:
                self._transcript.response(self.episode.turn(chunk.rollout))
            self.answer(
                reply,
                memoryview(chunk.ids.astype(np.int32).tobytes()),
                memoryview(chunk.behaviour.astype(np.float32).tobytes()),
            )


@asynccontextmanager
async def _decoding(engine: Engine, desk: _Desk) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, desk.emit)
        yield
        nursery.cancel_scope.cancel()
