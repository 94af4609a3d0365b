"""Several ranks give the gradient, the counts and the metrics of one: the naive float64 reference's
and those of a learner alone."""

from __future__ import annotations

import math
import random
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rank_world import SMALL_PACKS, on_ranks
from some_values import some
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from training_world import CONFIGS, build, micro_batch, reference, rollouts

from asyncrl.actors.rank_parts import gathered
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.explain.conditions.slow_rank import TIMES
from asyncrl.messages import RankStand, TokenCount
from asyncrl.messages.rank_messages import Gather
from asyncrl.staleness.corrections import IcePop
from asyncrl.training import packing
from asyncrl.training.adapters import published, published_names
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.training.learner import Learner
from asyncrl.training.ranks.last_rank import Spent, last_rank
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.ranks.rank_group import RankGroup, mesh_of, shard
from asyncrl.weightsync.servers.server_checksums import WantedHashes, expected
from asyncrl.weightsync.servers.server_hashes import of_host

TRAIN = TrainConfig(grad_clip=0.3, lr_warmup_steps=0, lr=1e-3)
STALENESS = StalenessConfig(correction=(IcePop(lo=0.5, hi=2.5),))
TEMPERATURE = 1.3
LATE_S = 0.5
PARTS = ((0, 1, 2, 3), (4,), (5, 6, 7, 8), ())
"""Rollouts of each micro-batch: several packed batches, one, and none."""


Arrays = dict[str, NDArray[np.float32]]


class Case(NamedTuple):
    name: str
    dtype: torch.dtype = torch.float32
    recompute: bool = False
    updates: bool = False
    """Two passes over two minibatches each."""
    parts: Sequence[Sequence[int]] = PARTS
    clip: float = 0.3
    temperature: float = TEMPERATURE
    late: bool = False
    """The last rank sleeps before each pass; and all step by the fused AdamW."""


class Found(NamedTuple):
    """Of one step: the gradient before it was clipped, but of held micro-batches, the last that the
    optimizer saw, the weights after it, and what was said."""

    gradients: dict[str, NDArray[np.float32]]
    seen: dict[str, NDArray[np.float32]]
    weights: dict[str, NDArray[np.float32]]
    counts: list[TokenCount]
    metrics: dict[str, float]
    spent: Spent


CASES = [
    *map(Case, CONFIGS),
    Case("qwen3", torch.bfloat16),
    Case("llama", recompute=True),
    Case("qwen3", updates=True),
    Case("qwen3", late=True),
]


def uneven(seed: int) -> Case:
    """Micro-batches of any sizes, of which some leave ranks with nothing."""
    draw = random.Random(seed)
    places = [draw.randrange(6) for _ in range(9)]
    parts = [[n for n, at in enumerate(places) if at == place] for place in range(6)]
    clip = draw.choice([0.05, 1e9])
    return Case(draw.choice([*CONFIGS]), parts=parts, clip=clip, temperature=0.7)


UNEVEN = [
    Case("qwen3", parts=[[n] for n in range(9)], clip=1e9),  # one rank has all that there is
    Case("llama", parts=[[], [7], [], [*range(7), 8]], temperature=0.7),
    *map(uneven, range(2)),
]


def step(case: Case, mesh: DeviceMesh | None) -> Found:
    """One step of a learner at this rank, of four micro-batches."""
    model = build(case.name, case.dtype)
    every = rollouts(build(case.name), seed=5, temperature=case.temperature)
    rank: Rank = shard(model, mesh) if mesh else ALONE
    if case.late and mesh and rank.index == rank.size - 1:
        model.register_forward_pre_hook(lambda *_: time.sleep(LATE_S))
    rank.added(torch.zeros(1))  # all begin at once, as with an order
    before, began = stand_of(rank), time.monotonic()
    several = 2 if case.updates else 1
    train = msgspec.structs.replace(
        TRAIN,
        recompute_activations=case.recompute,
        minibatches=several,
        passes=several,
        grad_clip=case.clip,
        optimizer="adamw_fused" if case.late else "adamw",
    )
    learner = Learner(model, train, STALENESS, case.temperature, rank=rank)
    counts = []
    for index, members in enumerate(case.parts):
        part = [every[member] for member in members]
        counts += learner.accumulate(*micro_batch(part, every, 0, index))

    def of_weights() -> Arrays:
        return {
            name: rank.whole(weight.grad).float().numpy().copy()
            for name, weight in learner.master_weights.named()
            if weight.grad is not None
        }

    gradients, seen = of_weights(), Arrays()
    learner.optimizer.register_step_pre_hook(lambda *_: seen.update(of_weights()))
    metrics = learner.step()
    counts += learner.counts  # of micro-batches that were held
    weights = {
        name: rank.whole(weight).float().numpy() for name, weight in learner.master_weights.named()
    }
    after, seconds = stand_of(rank), time.monotonic() - began
    waited_s = after.waited_s - before.waited_s
    spent = Spent(waited_s, seconds - waited_s, after.work - before.work)
    return Found(gradients, seen, weights, counts, metrics, spent)


def stand_of(rank: Rank) -> RankStand:
    return rank.times.stand if isinstance(rank, RankGroup) else RankStand()


def steps(mesh: DeviceMesh) -> list[Found]:
    return [step(case, mesh) for case in (*CASES, *UNEVEN)]


@pytest.fixture(scope="module", params=some([2, 1, 3, 4], 4))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list:
    return on_ranks(tmp_path_factory.mktemp("ranks") / "store", request.param, steps)


@pytest.fixture(scope="module")
def alone() -> list[Found]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", SMALL_PACKS)
        return [step(case, None) for case in CASES]


@pytest.mark.explore
def test_every_rank_is_told_the_same(found: list[list[Found]]) -> None:
    first, *others = found
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert mine.counts == theirs.counts
            assert mine.metrics == theirs.metrics


def test_gradients_weights_counts_and_metrics_are_those_of_one_rank(
    found: list[list[Found]], alone: list[Found]
) -> None:
    for case, several, one in zip(CASES, found[0], alone, strict=False):
        exact = case.dtype == torch.float32
        assert several.counts == one.counts or not exact
        close(several.gradients, one.gradients, 1e-6 if exact else 1e-2)
        learned = [  # a key's bias has no gradient but rounding, which AdamW scales up
            {name: each for name, each in of.weights.items() if not name.endswith("c_attn.bias")}
            for of in (several, one)
        ]
        close(*learned, 1e-5 if exact else 1e-2)
        for name, value in one.metrics.items():
            assert several.metrics[name] == pytest.approx(value, rel=1e-5 if exact else 0.05)


def test_the_last_rank_is_known_by_the_seconds_that_the_others_wait(
    found: list[list[Found]],
) -> None:
    late = [case.late for case in CASES].index(True)
    spent = [of_rank[late].spent for of_rank in found]
    if len(spent) == 1:
        return
    last = last_rank(spent)
    assert last.rank == len(spent) - 1 and last.waited > 0.2 and last.times > TIMES, spent
    assert all(other.waited > spent[-1].waited for other in spent[:-1]), spent


@pytest.mark.parametrize("case", UNEVEN, ids=lambda case: f"{[len(p) for p in case.parts]}")
def test_the_optimizer_sees_the_gradient_of_a_loop_in_float64(
    found: list[list[Found]], case: Case
) -> None:
    """Its mean over the tokens of the whole step, its norm over all shards, and that norm clipped,
    however the step was cut."""
    several, model = found[0][len(CASES) + UNEVEN.index(case)], build(case.name)
    every = rollouts(model, seed=5, temperature=case.temperature)
    gradient, loss, outcome = reference(model, every, TRAIN, STALENESS, case.temperature)
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in gradient.values()))
    shorter = min(1.0, case.clip / norm)
    assert (shorter < 1) is (case.clip < 1), "or this shows nothing"
    expected = {name: shorter * one.numpy() for name, one in gradient.items()}
    close(several.seen, expected, 1e-5)
    assert several.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert several.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    counts = {count.rollout: (count.trained, count.discarded) for count in several.counts}
    assert counts == outcome


def close(got: Arrays, expected: Arrays, to: float) -> None:
    assert got.keys() == expected.keys()
    scale = max(float(np.abs(array).max()) for array in expected.values()) if expected else 0.0
    for name, array in expected.items():
        assert float(np.abs(got[name] - array).max()) <= to * scale, name


def sent_wrongly(mesh: DeviceMesh) -> list[str]:
    """Weights that are not sent as they were, where a pass has left them gathered, and training
    goes on before they are sent; of ranks that have shards, and of such that have the whole."""
    wrong = list[str]()
    for replicas in (1, mesh.size()):
        model = build("qwen3")
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        rank = shard(model, mesh_of("cpu", torch.arange(mesh.size()), replicas))
        rank.keep_up(model, backward=False)
        learner: Any = SimpleNamespace(model=model, rank=rank, average=None)
        sent = list(gathered(learner, Gather()))
        rank.let_go(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(1.0)
        own = {name: before[parameter] for name, parameter in published_names(model) if parameter}
        for name, weight in [] if rank.index else sent:
            if name in own and not (weight.numel() and torch.equal(weight, own[name])):
                wrong.append(f"{name} of {replicas}")
    return wrong


def hashed_in_passing(mesh: DeviceMesh) -> tuple[bool, int, int]:
    """True if the hashes of what servers are sent are those of the whole model, at rank 0; and the
    most bytes that whole weights take at a time, over those of the largest one and of all."""
    model = build("qwen3")
    names = CheckpointNames(model)
    made = {name: tensor.detach().clone() for name, tensor in names.tensors(dict(published(model)))}
    tensors = {name: ((name,), ("whole", "rows")) for name in made}
    wanted = [(WantedHashes(2, tensors), of_host)]
    alone = expected(wanted, made.items())
    sizes = [tensor.nbytes for tensor in made.values()]
    learner: Any = SimpleNamespace(model=model, rank=shard(model, mesh), average=None)
    live, most = 0, 0

    def freed(size: int) -> None:
        nonlocal live
        live -= size

    def watched() -> Iterator[tuple[str, Tensor]]:
        nonlocal live, most
        for name, whole in gathered(learner, Gather()):
            live += whole.nbytes
            most = max(most, live)
            weakref.finalize(whole.untyped_storage(), freed, whole.nbytes)
            yield name, whole
            del whole

    if mesh.get_rank():
        for _ in gathered(learner, Gather()):
            pass
        return True, 0, 0
    found = expected(wanted, names.streamed(watched()))
    return found == alone, -(-most // max(sizes)), sum(sizes) // most


def test_what_servers_are_sent_is_hashed_while_it_is_gathered(tmp_path: Path) -> None:
    (right, largest, share), _ = on_ranks(tmp_path / "store", 2, hashed_in_passing)
    assert right and largest <= 3 and share >= 3, (largest, share)


def test_what_is_gathered_is_of_one_version_whatever_a_pass_left(tmp_path: Path) -> None:
    assert on_ranks(tmp_path / "store", 2, sent_wrongly) == [[], []]
