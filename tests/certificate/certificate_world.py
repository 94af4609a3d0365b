"""A whole run in one process with nothing scripted but the clockwork of its parts: real
coordinator, actors, links, engines and learner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import trio
from numpy.typing import NDArray
from scripted_parts import STOP, VOCABULARY, ScriptedVerifiers
from scripted_world import ScriptedWorld, configured
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from asyncrl.actors.trainer_actor import Write
from asyncrl.config import Config
from asyncrl.engines.embedded import EmbeddedEngine, programs
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.experience import events as e
from asyncrl.messages import MicroBatch, Prepare, Publish, Save, Scored, Split, TokenCount, Verdict
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.training.learner import Learner
from asyncrl.training.models import parameters_for_publication
from asyncrl.training.ranks.rank_group import shard

CONTEXT = 64


def random_model(seed: int = 0) -> PreTrainedModel:
    """A tiny model with random weights, spread enough that a step changes what is sampled."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).eval()


def short(**sections: dict[str, object]) -> Config:
    """Five steps of two groups, in micro-batches of a group or less."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 0, "train_size": 40},
        "engine": {"kind": "embedded", "slots": 8, "context_tokens": CONTEXT, "chunk_tokens": 4},
        "rollout": {"max_new_tokens": 12, "temperature": 0.8},
        "train": {
            "steps": 5,
            "batch_groups": 2,
            "eval_every": 0,
            "micro_tokens": 64,
            "lr": 3e-3,
            "lr_warmup_steps": 2,
            "weight_decay": 0.1,
        },
        "staleness": {"max_lag": 0, "depth": 0},
    }
    return configured(
        **{
            name: settings.get(name, {}) | sections.get(name, {})
            for name in settings.keys() | sections.keys()
        }
    )


def judge(prompt_index: int, ids: Sequence[int]) -> float:
    """A reward that differs within a group: the share of even ids, and more for each that is the
    item's own."""
    return sum((token % 2 == 0) + (token % 40 == prompt_index) for token in ids) / len(ids)


def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
    return Scored(judge(prompt_index, np.frombuffer(ids, np.int32).tolist()))


def engine_of(
    model: PreTrainedModel, config: Config, waits: Waits | None = None, *, traced: bool = False
) -> EmbeddedEngine:
    """An engine as a rollout actor has it; not `traced`, it runs the modules themselves, as it does
    where a trace does not agree with the model: to trace takes a third of such a run."""
    with ExitStack() as stack:
        if not traced:
            stack.enter_context(mock.patch.object(programs, "_traced", lambda step, _: step))
        return EmbeddedEngine(
            copy.deepcopy(model),
            EmbeddedOptions(
                slots=config.engine.slots,
                context_tokens=config.engine.context_tokens,
                chunk_tokens=config.engine.chunk_tokens,
                stop_ids=frozenset({STOP}),
                run_seed=config.run.seed,
                kv=config.engine.kv,
                packed_from=config.engine.slots + 1,
            ),
            idle=waits.idle_for if waits else nullcontext,
        )


class RealLearner:
    """The trainer's learner, computing in a thread as it does in its process. `losses` are of its
    steps."""

    store = ""

    def __init__(self, model: PreTrainedModel, config: Config) -> None:
        self.learner = Learner(
            copy.deepcopy(model),
            config.train,
            config.staleness,
            config.rollout.temperature,
            budget=config.rollout.max_new_tokens,
        )
        self.losses: list[float] = []

    last_rank = None

    @property
    def version(self) -> int:
        return self.learner.version

    @property
    def counts(self) -> list[TokenCount]:
        return self.learner.counts

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        return await trio.to_thread.run_sync(self.learner.accumulate, batch, buffers)

    async def step(self) -> dict[str, float]:
        metrics = await trio.to_thread.run_sync(self.learner.step)
        self.losses.append(metrics["loss"])
        return metrics

    async def copy(self, save: Save) -> Write:
        path = Path(f"/checkpoints/{self.version}")

        async def write() -> Path:
            await trio.lowlevel.checkpoint()
            return path

        await trio.lowlevel.checkpoint()
        return write

    async def send(self, message: Publish) -> Staged:
        await trio.lowlevel.checkpoint()
        return Staged(self.weights())

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            name: tensor.clone() for name, tensor in parameters_for_publication(self.learner.model)
        }


def sharded(config: Config, mesh: DeviceMesh) -> Learner:
    """The learner of one of several ranks."""
    model = random_model()
    rank = shard(model, mesh)
    return Learner(
        model,
        config.train,
        config.staleness,
        config.rollout.temperature,
        budget=config.rollout.max_new_tokens,
        rank=rank,
    )


class RankedLearner(RealLearner):
    """A learner of several ranks, each in a process (`rank_world.ranks` of `sharded`)."""

    version = 0
    counts: ClassVar[list[TokenCount]] = []

    def __init__(self, each: Callable[[Callable[[Learner], Any]], list[Any]]) -> None:
        self._each = each
        self.losses: list[float] = []

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        told = methodcaller("accumulate", batch, [bytes(buffer) for buffer in buffers])
        counts: list[TokenCount] = (await trio.to_thread.run_sync(self._each, told))[0]
        return counts

    async def step(self) -> dict[str, float]:
        metrics: dict[str, float] = (
            await trio.to_thread.run_sync(self._each, methodcaller("step"))
        )[0]
        self.version += 1
        self.losses.append(metrics["loss"])
        return metrics

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in self._each(_gathered)[0].items()}


def _gathered(learner: Learner) -> dict[str, NDArray[np.float32]]:
    """Weights of all ranks."""
    learner.rank.let_go(learner.model)
    named = parameters_for_publication(learner.model)
    return {name: learner.rank.as_computed(tensor).numpy() for name, tensor in named}


class Staged:
    """Weights that came by hand; what they are checked by says nothing."""

    average = None

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights, self.checksums, self.sent_bytes = weights, [0], 0
        self.canary: list[float] = []


class RealWorld(ScriptedWorld):
    """One run, in real time; with `traced` engines, or others."""

    def __init__(self, config: Config, model: PreTrainedModel, *, traced: bool = False) -> None:
        super().__init__(config)
        self._model, self._traced = model, traced
        self.learner: RealLearner = RealLearner(model, config)  # type: ignore[assignment]
        self.verifiers = ScriptedVerifiers(verdict, 0.0)

    def make_engine(self, process: SimProcess) -> EmbeddedEngine:
        return engine_of(self._model, self.config, process.waits, traced=self._traced)

    async def receive(self, index: int, message: Prepare) -> Staged:
        await trio.lowlevel.checkpoint()
        assert self.learner.version == message.version
        return Staged(self.learner.weights())

    def responses(self) -> dict[tuple[int, int], list[int]]:
        """Ids of each training rollout, by item and place in its group."""
        return {
            key: np.frombuffer(ids, np.int32).tolist() for key, (ids, _) in self.sampled().items()
        }

    def sampled(self, version: int | None = None) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """Ids and behaviour log-probabilities of each, as they were streamed; or only what was
        sampled under `version`."""
        whose: dict[int, tuple[int, int]] = {}
        found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        for event in self.log.events:
            if isinstance(event, e.Admitted):
                whose |= {
                    event.first + member: (event.prompt_index, member)
                    for member in range(event.size)
                }
            elif isinstance(event, e.Extended) and version in (None, event.version):
                ids, behaviour = found.get(whose[event.rollout], (b"", b""))
                found[whose[event.rollout]] = ids + event.ids, behaviour + event.behaviour
        return found
