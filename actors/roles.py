"""The setup of the process of each role. Invariant: a role imports only what it needs, and uses its
given number of threads.

Only this file combines an actor with its surroundings: journal, task, model, transfer.
`actors/__main__.py` calls it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from asyncrl.actors.actor_context import ActorContext, refused_as_input
from asyncrl.actors.notice import GONE, open_notice
from asyncrl.actors.reporting import Reporter, report_s
from asyncrl.config.cluster import joined
from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.config.judging import asks
from asyncrl.config.mix import named
from asyncrl.config.plugins import without_folder
from asyncrl.explain import run_status
from asyncrl.files import write_whole
from asyncrl.messages import Hello, Play
from asyncrl.messages.address import TcpAddress, UnixAddress
from asyncrl.os_errors import machine_lacks
from asyncrl.runtime.ipc.endpoints import connect, serve
from asyncrl.runtime.ipc.keys import read_key
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.runtime.run_dir import (
    COORDINATOR,
    COORDINATOR_ADDRESS,
    FETCHED,
    IMAGES,
    JOURNAL,
    JUDGED,
    KEY,
    LAUNCHER,
    METRICS,
    STALL,
    STATUS,
    SUMMARY,
    TLS,
)

if TYPE_CHECKING:
    from asyncrl.actors.coordinator.coordinator import Coordinator
    from asyncrl.actors.coordinator.imports import ForeignAnswers
    from asyncrl.actors.coordinator.lifecycle import Outcome
    from asyncrl.actors.coordinator.prompts import PromptSource
    from asyncrl.actors.coordinator.sent_images import SentImages
    from asyncrl.actors.coordinator.sharing import Sharing
    from asyncrl.actors.reward_actor import Asks
    from asyncrl.explain.metrics import Metrics
    from asyncrl.journal import Journal
    from asyncrl.runtime.ipc.link import Link
    from asyncrl.runtime.ipc.waits import Waits
    from asyncrl.tasks.text import Tokenizer

STATUS_S = 1.0

logger = logging.getLogger(__name__)


async def coordinator(context: ActorContext) -> None:
    """The coordinator's process. It ends when the launcher has heard that the run is over."""
    if context.config.sft.run:
        from asyncrl.actors.sft_coordinator import sft_coordinator

        await sft_coordinator(context)
        return
    from asyncrl.actors.coordinator.components import Observers
    from asyncrl.actors.coordinator.coordinator import Coordinator
    from asyncrl.actors.coordinator.event_store import EventStore
    from asyncrl.actors.coordinator.resume import begin_again, resumed
    from asyncrl.actors.coordinator.statistics import RunStatistics
    from asyncrl.experience.experience import Experience
    from asyncrl.explain.curve_file import open_curve
    from asyncrl.explain.metrics import Metrics
    from asyncrl.journal import Journal, SqliteHistory
    from asyncrl.training.checkpoint_index import complete

    config, path = context.config, context.run / JOURNAL
    metrics = Metrics()
    prompts, foreign, sharing = _prompts(context, metrics)
    metrics.describe(
        task=named(config.task),
        engine=without_folder(config.engine.kind),
        evaluated=config.evaluation.weights,
    )
    checkpoints = complete(context.run)
    resume = context.resume and (
        path.exists() or bool(checkpoints)
    )  # else it would end before it began
    experience, version = resumed(SqliteHistory(path), checkpoints) if resume else (Experience(), 0)
    async with (
        open_curve(context.run / METRICS, version, experience.closed) as (curve, before_commit),
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
            own_waits(),
            Observers(
                metrics,
                RunStatistics(),
                curve,
                partial(_standing, journal),
                partial(_keep, context.run / STALL),
            ),
            foreign,
            sharing,
            _sent_images(context),
        )
        await _conduct(context, run, metrics)


def _prompts(
    context: ActorContext, metrics: Metrics
) -> tuple[PromptSource, ForeignAnswers | None, Sharing | None]:
    """The prompts of a run, in the order of its curriculum, the foreign answers to them, and what
    is shared with other runs. `metrics` get what their images take."""
    from asyncrl.actors.coordinator.prompts import PromptSource
    from asyncrl.tasks import open_task
    from asyncrl.tasks.file_answers import FileAnswers
    from asyncrl.tasks.images.fetched_images import FetchedImages
    from asyncrl.tasks.images.kept_images import KeptImages
    from asyncrl.tasks.mixed import parts_of, size_of
    from asyncrl.tasks.prompt import ChatPrompt
    from asyncrl.tasks.text import Tokenizer

    config = context.config
    task = open_task(config.task, config.run.seed)
    tokenizer = Tokenizer(context.initial, chat=config.task.chat)
    images = KeptImages(context.run / IMAGES, int(config.run.images_gb * 1e9))
    metrics.keeping_images(lambda: images.kept_bytes)
    fetched = FetchedImages(context.run / FETCHED, images)

    def shown(prompt: ChatPrompt) -> tuple[list[int], list[str]]:
        ids, found = tokenizer.encode_shown(prompt, fetched.bytes_of)
        return ids, [images.keep(image) for image in found]

    prompts = PromptSource(
        task,
        tokenizer,
        seed=config.run.seed,
        epochs=config.task.epochs,
        curriculum=config.task.curriculum,
        parts=parts_of(config.task, size_of(task)),
        stages=config.task.stages,
        shown=shown,
    )
    if config.foreign.source == "file":
        return prompts, FileAnswers(config, tokenizer), _sharing(context, tokenizer)
    sharing = _sharing(context, tokenizer)
    return prompts, sharing, sharing


def _sent_images(context: ActorContext) -> SentImages | None:
    """The images that engines on other machines are sent; None where all read the run's own."""
    from asyncrl.actors.coordinator.sent_images import SentImages
    from asyncrl.tasks.images.kept_images import KeptImages

    return SentImages(KeptImages(context.run / IMAGES).png) if joined(context.config) else None


def _sharing(context: ActorContext, tokenizer: Tokenizer) -> Sharing | None:
    """The exchange with other runs, in the places that the settings name; None without any."""
    from asyncrl.actors.coordinator.sharing import Sharing
    from asyncrl.tasks.shared_groups import SharedReader, share_id
    from asyncrl.tasks.shared_places import shared_place

    foreign, given = context.config.foreign, context.config.share.path
    if foreign.source != "runs" and not given:
        return None
    own = share_id(context.run)
    reader = None
    if foreign.source == "runs":
        reader = SharedReader(
            shared_place(foreign.path),
            own,
            tokenizer.digest,
            tokenizer.sampled,
            context.config.rollout.max_new_tokens,
            foreign.max_age,
        )
    return Sharing(
        own,
        tokenizer.digest,
        shared_place(given) if given else None,
        reader,
    )


async def _conduct(context: ActorContext, run: Coordinator, metrics: Metrics) -> None:
    """Serve the run's actors and tell the launcher, until the run is over. The summary is written
    once, however it ends, if the disk takes it."""
    from asyncrl.actors.coordinator.lifecycle import Outcome
    from asyncrl.actors.coordinator.peers import Peer

    config, summed_up = context.config, False
    launcher: Link | None = None
    outcome = Outcome(False, "the coordinator failed; its log says why")
    try:
        with metrics.serve(config.metrics.port, config.metrics.host):
            async with trio.open_nursery() as nursery:
                address, key = UnixAddress(context.run / COORDINATOR), read_key(context.run / KEY)
                await nursery.start(
                    partial(serve, address, key, run.attend, refused=metrics.refused)
                )
                if joined(config):
                    await nursery.start(_serve_machines, context, key, run, metrics)
                launcher = await connect(UnixAddress(context.run / LAUNCHER), key)
                await launcher.send(Hello("coordinator", 0, context.incarnation, context.pid))
                nursery.start_soon(
                    run.converse, Peer(Hello("launcher", 0, 0, os.getppid()), launcher)
                )
                async with _kept(run, context.run / STATUS):
                    outcome = await run.conduct()
                summed_up = _sum_up(context, run, outcome)
                await run.say_goodbye(outcome)
                nursery.cancel_scope.cancel()
    finally:
        if launcher is not None:
            outcome = await run.give_up(launcher) or outcome
        if not summed_up:
            _sum_up(context, run, outcome)


def _sum_up(context: ActorContext, run: Coordinator, outcome: Outcome) -> bool:
    """Write the run's summary; a full disk goes without. Returns True: to try once is enough."""
    from asyncrl.explain import summary

    try:
        summary.write(run.summary(outcome), context.run / SUMMARY)
    except OSError as error:
        logger.warning("the run's summary is not written: %s", error)
    return True


async def _serve_machines(
    context: ActorContext,
    key: bytes,
    run: Coordinator,
    metrics: Metrics,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve actors on other machines, by a port that is written down for the launcher."""
    where, tls = TcpAddress(context.config.cluster.host, 0), Tls.of(context.run / TLS)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(
            partial(serve, where, key, run.attend, refused=metrics.refused, tls=tls)
        )
        write_whole(context.run / COORDINATOR_ADDRESS, str(bound), forced=False)
        task_status.started()


def _standing(journal: Journal) -> run_status.JournalStatus:
    """The journal's status."""
    counts = journal.statistics()
    return run_status.JournalStatus(
        appended=counts.appended,
        durable=counts.durable,
        pending_bytes=counts.pending_bytes,
        disk_bytes=counts.disk_bytes,
        commits=counts.commits,
        slowest_s=counts.slowest_s,
        trouble=journal.trouble,
        given_up=journal.given_up,
    )


@asynccontextmanager
async def _kept(run: Coordinator, path: Path) -> AsyncIterator[None]:
    """Write the run's status every second and at the end of the block, beside the coordinator's
    loop."""

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


def _keep(path: Path, status: run_status.RunStatus) -> None:
    """Write the status. On a full disk the run continues without it."""
    try:
        run_status.write(status, path)
    except OSError as error:
        logger.warning("the run's status is not written: %s", error)


async def rollout(context: ActorContext) -> None:
    """A rollout actor's process: an engine, and a receiver of weights."""
    from asyncrl.actors.rollout_actor import rollout_actor
    from asyncrl.engines.spec import EngineContext, engine_kind
    from asyncrl.tasks.images.kept_images import KeptImages
    from asyncrl.tasks.text import Tokenizer
    from asyncrl.weightsync.adapted_base import AdaptedBase
    from asyncrl.weightsync.buckets import Plan
    from asyncrl.weightsync.reception import RECEPTIONS
    from asyncrl.weightsync.transport import EngineSide, transport_of

    config, waits, base = context.config, own_waits(), None
    alone = config.model.lora.alone
    with refused_as_input():
        model, tokenizer = context.engine_model(), Tokenizer(context.initial)
        if config.model.lora.rank:
            base = AdaptedBase(context.initial, context.dtype, config.model.lora)
        sent = context.sent.of(base.model if base else model)
        plan = Plan.of(sent, config.publication.bucket_bytes, context.stays(model))
    reporter = Reporter(waits, report_s(config))
    engine_context = EngineContext(
        config,
        context.run,
        context.initial,
        context.index,
        model,
        tokenizer,
        waits,
        context.takes_over,
        reporter.follow,
        base.model if base and alone else None,
    )
    async with engine_kind(config.engine.kind).open(engine_context) as engine:
        side = EngineSide(config, plan, engine, base.merged if base and not alone else None)
        async with (
            transport_of(config).open_receiver(side) as receiver,
            await context.link() as link,
            open_notice() as notice,
        ):
            reception = RECEPTIONS[config.publication.path](engine, receiver, link.send)
            keep = KeptImages(context.run / IMAGES).keep
            await rollout_actor(
                link, engine, reception, reporter, told_to_end=notice.wait, keep=keep
            )
    if notice.is_set():
        raise SystemExit(GONE)


async def reward(context: ActorContext) -> None:
    """A reward actor's process; the verifiers run in processes of their own."""
    from asyncrl.actors.reward_actor import open_verifiers, reward_actor

    config, waits = context.config, own_waits()
    async with (
        _judge(context, waits) as judge,
        open_verifiers(config.task, config.run.seed, str(context.initial), waits) as verifiers,
        await context.link() as link,
    ):
        concurrency, deadline_s = config.reward.concurrency, config.task.verdict_s
        await reward_actor(
            link,
            verifiers,
            waits,
            Reporter(waits, report_s(config)),
            concurrency=concurrency,
            deadline_s=deadline_s,
            judge=judge,
        )


@asynccontextmanager
async def _judge(context: ActorContext, waits: Waits) -> AsyncIterator[Asks | None]:
    """The judge that answers are given to, if there is one. A key that is missing, and a judge that
    refuses all requests, end this process like bad input does."""
    if not asks(context.config):
        yield None
        return
    from asyncrl.judges.judge_client import open_judge

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # else each answer is a line of the log
    file = context.run / JUDGED / f"reward-{context.index}"
    async with open_judge(context.config, waits, file) as judge:
        yield judge


async def agents(context: ActorContext) -> None:
    """An agents actor's process; agents run in processes of their own, or elsewhere."""
    from asyncrl.actors.agent_pool import AgentAttempt
    from asyncrl.actors.agents_actor import agents_actor
    from asyncrl.actors.agents_gateway import EpisodeWatch, open_episodes
    from asyncrl.agents.printed import AttemptOutput, PrintedFile

    config, waits, run, index = context.config, own_waits(), context.run, context.index
    reporter = Reporter(waits, report_s(config))
    kept = PrintedFile(run, index)

    def ended(play: Play, attempt: AgentAttempt) -> None:
        kept.keep(AttemptOutput(play.rollout, play.attempt, attempt.output))

    watch = EpisodeWatch(ended=ended)
    try:
        async with (
            open_episodes(config, run, context.initial, index, waits, reporter, watch) as (
                episodes,
                sessions,
            ),
            await context.link() as link,
        ):
            await agents_actor(link, episodes, sessions, reporter)
    except ConfigError as error:
        if machine_lacks(error):
            raise
        print(error, file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error


async def trainer(context: ActorContext) -> None:
    """The process of one rank of the trainer."""
    from asyncrl.actors.trainer_process import trainer_process

    await trainer_process(context)


ROLES = {
    "coordinator": coordinator,
    "rollout": rollout,
    "agents": agents,
    "reward": reward,
    "trainer": trainer,
}
