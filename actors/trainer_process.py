"""The process of one rank of the trainer, put together. Invariant: rank 0 alone hears from the
coordinator, sends weights and writes checkpoints; what computes, all ranks do.

A trainer of one rank is rank 0 without others. Of several, each reads its own rows of the weights
into its shard, and all try the model together.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import trio
from msgspec.structs import replace
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.actors.actor_context import ActorContext, refused_as_input
from asyncrl.actors.disk_exit import of_disk
from asyncrl.actors.published_weights import PublishedWeights
from asyncrl.actors.rank_orders import RankOrders, obey, open_orders, open_rank
from asyncrl.actors.rank_parts import CarriedOrder, RankedLearner
from asyncrl.actors.reporting import Reporter
from asyncrl.actors.scoring_servers import ScoringServers
from asyncrl.actors.trainer_actor import trainer_actor
from asyncrl.config.engines import capabilities
from asyncrl.config.errors import DISK_NOT_READY
from asyncrl.config.journal_size import steps
from asyncrl.config.ranks import ranks_of
from asyncrl.messages import Meet
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.runtime.run_dir import IMAGES, RANK_STORE, WEIGHT_STORE
from asyncrl.tasks.images.vision_model import run_images
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.adapters import add_adapters, published
from asyncrl.training.checkpoint_index import latest
from asyncrl.training.checkpoint_io import restore, restore_state
from asyncrl.training.context_ranks import context_of, refuse_context
from asyncrl.training.forward import falls_back, shares
from asyncrl.training.kl_terms import open_kl_terms
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError, load_model
from asyncrl.training.output_layer import float32_output
from asyncrl.training.ranks.given_state import share_state
from asyncrl.training.ranks.opening import opened_by_rank
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.ranks.rank_group import RankGroup, open_ranks, shard
from asyncrl.training.rounding import round_in_training
from asyncrl.training.shown_images import TrainedImages, freeze_tower
from asyncrl.training.staging import Staging
from asyncrl.training.stored_model import ModelRows
from asyncrl.training.stored_state import read_state
from asyncrl.training.supervised import open_supervised
from asyncrl.training.trial import try_passes
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.narrowed import SentWeights
from asyncrl.weightsync.stores import LOOPBACK, interface_of, open_store, own_address, served_store
from asyncrl.weightsync.trainer_canary import TrainerCanary
from asyncrl.weightsync.transport import TrainerSide, transport_of

logger = logging.getLogger(__name__)


async def trainer_process(context: ActorContext) -> None:
    """A learner from the newest checkpoint, or from the initial model: rank 0 is driven by the
    coordinator, and drives the other ranks."""
    config, waits = context.config, own_waits()
    torch.manual_seed(config.run.seed)
    if context.index:
        with _ending_at_once():
            await _follow(context, waits)
        return
    checkpoint = latest(context.run) if context.resume else None
    with refused_as_input():
        model, weights = _model(context, checkpoint)
    if (size := ranks_of(config.train)) == 1:
        with refused_as_input():
            _try(model, context, ALONE)
        learner = _learner(context, model, ALONE, checkpoint)
        await _lead(context, learner, RankOrders((), waits, 0.0), waits)
        return
    host = LOOPBACK if context.rank_0 is None else config.publication.host
    with _ending_at_once(), served_store(host, context.run / RANK_STORE) as store:
        meet = Meet(store, size)
        async with open_orders(context, meet, waits) as orders:
            with _rank(context, model, weights, meet) as rank:
                orders.times = rank.times
                learner = _learner(context, model, rank, checkpoint)
                await _lead(context, learner, orders, waits)
                await orders.end()


async def _follow(context: ActorContext, waits: Waits) -> None:
    """Another rank's life, here or on another machine."""
    spread = _spread(context)
    checkpoint = latest(context.run) if context.resume and not spread else None
    with refused_as_input():
        model, weights = _model(context, checkpoint)
    async with open_rank(context, waits) as (link, meet):
        with _rank(context, model, weights, meet) as rank:
            learner = _learner(context, model, rank, checkpoint)
            carried = CarriedOrder(learner, context)
            await obey(link, context.index, carried, waits, rank.times)
            await trio.to_thread.run_sync(carried.finish)


def _spread(context: ActorContext) -> bool:
    """True if some ranks are on other machines, and so all are given rank 0's weights."""
    return context.head is not None or context.config.cluster.trainer_agents > 0


async def _lead(context: ActorContext, learner: Learner, orders: RankOrders, waits: Waits) -> None:
    """Rank 0's life: a sender of weights, and the coordinator's link."""
    config, sent = context.config, context.sent
    with refused_as_input():
        still = context.stays(learner.model)
        plan = Plan.of(_sent(learner, sent), config.publication.bucket_bytes, still)
    async with ScoringServers.open(config, waits) as servers:
        with refused_as_input():
            own, patience_s = Tokenizer(context.initial), config.supervision.start_s / 2
            await servers.refuse_other_vocabularies(own, patience_s)
        compared = capabilities(config.engine.kind).compares_canary
        canary = TrainerCanary(context.engine_model, sent, own) if compared else None
        source = PublishedWeights(learner, orders, plan, sent, canary)
        side = TrainerSide(config, context.run / WEIGHT_STORE, source, learner.model)
        async with (
            transport_of(config).open_sender(side) as sender,
            await context.link() as link,
        ):
            threaded = RankedLearner(learner, orders, servers, context, Staging())
            reporter = Reporter(waits)
            if learner.images is not None:
                reporter.follow("image_bytes", learner.images.read_bytes)
            await trainer_actor(link, threaded, sender, waits, reporter)


def _sent(learner: Learner, sent: SentWeights) -> Iterator[tuple[str, Tensor]]:
    """All that a publication sends; of several ranks the shapes."""
    model, rank = learner.model, learner.rank
    if rank.size == 1:
        return sent.of(model)
    shapes = (
        (
            name,
            torch.empty(
                tensor.shape,
                dtype=rank.computes(model) if tensor.is_floating_point() else tensor.dtype,
                device="meta",
            ),
        )
        for name, tensor in published(model)
    )
    return sent.narrowed(shapes, model)


@contextmanager
def _rank(
    context: ActorContext, model: PreTrainedModel, weights: ModelRows | None, meet: Meet
) -> Iterator[RankGroup]:
    """This process's rank of several, which meets the others, and reads its shard of the model."""
    train, start_s = context.config.train, context.config.supervision.start_s
    _use_network_of(meet.store)
    store = open_store(meet.store, timedelta(seconds=start_s))
    every = (context.index, meet.size, train.replicas, train.context_ranks)
    with open_ranks(train.device, store, *every, patience_s=start_s) as mesh:
        with refused_as_input():
            rank = shard(model, mesh, weights, writes=context.head is None)
            _try(model, context, rank)
        yield rank


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
    except Exception as error:  # noqa: BLE001 (the process ends with it)
        sys.excepthook(*sys.exc_info())
        logging.shutdown()
        os._exit(DISK_NOT_READY if of_disk(error) else 1)


def _model(
    context: ActorContext, checkpoint: Path | None
) -> tuple[PreTrainedModel, ModelRows | None]:
    """The model of the checkpoint, or the initial one, on the trainer's device; one with adapters
    is the initial one, and the checkpoint's adapters come later. Of several ranks it has no memory,
    and its weights come by rows. Raises ModelError for one that cannot be trained."""
    config, lora, weights = context.config, context.config.model.lora, None
    path = context.initial if checkpoint is None or lora.rank else checkpoint
    if ranks_of(config.train) > 1:
        device, spread = torch.device(config.train.device), _spread(context)
        path = context.initial if context.index and spread else path
        model, weights = opened_by_rank(path, context.dtype, context.index, device, given=spread)
    else:
        model = load_model(path, context.dtype)
    if config.model.output_dtype == "float32":
        float32_output(model)
    if config.model.rounding == "fp8":
        round_in_training(model)
    if lora.rank:
        add_adapters(model, lora)
    elif not config.model.train_vision:
        freeze_tower(model)
    if weights is None:
        torch.nn.Module.to(model, config.train.device)
    return model, weights


def _try(model: PreTrainedModel, context: ActorContext, rank: Rank) -> None:
    """Settle on the passes of a model, by trying them. All ranks call this alike. Raises ModelError
    where none will do."""
    tried = try_passes(model, context.config.engine.context_tokens, rank.computes(model))
    rank.let_go(model)
    logger.info("tried on a few texts: %s", tried)
    if context_of(model) is not None:
        refuse_context(model, shares=shares(model))
    if falls_back(model) and context.config.train.attention == "blocks":
        raise ModelError(
            f"train.attention is blocks, and the trainer would compute {tried.attention}; install "
            "a C compiler (gcc and the C library's headers) and mount the temporary directory with "
            "exec, or set train.attention to auto"
        )


def _learner(
    context: ActorContext, model: PreTrainedModel, rank: Rank, checkpoint: Path | None
) -> Learner:
    """The learner of a model, as it was at the checkpoint; the run started from the initial one.
    What cannot be opened ends this process as bad input does."""
    config = context.config
    with refused_as_input():
        images = run_images(context.run / IMAGES, context.initial)
        learner = Learner(
            model,
            replace(config.train, steps=steps(config)),  # the schedule ends where the data does
            config.staleness,
            config.rollout.temperature,
            budget=config.rollout.max_new_tokens,
            kl_terms=open_kl_terms(
                config, context.initial, context.dtype, model, rank, given=_spread(context)
            ),
            supervised=open_supervised(config, context.initial),
            rank=rank,
            images=None if images is None else TrainedImages(images, model),
        )
        if _spread(context):
            stored = read_state(checkpoint) if checkpoint is not None else None
            stored = share_state(stored, torch.device(config.train.device))
            if stored is not None:
                restore_state(stored, learner)
        elif checkpoint is not None:
            restore(checkpoint, learner)
    return learner
