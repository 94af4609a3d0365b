"""Each rank's part of an order, as its learner carries it out; rank 0 has the others do theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import trio
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.rank_orders import RankOrders
from asyncrl.actors.scoring_servers import ScoringServers
from asyncrl.actors.trainer_actor import Write
from asyncrl.engines import canary
from asyncrl.messages import (
    CloseStep,
    Gather,
    LastRank,
    MeasureLoss,
    Message,
    MicroBatch,
    Save,
    Score,
    ScoreProximal,
    TokenCount,
)
from asyncrl.runtime.run_dir import ADAPTER, MODEL, MODEL_EMA
from asyncrl.training.adapters import adapted, learning, published_names
from asyncrl.training.checkpoint_index import CheckpointError, checkpoint_path
from asyncrl.training.checkpoint_io import (
    StagedCheckpoint,
    export_adapters,
    export_staged,
    take,
    write,
)
from asyncrl.training.forward import falls_back
from asyncrl.training.kl_terms import served_names
from asyncrl.training.learner import Learner
from asyncrl.training.model_writing import StagedModel, stage_model
from asyncrl.training.models import parameters_for_publication
from asyncrl.training.ranks.last_rank import last_rank, rank_figures
from asyncrl.training.ranks.rank import Rank
from asyncrl.training.rounding_gap import rounding_gap
from asyncrl.training.staging import Staging
from asyncrl.training.stored_dtype import saved_dtype
from asyncrl.weightsync.narrowed import SentWeights

logger = logging.getLogger(__name__)


@dataclass
class RankedLearner:
    """Rank 0's learner, as the trainer actor drives it: it computes in a thread, beside the other
    ranks. `last_rank` is of the last step."""

    learner: Learner
    orders: RankOrders
    servers: ScoringServers
    context: ActorContext
    staging: Staging
    last_rank: LastRank | None = None

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
        of_servers = [
            memoryview(served[name].view(np.uint8).data)
            for name in served_names(self.context.config)
        ]
        return await self.orders.give(batch, [*buffers, *of_servers], own)

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        own = partial(self.learner.score_proximal, message, buffers)
        await self.orders.give(message, buffers, own)

    async def measure(
        self, message: MeasureLoss, buffers: Sequence[memoryview]
    ) -> tuple[float, int]:
        own = partial(self.learner.measure, message, buffers)
        return await self.orders.give(message, buffers, own)

    async def step(self) -> dict[str, float]:
        own = partial(_stepped, self.learner, self.context)
        metrics = await self.orders.give(CloseStep(self.version), (), own)
        if len(spent := self.orders.spent()) > 1:
            self.last_rank = last_rank(spent)
            metrics = metrics | rank_figures(spent)
        if falls_back(self.learner.model):
            metrics = metrics | {"attention_by_tables": 1.0}
        return metrics

    async def copy(self, save: Save) -> Write:
        """Copy the state of all ranks; what is returned writes the copy, in a thread."""
        own = partial(_taken, self.learner, self.context.initial, self.staging, save)
        taken = await self.orders.give(save, (), own)
        written = partial(_written, self.context, taken, save, self.learner.rank)
        return partial(trio.to_thread.run_sync, written)


class CarriedOrder:
    """Another rank's part of each order. What it copies for a checkpoint is written in a thread,
    beside the orders that follow, up to `finish`."""

    def __init__(self, learner: Learner, context: ActorContext) -> None:
        self.learner, self.context = learner, context
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1)
        self._writes: Future[None] | None = None

    def finish(self) -> None:
        """Wait until the last copy is written. Raises what its writing raised."""
        writes, self._writes = self._writes, None
        if writes is not None:
            writes.result()

    def _save(self, save: Save) -> None:
        self.finish()  # as rank 0 has, or it would not have given this order
        taken = _taken(self.learner, self.context.initial, self._staging, save)

        def write() -> None:
            try:
                _written(self.context, taken, save, self.learner.rank)
            except CheckpointError as error:  # which rank 0 tells the coordinator
                logger.warning("%s", error)

        self._writes = self._thread.submit(write)

    def __call__(self, order: Message, buffers: Sequence[memoryview]) -> None:
        match order:
            case MicroBatch():
                names = served_names(self.context.config)
                first = len(buffers) - len(names)
                served = {
                    name: np.frombuffer(buffer, np.float32)
                    for name, buffer in zip(names, buffers[first:], strict=True)
                }
                self.learner.accumulate(order, buffers[:first], served)
            case ScoreProximal():
                self.learner.score_proximal(order, buffers)
            case MeasureLoss():
                self.learner.measure(order, buffers)
            case CloseStep():
                _stepped(self.learner, self.context)
            case Save():
                self._save(order)
            case Gather():
                for _ in gathered(self.learner, order):
                    pass
            case Score():
                scored(self.learner, self.context.sent, np.frombuffer(buffers[0], np.int32))
            case _:
                raise ValueError(f"a rank does not understand {type(order).__name__}")


def gathered(learner: Learner, order: Gather) -> Iterator[tuple[str, Tensor]]:
    """This rank's part of gathering some of what is published, one tensor after another: rank 0 has
    each whole, in host memory. All of them have to be taken."""
    model, rank = learner.model, learner.rank
    if order.average:
        assert learner.average is not None, "evaluation.weights needs train.ema"
    weights = learner.average.weights() if order.average and learner.average else {}
    rank.let_go(model)  # else the parameters are what a pass left gathered
    own = dict(model.named_parameters()) | dict(weights)  # a frozen part is sent, too
    for name, parameter in islice(published_names(model), order.first, order.end):
        found = rank.as_computed(own[parameter]) if parameter else torch.empty(0, dtype=torch.uint8)
        # a replica that has the whole is given its own weights, which training changes beside
        yield name, found if rank.index else found.to("cpu", copy=True)


def scored(learner: Learner, sent: SentWeights, ids: NDArray[np.int32]) -> list[float]:
    """This rank's part of scoring the canary's text by the weights that engines are sent: with a
    temporary copy of its shards where they are rounded."""
    rank, model = learner.rank, learner.model
    rank.let_go(model)
    try:
        exact = not sent.fp8 and sent.dtype.itemsize >= rank.computes(model).itemsize
        if exact or adapted(model):
            return canary.scored(model, ids, model.device)
        own = dict(learning(model))
        rounded = {
            name: rank.sharded(tensor, like=own[name]).to(own[name].dtype, copy=True)
            for name, tensor in _sent(learner, sent)
        }
        with rank.stand_in(model).of(rounded) as other:
            return canary.scored(other, ids, model.device)
    finally:
        rank.let_go(model)


def _stepped(learner: Learner, context: ActorContext) -> dict[str, float]:
    """This rank's part of a step, and, where a publication rounds, of measuring what that changes,
    in nats a token: it makes a temporary copy of the weights."""
    metrics = learner.step()
    if not context.config.publication.rounds(context.config.model):
        return metrics
    gap = rounding_gap(learner.model, _sent(learner, context.sent), learner.rank)
    return metrics | {"published_gap": gap}


def _sent(learner: Learner, sent: SentWeights) -> Iterator[tuple[str, Tensor]]:
    """Each weight of the model as it is sent, whole: for that the ranks gather it."""
    rank, model = learner.rank, learner.model
    dtype = rank.computes(model)
    whole = ((name, rank.whole(p).to(dtype)) for name, p in parameters_for_publication(model))
    return sent.narrowed(whole, model)


class Copy(NamedTuple):
    """A rank's part of what is saved: a checkpoint, and after the last step, by their places in the
    run's directory, the models that are for use elsewhere: nothing changes them any more."""

    checkpoint: StagedCheckpoint
    models: Mapping[str, StagedModel]


def _taken(learner: Learner, initial: Path, staging: Staging, save: Save) -> Copy:
    """This rank's part of the copy of all ranks."""
    checkpoint, models = take(learner, save.cursor, staging), dict[str, StagedModel]()
    if save.models == "no":
        return Copy(checkpoint, models)
    rank, model, average = learner.rank, learner.model, learner.average
    computed = rank.computes(model)
    trained = str(computed).removeprefix("torch.")
    # in the type of the directory that the run started from
    dtype: torch.dtype = getattr(torch, saved_dtype(trained, initial))
    if checkpoint.model is not None and dtype == computed:
        models[MODEL] = checkpoint.model
    else:
        models[MODEL] = stage_model(rank, model, staging, dtype=dtype)
    if average is not None:
        own = average.policy.model if average.policy else model
        weights = None if average.policy else average.weights()
        models[MODEL_EMA] = stage_model(rank, own, staging, weights, dtype)
    staging.end()
    return Copy(checkpoint, models)


def _written(context: ActorContext, copy: Copy, save: Save, rank: Rank) -> Path:
    """Write this rank's part of a checkpoint, unless it is there, and of the models for use
    elsewhere. Raises CheckpointError."""
    checkpoint = copy.checkpoint
    path = checkpoint_path(context.run, checkpoint.version)
    if save.models != "alone":
        path = write(context.run, checkpoint, context.initial, rank)
    for name, model in copy.models.items():
        export_staged(context.run / name, model, context.initial, rank)
    if copy.models and checkpoint.adapters and not rank.index:
        export_adapters(context.run / ADAPTER, checkpoint.adapters)
    return path
