"""Cases of every feature that a learner of one rank has, in all layouts of ranks, and a learner
that takes a step, is saved, and takes a second as another number of ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh
from training_world import Rollout, build, micro_batch, rollouts
from transformers import PreTrainedModel

from asyncrl.bundled.small_vision import IMAGE_ID, new_vision_model
from asyncrl.config.schema import LoraConfig, StalenessConfig, TrainConfig
from asyncrl.messages import MicroBatch, PromptFacts, ScoreProximal, Span, TokenCount
from asyncrl.staleness.corrections import IcePop, M2po, TopEntropy
from asyncrl.tasks.images.vision_model import ImagePatches, ModelImages
from asyncrl.tasks.supervised_examples import ExampleIds
from asyncrl.training.adapters import (
    adapted,
    add_adapters,
    published_names,
)
from asyncrl.training.checkpoint_index import checkpoint_path
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.forward import make_logits_in_chunks
from asyncrl.training.frozen_policy import FrozenPolicy, policy_like
from asyncrl.training.kl_terms import KlTerm, KlTerms
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.ranks.rank_group import mesh_of, shard
from asyncrl.training.rounding_gap import rounding_gap
from asyncrl.training.shown_images import TrainedImages, freeze_tower
from asyncrl.training.supervised import SupervisedLoss
from asyncrl.weightsync.narrowed import narrowed

RANKS = 4
GAP = "published_gap"
"""The metric of a rounded publication."""
TEMPERATURE = 0.7
STEPS, SAVED = 2, 1
EXAMPLES = [ExampleIds([1, 2], [3]), ExampleIds([4], [5, 6, 7, 8]), ExampleIds([9, 10], [12, 13])]
LORA = LoraConfig(rank=3, alpha=7.5)
LAYOUTS: dict[str, tuple[int, int, int]] = {
    "shard 4": (4, 1, 1),
    "shard 2": (2, 1, 1),
    "2 replicas of 2": (4, 2, 1),
    "replicate 2": (2, 2, 1),
    "replicate 4": (4, 4, 1),
    "one": (1, 1, 1),
}
"""Ranks, replicas, and ranks that compute a packed batch together."""
TOGETHER: dict[str, tuple[int, int, int]] = {
    "context of 2": (2, 1, 2),
    "context of 4": (4, 1, 4),
    "2 contexts of 2": (4, 2, 2),
}
"""The same of ranks that compute packed batches together."""
AXES: dict[str, tuple[str, ...]] = {
    "first": tuple(LAYOUTS)[:-1],
    "then": tuple(reversed(LAYOUTS)),
    "policy": ("reference", "reset", "teacher", "none"),
    "proximal": ("boundary", "snapshot", "ema", "behaviour"),
    "correction": ("m2po", "top_entropy", "icepop"),
    "updates": ("1", "4"),
    "advantage": ("grpo", "min_variance", "min_variance_logits"),
    "learns": ("all", "adapters"),
    "supervised": ("yes", "no"),
    "ema": ("0.7", "0"),
    "model": ("qwen3", "llama", "gpt2", "bfloat16"),
}
AXES_TOGETHER: dict[str, tuple[str, ...]] = AXES | {
    "first": tuple(TOGETHER),
    "then": (*reversed(TOGETHER), "shard 2", "one"),
    "model": ("qwen3", "llama", "bfloat16"),
}
"""The axes of ranks that compute packed batches together."""


SEEING = [
    ("2 replicas of 2", "replicate 2", "reference", "boundary", "icepop", "1", "grpo", "all"),
    ("shard 2", "shard 4", "reset", "ema", "m2po", "4", "min_variance_logits", "adapters"),
    ("shard 4", "one", "reference", "snapshot", "icepop", "1", "grpo", "tower"),
]
"""The first values of cases of a model that reads images; in the last its tower learns, too."""


Arrays = dict[str, NDArray[np.float32]]


class Case(NamedTuple):
    """A value of each of `AXES`."""

    first: str
    then: str
    policy: str
    proximal: str
    correction: str
    updates: str
    advantage: str
    learns: str
    supervised: str
    ema: str
    model: str


class Found(NamedTuple):
    """Of each step: the gradient that the optimizer saw last, the weights after it with their
    average, what was counted, and the metrics with the gap of a rounded publication; and of the
    last before a checkpoint, and the first after it, the `state` that it has."""

    gradients: Arrays
    weights: Arrays
    counts: list[TokenCount]
    metrics: dict[str, float]
    state: dict[str, NDArray[Any]]


def pairwise(seed: int, axes: Mapping[str, Sequence[str]] = AXES) -> list[Case]:
    """Cases in which any two values of two axes meet, greedily: each has the most pairs that were
    not there yet, of 40 that were drawn."""
    draw = random.Random(seed)

    def pairs(case: Case) -> set[tuple[int, str, int, str]]:
        return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}

    left = {
        (i, one, j, other)
        for (i, ones), (j, others) in itertools.combinations(enumerate(axes.values()), 2)
        for one in ones
        for other in others
        if possible(i, one, j, other)
    }
    found = list[Case]()
    while left:
        wanted = draw.choice(sorted(left))
        drawn = []
        for _ in range(40):
            values = [draw.choice(values) for values in axes.values()]
            values[wanted[0]], values[wanted[2]] = wanted[1], wanted[3]
            if (case := Case(*values)).proximal == "ema":
                case = case._replace(ema="0.7")
            drawn.append(case)
        best = max(drawn, key=lambda case: len(pairs(case) & left))
        found.append(best)
        left -= pairs(best) | {wanted}
    return found


def possible(i: int, one: str, j: int, other: str) -> bool:
    """True if two values of two axes go together."""
    names = list(AXES)
    return {(names[i], one), (names[j], other)} != {("proximal", "ema"), ("ema", "0")}


def settings(case: Case) -> tuple[TrainConfig, StalenessConfig]:
    several = 2 if case.updates == "4" else 1
    train = TrainConfig(
        lr=3e-3,
        lr_warmup_steps=0,
        grad_clip=0.3,
        minibatches=several,
        passes=several,
        advantage=case.advantage,
        ema=float(case.ema),
    )
    corrections: dict[str, Any] = {
        "m2po": M2po(hi=0.2),
        "top_entropy": TopEntropy(share=0.6),
        "icepop": IcePop(lo=0.5, hi=2.5),
    }
    of_step = corrections[case.correction]
    proximal: Any = case.proximal
    return train, StalenessConfig(proximal=proximal, max_lag=2, correction=(of_step,))


def model_of(case: Case, path: Path | None = None) -> PreTrainedModel:
    """The model that learns, as at the start, or with the weights of a checkpoint."""
    name, dtype = ("qwen3", torch.bfloat16) if case.model == "bfloat16" else (case.model, None)
    lora = case.learns == "adapters"
    if case.model == "vision":
        model = new_vision_model(3) if path is None or lora else load_model(path)
        if case.learns == "all":
            freeze_tower(model)
    elif path is None or lora:
        model = build(name, dtype or torch.float32)
    else:
        model = load_model(path, dtype or torch.float32)
    if lora:
        torch.manual_seed(9)
        add_adapters(model, LORA)
    if case.supervised == "yes":
        make_logits_in_chunks(model)
    return model


class DrawnImages(ModelImages):
    """Images by their names, without files and without a processor."""

    def __init__(self) -> None:
        self.model: Any = SimpleNamespace(token=IMAGE_ID, merged=4)

    def of(self, name: str) -> ImagePatches:
        grid = (1, 2 + 2 * (ord(name) % 2), 4)
        draw = np.random.default_rng(ord(name))
        patches = draw.normal(size=(grid[1] * grid[2], 1176)).astype(np.float32)
        return ImagePatches(patches, grid)


def learner_of(case: Case, rank: Rank, model: PreTrainedModel) -> Learner:
    train, staleness = settings(case)
    terms = list[KlTerm]()
    if case.policy in ("reference", "reset"):
        policy = policy_like(model, rank) if adapted(model) else FrozenPolicy(model_of(case), rank)
        place: Any = "loss" if case.policy == "reference" else "reward"
        reset_every = int(case.policy == "reset")
        terms.append(KlTerm("reference", 0.3, place, "k3", policy, reset_every))
    if case.policy == "teacher":
        torch.manual_seed(11)
        other = build("llama")
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        policy = FrozenPolicy(other, rank)
        terms.append(KlTerm("teacher", 0.2, "advantage", "k1", policy, weighed=True))
    supervised = SupervisedLoss(EXAMPLES, 0.3, 2, seed=5) if case.supervised == "yes" else None
    return Learner(
        model,
        train,
        staleness,
        TEMPERATURE,
        kl_terms=KlTerms(terms, TEMPERATURE),
        supervised=supervised,
        rank=rank,
        images=TrainedImages(DrawnImages(), model) if case.model == "vision" else None,
    )


def images_of(learner: Learner) -> dict[int, tuple[str, ...]]:
    """The images of each group's prompt, for a model that reads them; the last has none."""
    return {0: ("a",), 1: ("b", "a")} if learner.images else {}


def show(rollouts: Sequence[Rollout], images: Mapping[int, Sequence[str]]) -> None:
    """Put the placeholders of images into prompts."""
    for rollout in rollouts:
        names = images.get(rollout.group, ())
        parts = [[5, *[IMAGE_ID] * DrawnImages().tokens(name)] for name in names]
        rollout.prompt = [*(one for part in parts for one in part), *rollout.prompt]


def story(
    step: int, images: Mapping[int, Sequence[str]] = MappingProxyType({})
) -> tuple[list[Rollout], list[int]]:
    """The rollouts of a step, in three groups of two, and how many tokens of each are of earlier
    versions."""
    every = rollouts(build("qwen3"), seed=20 + step, count=6, temperature=TEMPERATURE)
    cuts = []
    for place, rollout in enumerate(every):
        rollout.number, rollout.group = 10 * step + place, place // 2
        rollout.reward = float(rollout.reward + place % 2)
        length = len(rollout.response)
        late = length // 2 if step else 0
        rollout.spans = [
            Span(version, start, end)
            for version, start, end in ((max(0, step - 1), 0, late), (step, late, length))
            if end > start
        ]
        cuts.append(late)
    show(every, images)
    return every, cuts


def to_score(step: int, images: dict[int, tuple[str, ...]]) -> tuple[ScoreProximal, tuple[bytes]]:
    """The known tokens of the next step's rollouts at the end of a step; those of one come too
    late, and are scored with held weights."""
    samples, ids, (every, cuts) = [], list[int](), story(step + 1, images)
    for place, (rollout, cut) in enumerate(zip(every, cuts, strict=True)):
        known = cut if place else 0
        part = Rollout(rollout.number, rollout.group, 0.0, rollout.prompt, rollout.response[:known])
        part.spans = [Span(step, 0, known)] if known else []
        samples.append(part.sample)
        ids += part.prompt + part.response
    return ScoreProximal(step, samples, [r.number for r in every], step, images), (
        np.array(ids, np.int32).tobytes(),
    )


def batches(
    step: int, images: Mapping[int, tuple[str, ...]]
) -> Iterator[tuple[MicroBatch, Sequence[bytes]]]:
    """Micro-batches of a step: whole groups, of which one is alone."""
    every, _ = story(step, images)
    facts = {group: PromptFacts(group, images=names) for group, names in images.items()}
    for index, members in enumerate((every[:2], every[2:])):
        batch, buffers = micro_batch(members, every, step, index)
        here = {member.group for member in members}
        rewards = {group: of for group, of in batch.rewards.items() if group in here}
        yield msgspec.structs.replace(batch, rewards=rewards, prompts=facts), buffers


def one_step(learner: Learner) -> Found:
    rank, step, seen = learner.rank, learner.version, dict[str, NDArray[np.float32]]()

    def note(*_: object) -> None:
        for name, weight in learner.master_weights.named():
            if weight.grad is not None:
                seen[name] = rank.whole(weight.grad).float().numpy().copy()

    images = images_of(learner)
    counts = [count for batch in batches(step, images) for count in learner.accumulate(*batch)]
    if learner._staleness.proximal == "boundary":
        learner.score_proximal(*to_score(step, images))
    hook = learner.optimizer.register_step_pre_hook(note)
    metrics = learner.step()
    hook.remove()
    weights = {n: rank.whole(w).float().numpy().copy() for n, w in learner.master_weights.named()}
    if learner.average:
        weights |= {n: rank.whole(t).float().numpy().copy() for n, t in learner.average.tensors()}
    if not adapted(learner.model):
        metrics[GAP] = _gap(learner.model, rank)
    return Found(seen, weights, counts + learner.counts, metrics, {})


def gap_of(case: Case, weights: Arrays) -> float:
    """The gap of a rounded publication of these weights, by one rank."""
    model = model_of(case).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:  # else it does not learn
                parameter.copy_(torch.from_numpy(weights[name]))
    return _gap(model, ALONE)


def _gap(model: PreTrainedModel, rank: Rank) -> float:
    whole = ((name, rank.whole(parameter)) for name, parameter in model.named_parameters())
    return rounding_gap(model, narrowed(whole, torch.bfloat16), rank)


def state_of(learner: Learner) -> dict[str, NDArray[Any]]:
    """All that a checkpoint has, whole: masters, moments, averages, other policies, scores."""
    rank, past = learner.rank, learner.proximal_logprobs
    rank.let_go(learner.model)
    every = [(name, rank.whole(master)) for name, master in learner.master_weights.named()]
    for name, master in learner.master_weights.named():
        moments = learner.optimizer.state.get(master, {})
        every += [(f"{key} of {name}", rank.whole(value)) for key, value in moments.items()]
    every += learner.average.tensors() if learner.average else ()
    every += learner.kl_terms.tensors(learner.version)
    every += past.tensors() if past else ()
    return {name: rank.whole(tensor).double().numpy().copy() for name, tensor in every}


def first_steps(case: Case, rank_of: Any, run: Path) -> list[Found]:
    """The steps before the checkpoint, which is written then."""
    model = model_of(case)
    learner = learner_of(case, rank_of(model), model)
    found = [one_step(learner) for _ in range(SAVED)]
    run.parent.mkdir(parents=True, exist_ok=True)
    save(run, learner, 0, run.parent)
    found[-1] = found[-1]._replace(state=state_of(learner))
    return found


def last_steps(case: Case, rank_of: Any, run: Path) -> list[Found]:
    """The steps after it, from what it has."""
    path = checkpoint_path(run, SAVED)
    model = model_of(case, path)
    learner = learner_of(case, rank_of(model), model)
    restore(path, learner)
    restored = state_of(learner)
    found = [one_step(learner) for _ in range(SAVED, STEPS)]
    found[0] = found[0]._replace(state=restored)
    own = dict(learner.model.named_parameters())
    learner.rank.let_go(learner.model)
    published = {
        f"published {name}": learner.rank.as_computed(own[parameter]).float().numpy().copy()
        for name, parameter in published_names(learner.model)
        if parameter
    }
    found[-1].weights.update(published)
    return found


class Meshes:
    """The ranks' layouts, made once: it is a collective to make one."""

    def __init__(self, _: DeviceMesh) -> None:
        self._meshes = dict[str, DeviceMesh]()
        for name, (size, *layout) in (LAYOUTS | TOGETHER).items():
            if size > 1:
                self._meshes[name] = mesh_of("cpu", torch.arange(size), *layout)

    def findings(self, cases: Sequence[Case], folder: Path) -> list[list[Found]]:
        """Findings of each case, as the ranks of its layouts; none of other layouts."""
        every = []
        for number, case in enumerate(cases):
            run, found = folder / str(number) / "run", list[Found]()
            for work, layout in ((first_steps, case.first), (last_steps, case.then)):
                if dist.get_rank() < (LAYOUTS | TOGETHER)[layout][0]:
                    mesh = self._meshes.get(layout)
                    found += work(
                        case, lambda model, mesh=mesh: shard(model, mesh) if mesh else ALONE, run
                    )
                dist.barrier()
            every.append(found)
        return every
