"""The embedded engine's records of experts, replayed by the trainer (R3)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
import trio
from families import build
from some_values import some
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.records import decoded, encoded
from asyncrl.algorithms.routing.routers import Pass, passing, routers, watch
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.sequence import TrainingSequence, with_routing
from asyncrl.experience.training_message import TrainingMessage, training_message
from asyncrl.messages import Span
from asyncrl.training.forward import Passes, use_passes
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError

PROMPT = np.array([5, 17, 60, 3], np.int32)


class Sampled(NamedTuple):
    ids: np.ndarray
    behaviour: np.ndarray
    routing: np.ndarray


def sampled(model: PreTrainedModel, count: int = 6, *, slots: int = 3) -> list[Sampled]:
    """Responses of an engine with fewer slots than requests, in chunks of three tokens."""
    options = EmbeddedOptions(
        slots=slots,
        context_tokens=48,
        chunk_tokens=3,
        stop_ids=frozenset({0}),
        run_seed=1,
        records_routing=True,
    )
    engine = EmbeddedEngine(copy.deepcopy(model), options)
    chunks = list[Chunk]()

    async def decode() -> None:
        async def emit(more: Sequence[Chunk]) -> None:
            chunks.extend(more)
            if sum(bool(chunk.finish) for chunk in chunks) == count:
                scope.cancel()
            await trio.lowlevel.checkpoint()

        with trio.CancelScope() as scope:
            await engine.load(0, dict(model.named_parameters()))
            engine.submit([Request(i, 1, i, PROMPT, 0, 20, 1.0) for i in range(count)])
            await engine.run(emit)

    trio.run(decode)
    responses = []
    for i in range(count):
        own = [chunk for chunk in chunks if chunk.rollout == i]
        arrays = [
            np.concatenate([getattr(chunk, name) for chunk in own])
            for name in ("ids", "behaviour", "routing")
        ]
        responses.append(Sampled(*arrays))
    return responses


def message(responses: Sequence[Sampled], *, known: bool = True) -> TrainingMessage:
    pieces = []
    for i, response in enumerate(responses):
        sequence = TrainingSequence.single_turn(
            PROMPT.tobytes(),
            response.ids.tobytes(),
            response.behaviour.tobytes(),
            [Span(0, 0, len(response.ids))],
            routing=response.routing.tobytes() if known else b"",
        )
        pieces.append((sequence.sample(i, 0, float(i % 2)), sequence))
    rewards = [float(i % 2) for i in range(len(responses))]
    facts = GroupFacts(rewards, [[] for _ in rewards], [1 for _ in rewards], [[] for _ in rewards])
    return training_message(0, 0, pieces, {0: facts}, 4, mask_truncated=False, whole_step=False)


def step(
    model: PreTrainedModel, made: TrainingMessage, passes: Passes = "packed", **train: bool
) -> dict[str, float]:
    model = copy.deepcopy(model)
    use_passes(model, passes)
    learner = Learner(model, TrainConfig(lr_warmup_steps=0, **train), StalenessConfig(), 1.0)  # type: ignore[arg-type]
    learner.accumulate(made.message, made.buffers)
    return learner.step()


@pytest.mark.parametrize("family", some(["glm4_moe", "qwen3_moe"]))
def test_records_are_what_the_model_chooses(family: str) -> None:
    """Whatever slot a rollout is in, and however its chunks are cut: by a pass over each response
    alone. And replay with equal weights changes a step in no bit."""
    model = build(family)
    responses = sampled(model)
    exact = copy.deepcopy(model)
    layers = watch(exact)
    for response in responses:
        ids = torch.from_numpy(np.concatenate([PROMPT, response.ids]))[None].long()
        with torch.no_grad(), passing(exact) as passed:
            exact(input_ids=ids, use_cache=False)
        assert passed is not None
        records = encoded(passed, 4)[len(PROMPT) - 1 : -1]
        own = decoded(records.numpy(), len(response.ids), exact)
        theirs = decoded(response.routing, len(response.ids), exact)
        assert theirs.shape == (len(response.ids), layers, 2)
        assert torch.equal(theirs.sort(-1).values, own.sort(-1).values)
    made = message(responses)
    for passes in ("packed", "padded", "alone"):
        plain, replayed = step(model, made, passes), step(model, made, passes, router_replay=True)
        assert replayed["router_replayed"] == 1.0 and replayed["router_flips"] == 0.0
        assert replayed["router_unknown"] == 0.0
        assert {name: replayed[name] for name in plain} == plain


@pytest.mark.parametrize("recompute", some([True, False]))
def test_replay_closes_the_gap_of_an_engine_that_routes_otherwise(recompute: bool) -> None:
    """The engine samples in bfloat16, the trainer in float32: tokens near a tie get other experts,
    whose log-probabilities are far off."""
    model = build("qwen3_moe")
    small = copy.deepcopy(model).to(torch.bfloat16)
    made = message(sampled(small, count=12, slots=12))
    rounded = copy.deepcopy(small).float()
    own = step(rounded, made, recompute_activations=recompute)
    replayed = step(rounded, made, router_replay=True, recompute_activations=recompute)
    assert replayed["router_flips"] > 0.0
    assert replayed["k3"] < 0.7 * own["k3"]
    unknown = step(rounded, message(sampled(small, 2), known=False), router_replay=True)
    assert unknown["router_replayed"] == 0.0 and unknown["router_unknown"] > 0


def test_some_tokens_may_be_unknown() -> None:
    model = build("qwen3_moe")
    watch(model)
    routing = with_routing(bytearray(), 2, b"\x01\x02\x03\x00", 1)
    experts = decoded(routing, 3, model)
    assert experts.tolist() == [[[-1, -1], [-1, -1]]] * 2 + [[[1, 2], [3, 0]]]
    with pytest.raises(ValueError, match="5 bytes of routing are not those of 3 tokens"):
        decoded(bytes(5), 3, model)
    with pytest.raises(ValueError, match="routing are not"):
        with_routing(routing, 3, b"\x01", 1)


def test_numbers_of_many_experts_have_two_bytes() -> None:
    model = build("longcat_flash")  # 260 experts
    watch(model)
    with torch.no_grad(), passing(model) as passed:
        model(input_ids=torch.arange(9)[None], use_cache=False)
    assert passed is not None
    records = encoded(passed, 260)
    assert records.shape == (9, 2 * 2 * len(routers(model)))
    chosen = torch.stack([passed.choices[i].experts for i in range(len(routers(model)))], 1)
    assert torch.equal(decoded(records.numpy(), 9, model).long(), chosen)


def test_a_model_without_experts_refuses_replay() -> None:
    with pytest.raises(ModelError, match="has no experts"):
        Learner(build("qwen3"), TrainConfig(router_replay=True), StalenessConfig(), 1.0)
    with pytest.raises(ValueError, match="no router"):
        encoded(Pass(), 4)
