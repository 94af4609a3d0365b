"""Each rank's part of an order, as its learner carries it out; rank 0 has the others do theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import trio
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.rank_orders import RankOrders
from asyncrl.actors.scoring_servers import ScoringServers
from asyncrl.actors.trainer_actor import Write
from asyncrl.messages import (
    CloseStep,
    Gather,
    MeasureLoss,
    Message,
    MicroBatch,
    Save,
    ScoreProximal,
    TokenCount,
)
from asyncrl.runtime.run_dir import ADAPTER, MODEL, MODEL_EMA
from asyncrl.training.adapters import adapted, merged_model
from asyncrl.training.checkpoint_index import checkpoint_path
from asyncrl.training.checkpoint_io import (
    StagedCheckpoint,
    export,
    export_adapters,
    take,
    write,
)
from asyncrl.training.forward import falls_back
from asyncrl.training.kl_terms import served_names
from asyncrl.training.learner import Learner
from asyncrl.training.models import in_dtype, parameters_for_publication
from asyncrl.training.rounding_gap import rounding_gap
from asyncrl.training.staging import Staging
from asyncrl.training.stored_dtype import saved_dtype
from asyncrl.weightsync.narrowed import SentWeights


@dataclass(frozen=True)
class RankedLearner:
    """Rank 0's learner, as the trainer actor drives it: it computes in a thread, beside the other
    ranks."""

    learner: Learner
    orders: RankOrders
    servers: ScoringServers
    context: ActorContext
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
        if falls_back(self.learner.model):
            metrics = metrics | {"attention_by_tables": 1.0}
        return metrics

    async def copy(self, save: Save) -> Write:
        """Copy the state of all ranks; what is returned writes the copy, in a thread."""
        own = partial(_taken, self.learner, self.context.initial, self.staging, save)
        staged, whole = await self.orders.give(save, (), own)
        assert staged is not None, "rank 0 has the copy"
        written = partial(_written, self.context, staged, whole, save)
        return partial(trio.to_thread.run_sync, written)


@dataclass(frozen=True)
class CarriedOrder:
    """Another rank's part of each order."""

    learner: Learner
    context: ActorContext

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
                _taken(self.learner, self.context.initial, Staging(), order)
            case Gather(average):
                gathered(self.learner, average)
            case _:
                raise ValueError(f"a rank does not understand {type(order).__name__}")


def gathered(
    learner: Learner, average: bool
) -> tuple[PreTrainedModel | None, PreTrainedModel | None]:
    """This rank's part of gathering the model, and the average of its weights where it is wanted;
    rank 0 has them then."""
    model = learner.rank.gathered(learner.model)
    if not average:
        return model, None
    assert learner.average is not None, "evaluation.weights needs train.ema"
    return model, learner.average.gathered()


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


def _taken(
    learner: Learner, initial: Path, staging: Staging, save: Save
) -> tuple[StagedCheckpoint | None, dict[str, PreTrainedModel]]:
    """This rank's part of the copy for a checkpoint; rank 0 has it then. After the last step it
    also has, by their places in the run's directory, the models that are for use elsewhere: nothing
    changes them any more."""
    staged, whole = take(learner, save.cursor, staging), dict[str, PreTrainedModel]()
    if save.models != "no":
        average = learner.average.gathered() if learner.average else None
        if staged is not None:
            # made here: that changes settings of the process, which the writing goes beside
            whole[MODEL] = _to_leave(staged.model, initial)
        if average is not None:
            whole[MODEL_EMA] = _to_leave(average, initial)
    return staged, whole


def _to_leave(model: PreTrainedModel, initial: Path) -> PreTrainedModel:
    """The model for use elsewhere: without adapters, and in the type of the directory that the run
    started from."""
    whole = merged_model(model)
    trained = str(whole.dtype).removeprefix("torch.")
    return in_dtype(whole, getattr(torch, saved_dtype(trained, initial)))


def _written(
    context: ActorContext,
    staged: StagedCheckpoint,
    whole: Mapping[str, PreTrainedModel],
    save: Save,
) -> Path:
    """Write a checkpoint, unless it is there, and the models for use elsewhere. Raises
    CheckpointError."""
    path = checkpoint_path(context.run, staged.version)
    if save.models != "alone":
        path = write(context.run, staged, context.initial)
    for name, model in whole.items():
        export(context.run / name, model, context.initial)
    if whole and adapted(staged.model):
        export_adapters(context.run / ADAPTER, staged.model)
    return path
