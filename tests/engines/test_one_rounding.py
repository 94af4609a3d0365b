"""One rounding on both sides (Jet-RL): the embedded engine samples with the weights that the
trainer computes with, version after version; rounded on its side alone, it does not, and that is
seen."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from reference import behaviour_of, random_model
from some_values import some
from test_embedded import TOLERANCE, Answers, answers, batcher_of, random_requests
from transformers import PreTrainedModel

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.engines.protocol import Request
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.experience.training_message import TrainingMessage, training_message
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.rounded_apart import ROUNDED_APART
from asyncrl.explain.conditions.table import findings
from asyncrl.messages import Span
from asyncrl.training.learner import Learner
from asyncrl.training.models import parameters_for_publication
from asyncrl.training.rounding import linear_weights, round_in_training
from asyncrl.training.rounding_gap import rounding_gap
from asyncrl.weightsync.narrowed import SentWeights


def message(requests: Sequence[Request], seen: Answers, version: int) -> TrainingMessage:
    """Responses of an engine as one group, half of it rewarded."""
    pieces, rewards = [], [float(i % 2) for i in range(len(requests))]
    for i, request in enumerate(requests):
        ids = np.array(seen.ids[request.rollout], np.int32)
        behaviour = np.array(seen.behaviour[request.rollout], np.float32)
        sequence = TrainingSequence.single_turn(
            request.ids.astype(np.int32).tobytes(),
            ids.tobytes(),
            behaviour.tobytes(),
            [Span(version, 0, len(ids))],
        )
        pieces.append((sequence.sample(i, 0, rewards[i], member=i), sequence))
    facts = GroupFacts(rewards, [[] for _ in rewards], [1 for _ in rewards], [[] for _ in rewards])
    return training_message(
        version, 0, pieces, {0: facts}, 4, mask_truncated=False, whole_step=False
    )


def k3_of_steps(model: PreTrainedModel, sent: SentWeights, steps: int) -> list[float]:
    """The distance of behaviour and trainer, by its own passes, in each of some steps, each of
    which trains what the engine sampled with the version before."""
    batcher, found = batcher_of(copy.deepcopy(model), version=None), []
    learner = Learner(model, TrainConfig(lr=3e-3, lr_warmup_steps=0), StalenessConfig(), 1.0)
    for version in range(steps):
        batcher.load(version, sent.weights(model), pin=False)
        requests = random_requests(8, temperature=1.0, seed=version)
        made = message(requests, answers(batcher, requests), version)
        learner.accumulate(made.message, made.buffers)
        found.append(learner.step()["k3"])
    return found


@pytest.mark.parametrize("name", some(["qwen3", "gpt2"]))
def test_every_version_is_sampled_as_it_is_trained(name: str) -> None:
    model = random_model(name)
    round_in_training(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    # squares of differences under the tolerance of embedded engines
    assert max(k3_of_steps(model, SentWeights(torch.float32, fp8=True), 3)) < TOLERANCE**2
    assert not all(map(torch.equal, before, model.parameters()))
    published = dict(
        SentWeights(torch.float32, fp8=True).of(model)
    )  # what the trainer has, to the bit
    assert all(torch.equal(published[name], p) for name, p in parameters_for_publication(model))
    assert rounding_gap(model, published.items()) == 0.0


@pytest.mark.explore
def test_an_engine_that_rounds_alone_is_seen() -> None:
    model, sent = random_model("qwen3"), SentWeights(torch.float32, fp8=True)
    gap = rounding_gap(model, sent.weights(model).items())
    (found,) = findings(RunFacts(metrics={"published_gap": gap}))
    assert found.name == "rounded_apart" and "model.rounding" in found.sentence
    assert not findings(RunFacts(metrics={"published_gap": ROUNDED_APART.bound}))
    requests = random_requests(6, temperature=1.0)
    batcher = batcher_of(copy.deepcopy(model), version=None)
    batcher.load(0, sent.weights(model), pin=False)
    seen = answers(batcher, requests)
    apart = [
        np.abs(behaviour_of(model, r.ids.tolist(), seen.ids[r.rollout]) - seen.behaviour[r.rollout])
        for r in requests
    ]
    assert np.concatenate(apart).max() > 100 * TOLERANCE
    assert min(k3_of_steps(model, sent, 2)) > TOLERANCE


def test_only_what_fp8_has_is_sent() -> None:
    model = random_model("qwen3").to(torch.bfloat16)
    own = dict(model.named_parameters())
    for name, tensor in SentWeights(torch.bfloat16, fp8=True).of(model):
        assert torch.equal(tensor, own[name]) != (name in linear_weights(model)), name
        assert tensor.dtype == torch.bfloat16
