"""The process of one rank of the trainer, put together. Invariant: rank 0 alone hears from the
coordinator, sends weights and writes checkpoints; what computes, all ranks do.

A trainer of one rank is rank 0 without others. Of several, each has the whole model for a moment,
tries it, and keeps its shard.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import trio
from transformers import PreTrainedModel

from actors.actor_context import ActorContext, refused_as_input
from actors.rank_orders import RankOrders, obey, open_orders, open_rank
from actors.reporting import Reporter
from actors.scoring_servers import ScoringServers
from actors.server_transfer import ToPublish, TransferToServers
from actors.trainer_actor import Write, trainer_actor
from actors.trainer_canary import TrainerCanary
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.config.published import rounded
from asyncrl.config.ranks import ranks_of
from asyncrl.ipc.address import Address, UnixAddress
from asyncrl.ipc.keys import read_key
from asyncrl.ipc.messages import (
    CloseStep,
    Gather,
    Meet,
    Message,
    MicroBatch,
    Publish,
    Save,
    ScoreProximal,
    TokenCount,
)
from asyncrl.ipc.waits import Waits
from asyncrl.observe.run_dir import ADAPTER, KEY, MODEL, MODEL_EMA, RANK_STORE, RANKS, WEIGHT_STORE
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.adapters import adapted, add_adapters, merged_model, published
from asyncrl.training.checkpoint_index import latest
from asyncrl.training.checkpoint_io import (
    StagedCheckpoint,
    export,
    export_adapters,
    restore,
    restore_state,
    take,
    write,
)
from asyncrl.training.kl_terms import open_kl_terms
from asyncrl.training.learner import Learner
from asyncrl.training.models import empty_model, load_model
from asyncrl.training.output_layer import float32_output
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.ranks.rank_group import open_ranks, shard
from asyncrl.training.ranks.shared import share_weights
from asyncrl.training.rounding_gap import rounding_gap
from asyncrl.training.staging import Staging
from asyncrl.training.stored_state import read_state, share_state
from asyncrl.training.supervised import open_supervised
from asyncrl.training.trial import try_passes
from weightsync.buckets import Plan
from weightsync.collective import Sender
from weightsync.epoch_group import SendResult
from weightsync.errors import TransferError
from weightsync.handoff import Handoff
from weightsync.narrowed import narrowed
from weightsync.server_sender import ServerSender
from weightsync.stores import LOOPBACK, interface_of, open_store, own_address, served_store

logger = logging.getLogger(__name__)


async def trainer_process(place: ActorContext) -> None:
    """A learner from the newest checkpoint, or from the initial model: rank 0 is driven by the
    coordinator, and drives the other ranks."""
    config, waits = place.config, Waits()
    torch.manual_seed(config.run.seed)
    if place.index:
        with _ending_at_once():
            await _follow(place, waits)
        return
    checkpoint = latest(place.run) if place.resume else None
    with refused_as_input():
        model = _model(place, checkpoint)
        _try(model, place)
    plan = Plan.of(
        narrowed(published(model), place.published_dtype), config.publication.bucket_bytes
    )
    if (size := ranks_of(config.train)) == 1:
        learner = _learner(place, model, ALONE, checkpoint)
        await _lead(place, learner, plan, RankOrders((), waits, 0.0), waits)
        return
    host = LOOPBACK if place.rank_0 is None else config.publication.host
    addresses: list[Address] = [UnixAddress(place.run / RANKS)]
    if place.rank_0 is not None:
        addresses.append(place.rank_0)
    with _ending_at_once(), served_store(host, place.run / RANK_STORE) as store:
        meet = Meet(store, size)
        async with open_orders(
            addresses,
            read_key(place.run / KEY),
            meet,
            waits,
            tls=place.tls,
            start_s=config.supervision.start_s,
            patience_s=config.supervision.stall_s,
        ) as orders:
            with _rank(place, model, meet) as rank:
                learner = _learner(place, model, rank, checkpoint)
                await _lead(place, learner, plan, orders, waits)
                await orders.end()


async def _follow(place: ActorContext, waits: Waits) -> None:
    """Another rank's life, here or on another machine."""
    checkpoint = latest(place.run) if place.resume else None
    with refused_as_input():
        model = _model(place, checkpoint)
        if not _spread(place):
            _try(model, place)
    address = place.rank_0 or UnixAddress(place.run / RANKS)
    async with open_rank(
        address,
        read_key(place.run / KEY),
        place.hello,
        waits,
        tls=place.tls,
        start_s=place.config.supervision.start_s,
    ) as (link, meet):
        with _rank(place, model, meet) as rank:
            learner = _learner(place, model, rank, checkpoint)
            await obey(link, place.hello, _Carried(learner, place), waits)


def _spread(place: ActorContext) -> bool:
    """True if some ranks are on other machines, and so all are given rank 0's weights."""
    return place.head is not None or place.config.cluster.trainer_agents > 0


async def _lead(
    place: ActorContext, learner: Learner, plan: Plan, orders: RankOrders, waits: Waits
) -> None:
    """Rank 0's life: a sender of weights, and the coordinator's link."""
    config = place.config
    async with ScoringServers.open(config, waits) as servers:
        with refused_as_input():
            own, patience_s = Tokenizer(place.initial), config.supervision.start_s / 2
            await servers.refuse_other_vocabularies(own, patience_s)
        compared = capabilities(config.engine.kind).compares_canary
        canary = TrainerCanary(place, own) if compared else None
        threaded = _Threaded(learner, orders, servers, place, Staging())
        if canary is not None and _to_servers(config):
            from actors.engines.sglang_direct import compute

            async with (
                ServerSender.open(
                    config.publication.host,
                    place.run / WEIGHT_STORE,
                    bucket_bytes=config.publication.bucket_bytes,
                    device="cuda:0" if config.engine.sglang.backend == "nccl" else "cpu",
                ) as to_servers,
                await place.link() as link,
            ):
                await trainer_actor(
                    link,
                    threaded,
                    TransferToServers(
                        to_servers,
                        plan,
                        partial(_to_publish, learner, orders, place, canary),
                        compute,
                        config.publication.deadline_s,
                    ),
                    waits,
                    Reporter(waits),
                )
            return
        async with (
            Sender.open(
                config.publication.host,
                place.run / WEIGHT_STORE,
                full_every=config.publication.full_every,
            ) as sender,
            await place.link() as link,
        ):
            transfer = _Transfer(sender, learner, orders, plan, place, canary)
            await trainer_actor(link, threaded, transfer, waits, Reporter(waits))


def _to_servers(config: Config) -> bool:
    """True if weights are sent straight into servers."""
    direct = config.publication.path == "direct"
    return direct and capabilities(config.engine.kind).serves_apart


async def _to_publish(
    learner: Learner, orders: RankOrders, place: ActorContext, canary: TrainerCanary
) -> ToPublish:
    """The learner's weights, whole, as servers are sent them, and their canary."""
    gather = partial(_gathered, learner, False)
    model, _ = await orders.give(Gather(), (), gather)
    assert model is not None
    scores = await canary.of(learner.version, model)
    return ToPublish(dict(narrowed(published(model), place.published_dtype)), scores)


@contextmanager
def _rank(place: ActorContext, model: PreTrainedModel, meet: Meet) -> Iterator[Rank]:
    """This process's rank of several, which meets the others, and keeps its shard of the model; of
    rank 0's, where some are on other machines."""
    train, start_s = place.config.train, place.config.supervision.start_s
    _use_network_of(meet.store)
    store = open_store(meet.store, timedelta(seconds=start_s))
    with open_ranks(train.device, store, place.index, meet.size, start_s) as mesh:
        if _spread(place):
            share_weights(model)
            if place.index:
                with refused_as_input():
                    _try(model, place)
        yield shard(model, mesh)


def _use_network_of(store: str) -> None:
    """Have collectives use the network by which the store at this address is reached."""
    interface = interface_of(own_address(store))
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Have an error end this process as soon as it is logged: a thread that waits in a collective
    for a rank that is lost would keep it for minutes."""
    try:
        yield
    except Exception:  # noqa: BLE001 (the process ends with it)
        sys.excepthook(*sys.exc_info())
        logging.shutdown()
        os._exit(1)


def _model(place: ActorContext, checkpoint: Path | None) -> PreTrainedModel:
    """The model of the checkpoint, or the initial one, on the trainer's device; one with adapters
    is the initial one, and the checkpoint's adapters come later. One that rank 0 gives its weights
    is empty. Raises ModelError for one that cannot be trained."""
    config, lora = place.config, place.config.model.lora
    if place.index and _spread(place):
        model = empty_model(place.initial, place.dtype)
    else:
        path = place.initial if checkpoint is None or lora.rank else checkpoint
        model = load_model(path, place.dtype)
    if config.model.output_dtype == "float32":
        float32_output(model)
    if lora.rank:
        add_adapters(model, lora)
    torch.nn.Module.to(model, config.train.device)
    return model


def _try(model: PreTrainedModel, place: ActorContext) -> None:
    """Settle on the passes of a model, by trying them. Raises ModelError where none will do."""
    tried = try_passes(model, place.config.engine.context_tokens)
    logger.info("tried on a few texts: %s", tried)


def _learner(
    place: ActorContext, model: PreTrainedModel, rank: Rank, checkpoint: Path | None
) -> Learner:
    """The learner of a model, as it was at the checkpoint; the run started from the initial one.
    What cannot be had ends this process as bad input does."""
    config = place.config
    with refused_as_input():
        learner = Learner(
            model,
            config.train,
            config.staleness,
            config.rollout.temperature,
            budget=config.rollout.max_new_tokens,
            kl_terms=open_kl_terms(config, place.initial, place.dtype, model),
            supervised=open_supervised(config, place.initial),
            rank=rank,
        )
        if _spread(place):
            stored = read_state(checkpoint) if checkpoint is not None else None
            stored = share_state(stored, torch.device(config.train.device))
            if stored is not None:
                restore_state(stored, learner)
        elif checkpoint is not None:
            restore(checkpoint, learner)
    return learner


@dataclass(frozen=True)
class _Threaded:
    """Rank 0's learner, as the trainer actor drives it: it computes in a thread, beside the other
    ranks."""

    learner: Learner
    orders: RankOrders
    servers: ScoringServers
    place: ActorContext
    staging: Staging

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
        own = partial(self.learner.accumulate, batch, buffers, served)
        return await self.orders.give(batch, buffers, own)

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        await trio.to_thread.run_sync(self.learner.score_proximal, message, buffers)

    async def step(self) -> dict[str, float]:
        metrics = await self.orders.give(CloseStep(self.version), (), self.learner.step)
        if not rounded(self.place.config):
            return metrics
        gap = partial(rounding_gap, self.learner.model, self.place.published_dtype)
        return metrics | {"published_gap": await trio.to_thread.run_sync(gap)}

    async def copy(self, cursor: int) -> Write:
        """Copy the state of all ranks; what is returned writes the copy, in a thread."""
        own = partial(_taken, self.learner, self.place, self.staging, cursor)
        staged, whole = await self.orders.give(Save(cursor), (), own)
        assert staged is not None, "rank 0 has the copy"
        return partial(trio.to_thread.run_sync, partial(_written, self.place, staged, whole))


@dataclass(frozen=True)
class _Carried:
    """Another rank's part of each order."""

    learner: Learner
    place: ActorContext

    def __call__(self, order: Message, buffers: Sequence[memoryview]) -> None:
        match order:
            case MicroBatch():
                self.learner.accumulate(order, buffers)
            case CloseStep():
                self.learner.step()
            case Save(cursor):
                _taken(self.learner, self.place, Staging(), cursor)
            case Gather(average):
                _gathered(self.learner, average)
            case _:
                raise ValueError(f"a rank does not understand {type(order).__name__}")


def _gathered(
    learner: Learner, average: bool
) -> tuple[PreTrainedModel | None, PreTrainedModel | None]:
    """This rank's part of gathering the model, and the average of its weights where it is wanted;
    rank 0 has them then."""
    model = learner.rank.gathered(learner.model)
    if not average:
        return model, None
    assert learner.average is not None, "evaluation.weights needs train.ema"
    return model, learner.average.gathered()


def _taken(
    learner: Learner, place: ActorContext, staging: Staging, cursor: int
) -> tuple[StagedCheckpoint | None, dict[str, PreTrainedModel]]:
    """This rank's part of the copy for a checkpoint; rank 0 has it then. After the last step it
    also has, by their places in the run's directory, the models that are for use elsewhere: nothing
    changes them any more."""
    staged, whole = take(learner, cursor, staging), dict[str, PreTrainedModel]()
    if learner.version >= place.config.train.steps:
        average = learner.average.gathered() if learner.average else None
        if staged is not None:
            # merged here: that changes settings of the process, which the writing goes beside
            whole[MODEL] = merged_model(staged.model)
        if average is not None:
            whole[MODEL_EMA] = merged_model(average)
    return staged, whole


def _written(
    place: ActorContext, staged: StagedCheckpoint, whole: Mapping[str, PreTrainedModel]
) -> Path:
    """Write a checkpoint, and the models for use elsewhere. Raises CheckpointError."""
    path = write(place.run, staged, place.initial)
    for name, model in whole.items():
        export(place.run / name, model, place.initial)
    if whole and adapted(staged.model):
        export_adapters(place.run / ADAPTER, staged.model)
    return path


class _Sent(NamedTuple):
    """A finished sending, for the coordinator."""

    checksums: list[int]
    sent_bytes: int
    canary: list[float]


@dataclass(frozen=True)
class _Transfer:
    """A sender that knows what it sends: the weights of one rank as they are, and those of several
    as they were when they were gathered."""

    sender: Sender
    learner: Learner
    orders: RankOrders
    plan: Plan
    place: ActorContext
    canary: TrainerCanary | None

    @property
    def store(self) -> str:
        return self.sender.store

    async def join(self, message: Publish) -> None:
        deadline_s = self.place.config.publication.deadline_s
        await self.sender.join(message.epoch, message.world, self.plan, deadline_s)

    async def send(self, message: Publish) -> _Sent:
        if message.direct and self.learner.rank.size > 1:
            found = await self._send_gathering(message)
            return _Sent(found.checksums, found.sent_bytes, [])
        # both are of the learner's version: they change in the same step
        gather = partial(_gathered, self.learner, message.average)
        model, average = await self.orders.give(Gather(message.average), (), gather)
        assert model is not None
        canary = await self.canary.of(self.learner.version, model) if self.canary else []
        found = await self.sender.send(
            message.epoch,
            message.world,
            self.plan,
            self._published(model),
            self.place.config.publication.deadline_s,
            None if average is None else self._published(average),
        )
        return _Sent(found.checksums, found.sent_bytes, canary)

    async def _send_gathering(self, message: Publish) -> SendResult:
        """Send each tensor when it is gathered: the model is nowhere whole, and nothing is trained
        meanwhile."""
        deadline_s, rank = self.place.config.publication.deadline_s, self.learner.rank
        handoff = Handoff(deadline_s)
        own = partial(handoff.fill, rank.gathering(self.learner.model))
        epoch, world = message.epoch, message.world
        found: SendResult | TransferError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.orders.give, Gather(), (), own)
            try:
                found = await self.sender.send(epoch, world, self.plan, handoff, deadline_s)
            except TransferError as error:  # out of the nursery by itself
                found = error
            finally:
                handoff.leave()
        if isinstance(found, TransferError):
            raise found
        return found

    def _published(self, model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
        return narrowed(published(model), self.place.published_dtype)
