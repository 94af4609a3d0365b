"""The process of a frozen policy: one engine that holds its past versions, behind the gateway of a
guest. For its game's host it is a guest as any other; but nothing is trained, and no run is here.

    seek    ──▶ the version that the group has drawn, held by the engine: a session
    call    ──▶ requests of that version
    end     ──▶ the reward counts for the version, and the next draws
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import trio

from asyncrl.actors.agents_actor import EpisodePlayer
from asyncrl.actors.agents_gateway import open_episodes
from asyncrl.actors.reporting import Reporter
from asyncrl.algorithms.selection.league import superfluous
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.config.published import engine_dtype
from asyncrl.config.selection_names import LEAGUES
from asyncrl.engines.embedded.engine import EmbeddedEngine
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.launch.past.past_draws import PastDraws
from asyncrl.launch.past.past_games import PastGames
from asyncrl.launch.past.past_versions import forget_version, keep_version, kept_versions
from asyncrl.launch.play.own_engine import embedded
from asyncrl.messages import (
    Ask,
    Enough,
    GiveReward,
    KeepGame,
    Kept,
    Message,
    NoSeat,
    Played,
    Reply,
    Seek,
)
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.runtime.processes.told_to_end import obeying
from asyncrl.runtime.run_dir import GATEWAY_KEY, PAST_DRAWS
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model, parameters_for_publication

logger = logging.getLogger(__name__)


def play_past(config: Config) -> int:
    """Play the games of a frozen policy until a signal. Returns the exit status."""
    torch.set_num_threads(1)
    run = Path(config.run.dir)
    write_key(run / GATEWAY_KEY, secrets.token_urlsafe().encode())
    initial = prepare_model(config)
    trio.run(_play, config, run, initial, strict_exception_groups=True)
    return 0


async def _play(config: Config, run: Path, initial: Path) -> None:
    tokenizer = Tokenizer(initial, chat=config.task.chat)
    engine, _ = await trio.to_thread.run_sync(embedded, config, initial, tokenizer, run)
    game, waits = config.game, own_waits()
    key = f"league/{config.run.seed}/{game.policy}"
    draws = PastDraws(run / PAST_DRAWS, LEAGUES.find(game.draw)(), key)
    versions = PastVersions(config, run, engine, initial)
    await versions.open()
    async with obeying(lambda _: ended.set()), trio.open_nursery() as nursery:
        ended = trio.Event()
        async with open_episodes(config, run, initial, 0, waits, Reporter(waits)) as (
            episodes,
            sessions,
        ):
            desk = _PastDesk(config, engine, draws, versions, episodes, nursery)
            desk.answer = sessions.take
            nursery.start_soon(engine.run, desk.emit)
            nursery.start_soon(sessions.send, desk)
            logger.info("past versions play at %s", run)
            await ended.wait()
            nursery.cancel_scope.cancel()


class PastVersions:
    """The versions that the engine holds, by their numbers: the model that the policy began with is
    0, and of a list each has its place."""

    def __init__(self, config: Config, run: Path, engine: EmbeddedEngine, initial: Path) -> None:
        self._game, self._run, self._engine = config.game, run, engine
        self._dtype = getattr(torch, engine_dtype(config))
        listed = config.game.frozen
        self._of = None if listed[0].startswith("/") else run.parent / listed[0]
        first = {0: initial} if self._of else {n: Path(path) for n, path in enumerate(listed)}
        self._paths = {**first, **kept_versions(run)}

    @property
    def held(self) -> list[int]:
        """The versions that can be drawn."""
        return sorted(self._paths)

    async def open(self) -> None:
        """Load what is kept."""
        for version, path in sorted(self._paths.items()):
            await self._load(version, path)

    async def renew(self, playing: set[int]) -> None:
        """Take in the policy's checkpoints that are newer than what is held; of too many versions,
        one that does not play goes."""
        if self._of is None:
            return
        for checkpoint in await trio.to_thread.run_sync(complete, self._of):
            if checkpoint.version > self.held[-1]:
                try:
                    path = await trio.to_thread.run_sync(keep_version, self._run, checkpoint)
                except OSError as error:
                    logger.warning("version %d is not kept: %s", checkpoint.version, error)
                    return
                self._paths[checkpoint.version] = path
                await self._load(checkpoint.version, path)
        free = set(self.held) - playing
        while len(self._paths) > self._game.versions and (gone := superfluous(self.held)) in free:
            self._engine.unpin(gone)
            if (path := self._paths.pop(gone)).parent.parent == self._run:
                await trio.to_thread.run_sync(forget_version, path)

    async def _load(self, version: int, path: Path) -> None:
        def read() -> Mapping[str, torch.Tensor]:
            return dict(parameters_for_publication(load_model(path, self._dtype)))

        await self._engine.keep(version, await trio.to_thread.run_sync(read))


class _PastDesk:
    """Stands between the gateway's sessions, which send it messages, and the engine."""

    def __init__(
        self,
        config: Config,
        engine: EmbeddedEngine,
        draws: PastDraws,
        versions: PastVersions,
        episodes: EpisodePlayer,
        nursery: trio.Nursery,
    ) -> None:
        self._games = PastGames(
            tokens=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            max_calls=config.agent.max_calls,
            context_tokens=config.engine.context_tokens,
        )
        self._size, self._engine, self._draws = config.rollout.group_size, engine, draws
        self._versions, self._episodes, self._nursery = versions, episodes, nursery
        self._rewards = dict[tuple[int, int], float]()
        self.answer: Callable[[Reply, memoryview, memoryview], None] = lambda *_: None

    async def send(self, message: Message, *buffers: bytes | memoryview) -> None:
        """Take a message of the gateway."""
        await trio.lowlevel.checkpoint()
        match message:
            case Seek():
                await self._seek(message)
            case Ask():
                self._ask(message, np.frombuffer(bytes(buffers[0]), np.int32))
            case Enough():
                if stopped := self._games.enough(message):
                    self._engine.interrupt(stopped)
            case KeepGame():
                self._episodes.hear(Kept(message.ticket, self._games.keep(message)))
            case GiveReward(number=None):
                self._rewards[message.rollout, message.attempt] = message.reward
            case Played():
                reward = self._rewards.pop((message.rollout, message.attempt), 0.0)
                if (found := self._games.played(message)) is not None:
                    self._draws.end(message.rollout, found.version, reward)

    async def _seek(self, seek: Seek) -> None:
        if (stop := self._games.stopped(seek)) is not None:
            self._episodes.stop(stop)
        await self._versions.renew(self._games.playing)
        group, held = seek.key // self._size, self._versions.held
        version = await trio.to_thread.run_sync(self._draws.draw, group, held)
        if version in held:
            self._episodes.begin(self._games.begin(seek, version), self._nursery)
        else:
            self._episodes.hear(NoSeat(seek.ticket, "gone"))

    def _ask(self, message: Ask, context: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        asked = self._games.ask(message, context)
        if isinstance(asked, Request):
            try:
                self._engine.submit([asked])
            except ValueError as error:
                asked = self._games.refuse(asked, str(error))
        if isinstance(asked, Reply):
            self.answer(asked, memoryview(b""), memoryview(b""))

    async def emit(self, chunks: Sequence[Chunk]) -> None:
        """Take the engine's chunks."""
        await trio.lowlevel.checkpoint()
        for chunk in chunks:
            if (reply := self._games.take(chunk)) is not None:
                ids = memoryview(chunk.ids.astype(np.int32).tobytes())
                self.answer(reply, ids, memoryview(chunk.behaviour.astype(np.float32).tobytes()))
