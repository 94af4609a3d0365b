"""The process of each role, put together. Invariant: a role imports what it needs and no
more, and uses the threads it was given.

Only this file knows both an actor and what stands around it: journal, task, model, transfer.
`actors/__main__.py` calls it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.reporting import Reporter, report_s
from asyncrl.config import Config
from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.config.mix import named
from asyncrl.ipc.address import UnixAddress
from asyncrl.ipc.endpoints import connect, serve
from asyncrl.ipc.keys import read_key
from asyncrl.ipc.link import Link
from asyncrl.ipc.messages import (
    Hello,
    MicroBatch,
    Prepare,
    Publish,
    Role,
    ScoreProximal,
    TokenCount,
)
from asyncrl.ipc.waits import Waits
from asyncrl.observe import run_status
from asyncrl.observe.run_dir import (
    COORDINATOR,
    INITIAL,
    JOURNAL,
    KEY,
    LAUNCHER,
    METRICS,
    MODEL,
    MODEL_EMA,
    STALL,
    STATUS,
    SUMMARY,
    WEIGHT_STORE,
)

if TYPE_CHECKING:
    import torch

    from actors.coordinator.coordinator import Coordinator
    from actors.scoring_servers import ScoringServers
    from asyncrl.journal import Journal
    from asyncrl.training.learner import Learner
    from weightsync.buckets import Plan
    from weightsync.collective import Sender
    from weightsync.epoch_group import SendResult, Staged

STATUS_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActorContext:
    """The actor that this process is, and its place in the run."""

    role: Role
    index: int
    incarnation: int
    threads: int
    pid: int
    run: Path
    config: Config
    resume: bool

    @property
    def initial(self) -> Path:
        """The model that the run started from."""
        return self.run / INITIAL

    async def link(self) -> Link:
        """A link to the coordinator, which knows who is at this end."""
        link = await connect(UnixAddress(self.run / COORDINATOR), read_key(self.run / KEY))
        await link.send(Hello(self.role, self.index, self.incarnation, self.pid))
        return link


async def coordinator(place: ActorContext) -> None:
    """The coordinator's process. It ends when the launcher has heard that the run is over."""
    from actors.coordinator.coordinator import Coordinator
    from actors.coordinator.event_store import EventStore
    from actors.coordinator.lifecycle import Outcome
    from actors.coordinator.peers import Peer
    from actors.coordinator.prompts import PromptSource
    from actors.coordinator.resume import begin_again, resumed
    from actors.coordinator.statistics import RunStatistics
    from asyncrl.experience.experience import Experience
    from asyncrl.journal import Journal, SqliteHistory
    from asyncrl.observe import summary
    from asyncrl.observe.curve_file import open_curve
    from asyncrl.observe.metrics import Metrics
    from asyncrl.tasks import open_task
    from asyncrl.tasks.mixed import parts_of, size_of
    from asyncrl.tasks.text import Tokenizer
    from asyncrl.training.checkpoint_index import complete

    config, path = place.config, place.run / JOURNAL
    tokenizer = Tokenizer(place.initial, chat=config.task.chat)
    task = open_task(config.task, config.run.seed)
    prompts = PromptSource(
        task,
        tokenizer,
        seed=config.run.seed,
        epochs=config.task.epochs,
        curriculum=config.task.curriculum,
        parts=parts_of(config.task, size_of(task)),
        stages=config.task.stages,
    )
    metrics = Metrics()
    metrics.describe(task=named(config.task), engine=config.engine.kind)
    checkpoints = complete(place.run)
    resume = place.resume and (
        path.exists() or bool(checkpoints)
    )  # else it ended before it had begun
    experience, version = resumed(SqliteHistory(path), checkpoints) if resume else (Experience(), 0)
    async with (
        open_curve(place.run / METRICS, version, experience.closed) as (curve, before_commit),
        Journal.open(
            path,
            commit_ms=config.journal.commit_ms,
            full_s=config.supervision.stall_s,
            before_commit=before_commit,
        ) as journal,
    ):
        store = EventStore(experience, journal)
        if resume:
            begin_again(store, journal, version)
        run = Coordinator(
            config,
            store,
            prompts,
            metrics,
            Waits(),
            RunStatistics(),
            curve,
            journal=partial(_standing, journal),
            stalled=partial(_keep, place.run / STALL),
        )
        outcome = Outcome(False, "the coordinator failed; its log says why")
        try:
            with metrics.serve(config.metrics.port, config.metrics.host):
                async with trio.open_nursery() as nursery:
                    address, key = UnixAddress(place.run / COORDINATOR), read_key(place.run / KEY)
                    await nursery.start(
                        partial(serve, address, key, run.attend, refused=metrics.refused)
                    )
                    launcher = await connect(UnixAddress(place.run / LAUNCHER), key)
                    await launcher.send(Hello("coordinator", 0, place.incarnation, place.pid))
                    nursery.start_soon(
                        run.converse, Peer(Hello("launcher", 0, 0, os.getppid()), launcher)
                    )
                    async with _kept(run, place.run / STATUS):
                        outcome = await run.conduct()
                    summary.write(run.summary(outcome), place.run / SUMMARY)
                    await run.say_goodbye(outcome)
                    nursery.cancel_scope.cancel()
        finally:
            summary.write(run.summary(outcome), place.run / SUMMARY)


def _standing(journal: Journal) -> run_status.JournalStatus:
    """Ask the journal how it stands."""
    counts = journal.statistics()
    return run_status.JournalStatus(
        appended=counts.appended,
        durable=counts.durable,
        pending_bytes=counts.pending_bytes,
        disk_bytes=counts.disk_bytes,
        commits=counts.commits,
        slowest_s=counts.slowest_s,
        trouble=journal.trouble,
    )


@asynccontextmanager
async def _kept(run: Coordinator, path: Path) -> AsyncIterator[None]:
    """Write down how the run stands, every second and at the end of the block, beside the
    coordinator's loop."""

    async def keep() -> None:
        while True:
            await trio.to_thread.run_sync(_keep, path, run.status())
            await trio.sleep(STATUS_S)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            yield
            nursery.cancel_scope.cancel()
    finally:
        _keep(path, run.status())


def _keep(path: Path, found: run_status.RunStatus) -> None:
    """Write it down. A run goes on without it where the disk has no room."""
    try:
        run_status.write(found, path)
    except OSError as error:
        logger.warning("how the run stands is not written down: %s", error)


async def rollout(place: ActorContext) -> None:
    """A rollout actor's process: an engine, and a receiver of weights."""
    from actors.rollout_actor import rollout_actor
    from asyncrl.engines.spec import EngineContext, engine_kind
    from asyncrl.tasks.text import Tokenizer
    from asyncrl.training.models import empty_model, parameters_for_publication
    from asyncrl.training.output_layer import float32_output
    from weightsync.buckets import Plan
    from weightsync.collective import Receiver

    config, waits = place.config, Waits()
    model, tokenizer = empty_model(place.initial, _dtype(config)), Tokenizer(place.initial)
    if config.model.output_dtype == "float32":
        with _refused_as_input():
            float32_output(model)
    plan = Plan.of(parameters_for_publication(model), config.publication.bucket_bytes)
    context = EngineContext(config, place.run, place.initial, place.index, model, tokenizer, waits)
    async with (
        engine_kind(config.engine.kind).open(context) as engine,
        Receiver.open() as receiver,
        await place.link() as link,
    ):

        async def receive(message: Prepare) -> Staged:
            rendezvous = message.store, message.epoch, message.rank, message.world
            return await receiver.receive(*rendezvous, plan, config.publication.deadline_s)

        reporter = Reporter(waits, report_s(config))
        await rollout_actor(link, engine, receive, reporter)


async def reward(place: ActorContext) -> None:
    """A reward actor's process; the verifiers run in processes of their own."""
    from actors.reward_actor import open_verifiers, reward_actor

    config, waits = place.config, Waits()
    async with (
        open_verifiers(config.task, config.run.seed, str(place.initial), waits) as verifiers,
        await place.link() as link,
    ):
        concurrency, deadline_s = config.reward.concurrency, config.task.verdict_s
        await reward_actor(
            link,
            verifiers,
            waits,
            Reporter(waits, report_s(config)),
            concurrency=concurrency,
            deadline_s=deadline_s,
        )


async def agents(place: ActorContext) -> None:
    """An agents actor's process; agents run in processes of their own, or elsewhere."""
    from actors.agents_actor import agents_actor
    from actors.agents_gateway import open_episodes

    config, waits = place.config, Waits()
    reporter = Reporter(waits, report_s(config))
    try:
        async with (
            open_episodes(config, place.run, place.initial, place.index, waits, reporter) as (
                episodes,
                sessions,
            ),
            await place.link() as link,
        ):
            await agents_actor(link, episodes, sessions, reporter)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error


async def trainer(place: ActorContext) -> None:
    """The trainer's process: a learner from the newest checkpoint, or from the initial model, and a
    sender of weights."""
    import torch

    from actors.scoring_servers import ScoringServers
    from actors.trainer_actor import trainer_actor
    from asyncrl.tasks.text import Tokenizer
    from asyncrl.training.checkpoint_index import latest
    from asyncrl.training.checkpoint_io import restore
    from asyncrl.training.models import parameters_for_publication
    from weightsync.buckets import Plan
    from weightsync.collective import Sender

    config, waits = place.config, Waits()
    torch.manual_seed(config.run.seed)
    checkpoint = latest(place.run) if place.resume else None
    with _refused_as_input():
        learner = _learner(config, checkpoint or place.initial, place.initial)
    if checkpoint is not None:
        restore(checkpoint, learner)
    plan = Plan.of(parameters_for_publication(learner.model), config.publication.bucket_bytes)
    async with ScoringServers.open(config, waits) as servers:
        with _refused_as_input():
            own, patience_s = Tokenizer(place.initial), config.supervision.start_s / 2
            await servers.refuse_other_vocabularies(own, patience_s)
        async with (
            Sender.open(config.publication.host, place.run / WEIGHT_STORE) as sender,
            await place.link() as link,
        ):
            transfer = _Transfer(sender, learner, plan, config.publication.deadline_s)
            await trainer_actor(
                link, _Threaded(learner, servers, place), transfer, waits, Reporter(waits)
            )


@contextmanager
def _refused_as_input() -> Iterator[None]:
    """Have a model or a server that cannot be used end this process as bad input does, by its
    sentence."""
    from asyncrl.training.models import ModelError

    try:
        yield
    except (ConfigError, ModelError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error


def _learner(config: Config, path: Path, initial: Path) -> Learner:
    """The learner of the model at `path`, in passes that were tried; `initial` is the model that
    the run started from. Raises ModelError for a model that cannot be trained."""
    import torch

    from asyncrl.training.kl_terms import open_kl_terms
    from asyncrl.training.learner import Learner
    from asyncrl.training.models import load_model
    from asyncrl.training.output_layer import float32_output
    from asyncrl.training.supervised import open_supervised
    from asyncrl.training.trial import try_passes

    model = load_model(path, _dtype(config))
    if config.model.output_dtype == "float32":
        float32_output(model)
    torch.nn.Module.to(model, config.train.device)
    logger.info("tried on a few texts: %s", try_passes(model, config.engine.context_tokens))
    return Learner(
        model,
        config.train,
        config.staleness,
        config.rollout.temperature,
        budget=config.rollout.max_new_tokens,
        kl_terms=open_kl_terms(config, initial, _dtype(config)),
        supervised=open_supervised(config, initial),
    )


@dataclass(frozen=True)
class _Threaded:
    """A learner that computes in a thread, and knows where its checkpoints go."""

    learner: Learner
    servers: ScoringServers
    place: ActorContext

    @property
    def version(self) -> int:
        return self.learner.version

    @property
    def counts(self) -> list[TokenCount]:
        return self.learner.counts

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        served = await self.servers.scores(batch, buffers)
        return await trio.to_thread.run_sync(self.learner.accumulate, batch, buffers, served)

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        await trio.to_thread.run_sync(self.learner.score_proximal, message, buffers)

    async def step(self) -> dict[str, float]:
        return await trio.to_thread.run_sync(self.learner.step)

    async def save(self, cursor: int) -> Path:
        """A checkpoint; after the last step also the model alone, for use elsewhere."""
        return await trio.to_thread.run_sync(self._save, cursor)

    def _save(self, cursor: int) -> Path:
        from asyncrl.training.checkpoint_io import export, save

        path = save(self.place.run, self.learner, cursor, self.place.initial)
        if self.learner.version >= self.place.config.train.steps:
            export(self.place.run / MODEL, self.learner.model, self.place.initial)
            if average := self.learner.average:
                export(self.place.run / MODEL_EMA, average.policy.model, self.place.initial)
        return path


@dataclass(frozen=True)
class _Transfer:
    """A sender that knows what it sends."""

    sender: Sender
    learner: Learner
    plan: Plan
    deadline_s: float

    @property
    def store(self) -> str:
        return self.sender.store

    async def send(self, message: Publish) -> SendResult:
        from asyncrl.training.models import parameters_for_publication

        tensors = parameters_for_publication(self.learner.model)
        return await self.sender.send(
            message.epoch, message.world, self.plan, tensors, self.deadline_s
        )


def _dtype(config: Config) -> torch.dtype:
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.model.dtype]


ROLES = {
    "coordinator": coordinator,
    "rollout": rollout,
    "agents": agents,
    "reward": reward,
    "trainer": trainer,
}
