"""Sequences with any mask through the learner, against a naive reference: each sequence alone, a
plain log-softmax in float64, one loss for each token that the mask marks, in a loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from training_world import VOCABULARY, build
from transformers import PreTrainedModel

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.experience.call_tree import CallTree
from asyncrl.experience.episode import Strand, Turn, sequences
from asyncrl.experience.sequence import TrainingSequence, joined_behaviour, joined_ids
from asyncrl.messages import MicroBatch, ScoreProximal, Span, TokenCount
from asyncrl.staleness.bins import of_lags
from asyncrl.staleness.lag import fresh_mask
from asyncrl.training.learner import Learner

STEP, MAX_LAG = 2, 1
Gradient = dict[str, torch.Tensor]


def trained_as(objective: str) -> TrainConfig:
    bounds = {"clip": (0.2, 0.28), "gspo": (0.05, 0.07)}[objective]
    return TrainConfig(
        grad_clip=1e9,
        lr_warmup_steps=0,
        lr=1e-3,
        objective=objective,  # type: ignore[arg-type]
        clip_lo=bounds[0],
        clip_hi=bounds[1],
    )


class Labelled(NamedTuple):
    """A sequence, its group, and its reward. Its place in the list is its number."""

    sequence: TrainingSequence
    group: int
    reward: float


class Stretch(NamedTuple):
    """Tokens of a sequence, sampled under `version`, or given where that is None."""

    tokens: int
    version: int | None


def made(prompt: Sequence[int], stretches: Sequence[Stretch], seed: int) -> TrainingSequence:
    """A sequence of random tokens after `prompt`, each array written token by token. Behaviour is
    near what a random model says; where nothing was sampled it is 0, as it has to be."""
    rng = np.random.default_rng(seed)
    ids, mask, behaviour, spans = list(prompt), [0] * len(prompt), [0.0] * len(prompt), []
    for stretch in stretches:
        for _ in range(stretch.tokens):
            ids.append(int(rng.integers(0, VOCABULARY)))
            mask.append(int(stretch.version is not None))
            noise = -math.log(VOCABULARY) + float(rng.normal(0, 0.8))
            behaviour.append(noise if stretch.version is not None else 0.0)
        if stretch.version is not None and stretch.tokens:
            spans.append(Span(stretch.version, len(ids) - stretch.tokens, len(ids)))
    return TrainingSequence(
        np.array(ids, np.int32).tobytes(),
        bytes(mask),
        np.array(behaviour, np.float32).tobytes(),
        tuple(spans),
    )


def micro_batch(
    every: Sequence[Labelled], members: Sequence[int], index: int
) -> tuple[MicroBatch, tuple[bytes, bytes, bytes]]:
    """The members of a step as one micro-batch, put together as the coordinator does."""
    rewards: dict[int, list[float]] = {}
    for one in every:
        rewards.setdefault(one.group, []).append(one.reward)
    sequences = [every[number].sequence for number in members]
    samples = [
        every[number].sequence.sample(number, every[number].group, every[number].reward)
        for number in members
    ]
    mask = b"".join(fresh_mask(sequence.spans, STEP, MAX_LAG) for sequence in sequences)
    buffers = joined_ids(sequences), joined_behaviour(sequences), mask
    return MicroBatch(STEP, index, samples, rewards), buffers


def run(
    subject: Learner, every: Sequence[Labelled], cut: int
) -> tuple[Gradient, dict[str, float], dict[int, TokenCount]]:
    """One step of two micro-batches: the gradient, the metrics, and the counts by sequence."""
    subject.version = STEP
    gradients: Gradient = {}
    subject.optimizer.register_step_pre_hook(
        lambda *_: gradients.update(
            (name, p.grad.clone())
            for name, p in subject.model.named_parameters()
            if p.grad is not None
        )
    )
    counts = {}
    numbers = list(range(len(every)))
    for index, part in enumerate((numbers[:cut], numbers[cut:])):
        for count in subject.accumulate(*micro_batch(every, part, index)):
            counts[count.rollout] = count
    return gradients, subject.step(), counts


def log_probabilities(model: PreTrainedModel, sequence: TrainingSequence) -> torch.Tensor:
    """Of each token but the first, from a float64 pass of this sequence alone, all of it."""
    exact = copy.deepcopy(model).double().eval()
    ids = torch.from_numpy(np.frombuffer(sequence.ids, np.int32).astype(np.int64))[None]
    every = torch.log_softmax(exact(input_ids=ids).logits[0].double(), dim=-1)
    return torch.stack([every[at - 1, ids[0, at]] for at in range(1, ids.shape[1])])


def reference(
    model: PreTrainedModel, every: Sequence[Labelled], train: TrainConfig
) -> tuple[Gradient, float, dict[int, tuple[int, int]]]:
    """Gradient of the mean loss over the trained tokens (GSPO: over the sequences), that mean, and
    (trained, stale) of each sequence."""
    exact = copy.deepcopy(model).double().eval()
    losses, counts = [], {}
    for number, (sequence, group, reward) in enumerate(every):
        rewards = [one.reward for one in every if one.group == group]
        mean = sum(rewards) / len(rewards)
        variance = sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)
        advantage = (reward - mean) / max(math.sqrt(variance), 1e-4) if len(set(rewards)) > 1 else 0
        ids = torch.from_numpy(np.frombuffer(sequence.ids, np.int32).astype(np.int64))[None]
        scores = torch.log_softmax(exact(input_ids=ids).logits[0], dim=-1)
        logs, stale = [], 0
        for at, marked in enumerate(sequence.mask):
            if not marked:
                continue
            version = next(s.version for s in sequence.spans if s.start <= at < s.end)
            if STEP - version > MAX_LAG:
                stale += 1
            else:
                behaviour = float(np.frombuffer(sequence.behaviour, np.float32)[at])
                logs.append(scores[at - 1, ids[0, at]] - behaviour)
        counts[number] = len(logs), stale
        of_sequence = []
        for log in logs:
            if train.objective == "gspo":  # the mean is of this sequence's trained tokens alone
                log = sum(float(one.detach()) for one in logs) / len(logs) + (log - log.detach())
            r = torch.exp(log)
            bounded = r.clamp(1 - train.clip_lo, 1 + train.clip_hi)
            of_sequence.append(-torch.minimum(r * advantage, bounded * advantage))
        if of_sequence and train.objective == "gspo":  # a mean by rollout
            losses.append(torch.stack(of_sequence).mean())
        else:
            losses += of_sequence
    if not losses:
        return {}, 0.0, counts
    loss = torch.stack(losses).mean()
    loss.backward()
    gradient = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    return gradient, float(loss.detach()), counts


def check(every: Sequence[Labelled], objective: str, cut: int = 2) -> None:
    """The learner's gradient, loss and counts are those of the reference."""
    train = trained_as(objective)
    subject = Learner(build("qwen3"), train, StalenessConfig(correction=()), 1.0)
    expected, loss, outcome = reference(subject.model, every, train)
    gradients, metrics, counts = run(subject, every, cut)
    assert {
        number: (count.trained, count.discarded.get("stale", 0)) for number, count in counts.items()
    } == outcome
    for number, count in counts.items():
        assert count.trained + sum(count.discarded.values()) == every[number].sequence.trained
    trained = sum(tokens for tokens, _ in outcome.values())
    assert metrics["trained_tokens"] == trained
    if not trained:
        assert metrics["skipped"] == 1
        return
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    scale = max(max(float(g.abs().max()) for g in expected.values()), 1e-3)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).abs().max()) <= 1e-5 * scale, name


STRETCHES = st.lists(
    st.builds(Stretch, st.integers(0, 5), st.none() | st.integers(0, STEP)), max_size=6
)


@settings(max_examples=drawn(40), deadline=None)
@given(
    groups=st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5),
            st.lists(
                st.tuples(STRETCHES, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=3
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    objective=st.sampled_from(["clip", "gspo"]),
    cut=st.integers(0, 4),
    seed=st.integers(0, 2**16),
)
def test_any_mask_trains_exactly_the_marked_tokens(
    groups: list[tuple[list[int], list[tuple[list[Stretch], float]]]],
    objective: str,
    cut: int,
    seed: int,
) -> None:
    """Sequences of a group have one prompt. Any may end with given tokens, or have no marked
    one."""
    every = [
        Labelled(made(prompt, stretches, seed + 31 * place), number, reward)
        for number, (prompt, members) in enumerate(groups)
        for place, (stretches, reward) in enumerate(members)
    ]
    check(every, objective, cut)


@pytest.mark.parametrize("objective", ["clip", "gspo"])
def test_several_sampled_stretches_between_given_tokens(objective: str) -> None:
    """The sequences of an agent that uses a tool, beside one of a single turn, and one of a single
    stretch whose last tokens were given."""
    turns = [Stretch(3, 1), Stretch(4, None), Stretch(2, 1), Stretch(1, 2), Stretch(3, None)]
    every = [
        Labelled(made([1, 2], [*turns, Stretch(5, 2)], 0), 0, 1.0),
        Labelled(made([1, 2], turns, 1), 0, 0.0),
        Labelled(made([1, 2], [Stretch(6, 2)], 2), 0, 0.0),
        Labelled(made([1, 2], [Stretch(2, 0), *turns], 3), 0, 0.5),
    ]
    assert [one.sequence.trained for one in every] == [11, 6, 6, 8]
    check(every, objective)


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def test_the_leaves_of_a_recorded_session_are_trained() -> None:
    """A conversation of three turns, of which the second was asked twice: two leaves, and no
    sampled token is trained in both."""
    calls = [
        (ids(1, 2), ids(3, 4, 5)),
        (ids(1, 2, 3, 4, 5, 6), ids(7, 8)),
        (ids(1, 2, 3, 4, 5, 6), ids(9)),
        (ids(1, 2, 3, 4, 5, 6, 7, 8, 10, 11), ids(12, 13, 14)),
    ]
    tree = CallTree()
    ends = [tree.add(*call) for call in calls]
    turns = [Turn(len(reply) // 4, "stop") for _, reply in calls]
    strands = [Strand(*strand) for strand in tree.strands(ends, [turn.tokens for turn in turns])]
    behaviour = np.array([-3, -2.5, -2, -3.5, -4, -2, -3, -3, -2], np.float32).tobytes()
    sampled = b"".join(reply for _, reply in calls)
    leaves = sequences(sampled, behaviour, [Span(1, 0, 5), Span(2, 5, 9)], turns, strands)
    assert [list(leaf.mask) for leaf in leaves] == [
        [0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    every = [Labelled(leaf, 0, reward) for leaf, reward in zip(leaves, (1.0, 0.0), strict=True)]
    check(every, "clip", cut=1)
    check(every, "gspo", cut=2)


def test_scores_of_a_past_version_are_of_the_marked_tokens() -> None:
    """`proximal = boundary`: kept from before the version ends, in the order of the marked ones."""
    subject = Learner(build("qwen3"), TrainConfig(), StalenessConfig(proximal="boundary"), 1.0)
    every = [
        made([1, 2], [Stretch(3, 0), Stretch(4, None), Stretch(2, 0), Stretch(2, None)], 5),
        made([1, 2], [Stretch(4, 0)], 6),
    ]
    samples = [sequence.sample(number, 0, math.nan) for number, sequence in enumerate(every)]
    subject.score_proximal(ScoreProximal(0, samples, [0, 1]), (joined_ids(every),))
    assert subject.proximal_logprobs is not None
    found = subject.proximal_logprobs.known(samples)
    expected = torch.cat(
        [
            log_probabilities(subject.model, sequence).detach()[
                [at - 1 for at, marked in enumerate(sequence.mask) if marked]
            ]
            for sequence in every
        ]
    )
    assert len(found) == 5 + 4
    assert torch.allclose(found.double(), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["min_variance", "min_variance_logits"])
def test_a_baseline_from_gradients_sees_the_marked_tokens_alone(kind: str) -> None:
    """Tokens after the last marked one, and the behaviour there, change no gradient."""
    turns = [Stretch(3, 2), Stretch(4, None), Stretch(2, 2)]
    gradients = []
    for tail in ([], [Stretch(5, None)]):
        train = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, advantage=kind)  # type: ignore[arg-type]
        every = [
            Labelled(made([1, 2], [*turns, *tail], seed), 0, reward)
            for seed, reward in enumerate((1.0, 0.0, 0.5))
        ]
        subject = Learner(build("qwen3"), train, StalenessConfig(correction=()), 1.0)
        found, metrics, _ = run(subject, every, cut=3)
        assert metrics["trained_tokens"] == 15
        gradients.append(found)
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@pytest.mark.parametrize("passes", [1, 2])
def test_foreign_tokens_are_scored_where_they_are_trained_and_are_in_no_divergence(
    passes: int,
) -> None:
    """An answer whose log-probabilities are not known trains like one that has those of the policy
    that trains it first; and of both no token is among those of a lag."""
    train = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-3, passes=passes)
    model = build("qwen3")
    own = [
        Labelled(made([1, 2], [Stretch(4, 1)], 0), 0, 0.0),
        Labelled(made([1, 2], [Stretch(3, 2)], 1), 0, 0.5),
    ]
    plain = made([1, 2], [Stretch(5, 2)], 2)
    foreign = msgspec.structs.replace(plain, spans=(Span(2, 2, 7, "file"),))
    exact = np.concatenate([[0.0], log_probabilities(model, plain).detach().numpy()])
    scored = (exact * np.frombuffer(plain.mask, np.uint8)).astype(np.float32).tobytes()
    unknown = np.where(np.frombuffer(plain.mask, np.uint8), np.nan, 0.0).astype(np.float32)
    results = []
    for sequence in (
        msgspec.structs.replace(foreign, behaviour=unknown.tobytes()),
        msgspec.structs.replace(foreign, behaviour=scored),
        msgspec.structs.replace(plain, behaviour=scored),
    ):
        subject = Learner(copy.deepcopy(model), train, StalenessConfig(correction=()), 1.0)
        every = [*own, Labelled(sequence, 0, 1.0)]
        subject.version = STEP
        samples = [of.sequence.sample(n, of.group, of.reward) for n, of in enumerate(every)]
        sequences = [of.sequence for of in every]
        mask = b"".join(fresh_mask(of.spans, STEP, MAX_LAG, MAX_LAG) for of in sequences)
        batch = MicroBatch(STEP, 0, samples, {0: [0.0, 0.5, 1.0]})
        subject.accumulate(batch, (joined_ids(sequences), joined_behaviour(sequences), mask))
        metrics = subject.step()
        weights = torch.cat([p.detach().flatten() for p in subject.model.parameters()])
        in_bins = sum(of_lags(metrics, "tokens").values())
        results.append((weights, metrics["trained_tokens"], in_bins))
    (a, trained, few), (b, _, as_few), (c, _, all_) = results
    assert trained == passes * 12 and few == as_few == passes * 7 and all_ == passes * 12
    assert float((a - b).abs().max()) < 1e-6 and float((b - c).abs().max()) < 1e-6
    assert (
        float((a - torch.cat([p.detach().flatten() for p in model.parameters()])).abs().max())
        > 1e-4
    )
