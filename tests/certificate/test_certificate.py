"""The certificate: at lag 0 a run, for all that goes on at the same time in it, is the synchronous
one.

Two references. `plain_loop` says every rule again, in float64 and one rollout at a time: ids are
equal, losses and weights to what float32 rounds. `in_turns` asks asyncrl's own engine and learner
in turns, with nothing of a coordinator, actors, links or publication around them: there weights and
log-probabilities are equal to the last bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import trio
from certificate_world import (
    RankedLearner,
    RealLearner,
    RealWorld,
    engine_of,
    judge,
    random_model,
    sharded,
    short,
)
from plain_loop import Outcome, Rules, train
from rank_world import ranks
from scripted_parts import STOP, ScriptedTask
from some_values import some
from train_support import command, tiny_model
from train_support import train as train_for_real
from verdicts import score

from asyncrl import config as configuration
from asyncrl import journal
from asyncrl.config import Config
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.runtime.run_dir import JOURNAL, MODEL, SUMMARY
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model

ROUNDING = 5e-6
"""Distance that five steps in float32 may be away from float64, in the loss and in a weight; each
step moves most weights by up to 3e-3."""


def rules(config: Config, source: ScriptedTask) -> Rules:
    return told(
        config,
        stop=STOP,
        prompt=lambda prompt_index: source.encode(source.prompt("train", prompt_index)),
        judge=judge,
    )


def told(config: Config, **others: object) -> Rules:
    """The settings that a plain loop needs; the band is IcePop's by default."""
    sections = (config.task, config.rollout, config.train, config.run)
    values = {
        name: getattr(section, name)
        for section in sections
        for name in Rules._fields
        if hasattr(section, name)
    }
    return Rules(**values | {"lo": 0.5, "hi": 5.0} | others)


async def run(config: Config, *, traced: bool = False) -> RealWorld:
    world = RealWorld(config, random_model(), traced=traced)
    with trio.fail_after(60):
        outcome = await world.run()
    assert outcome.ok, outcome
    return world


@pytest.fixture(scope="module")
def plain() -> Outcome:
    config = short()
    return train(random_model(), rules(config, ScriptedTask(config)))


def farthest(weights: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    assert weights.keys() == reference.keys()
    return max(float((weights[name].double() - reference[name]).abs().max()) for name in reference)


SHAPES: dict[str, dict[str, dict[str, object]]] = {
    "one engine": {},
    "two engines": {"rollout": {"actors": 2}},
    "three slots": {"engine": {"slots": 3, "chunk_tokens": 1}},
    "one group a micro-batch, recomputed": {
        "train": {"micro_tokens": 1},
        "engine": {"kv": "recompute"},
    },
}


@pytest.mark.parametrize("shape", some(SHAPES, 4))
async def test_pain_14_at_lag_0_tokens_losses_and_weights_are_those_of_a_plain_loop(
    shape: str, plain: Outcome
) -> None:
    world = await run(short(**SHAPES[shape]), traced=shape == "one engine")
    assert world.responses() == plain.responses and len(plain.responses) == 5 * 2 * 4
    assert (
        world.learner.losses == pytest.approx(plain.losses, abs=ROUNDING)
        and max(map(abs, plain.losses)) > 0.1
    )
    assert farthest(world.learner.weights(), plain.weights) < ROUNDING
    begun = dict(random_model().named_parameters())
    assert (
        farthest(
            world.learner.weights(),
            {name: tensor.detach().double() for name, tensor in begun.items()},
        )
        > 1e-3
    )


@pytest.mark.explore
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
async def test_at_lag_0_several_ranks_are_the_plain_loop_too(
    size: int, plain: Outcome, tmp_path: Path
) -> None:
    config = short()
    with ranks(tmp_path / "store", size, partial(sharded, config)) as each:
        world = RealWorld(config, random_model())
        learner = world.learner = RankedLearner(each)
        with trio.fail_after(60):
            outcome = await world.run()
        assert outcome.ok, outcome
        found = learner.weights()
    assert world.responses() == plain.responses
    assert learner.losses == pytest.approx(plain.losses, abs=ROUNDING)
    assert farthest(found, plain.weights) < ROUNDING


async def test_a_step_of_asynchrony_is_seen(plain: Outcome) -> None:
    """Show the two to be apart at lag 1: the first step's prompts are answered as by
    the plain loop, as far as version 0 got with them, and later ones are not."""
    world = await run(short(staleness={"max_lag": 1, "depth": 1}))
    order = list(dict.fromkeys(prompt_index for prompt_index, _ in plain.responses))
    for (prompt_index, member), (ids, _) in world.sampled(0).items():
        if prompt_index in order[:2]:
            assert (
                np.frombuffer(ids, np.int32).tolist()
                == plain.responses[prompt_index, member][: len(ids) // 4]
            )
    mine = world.responses()
    same = [
        prompt_index
        for prompt_index in order
        if all(
            mine[prompt_index, member] == plain.responses[prompt_index, member]
            for member in range(4)
        )
    ]
    assert len(same) < 8
    assert farthest(world.learner.weights(), plain.weights) > 200 * ROUNDING


# ---------------------------------------------------------------------------------------- in turns


class Turns(NamedTuple):
    """Results that the run in turns with asyncrl's own engine and learner gave: ids and
    log-probabilities by (item, member), and the rest."""

    sampled: dict[tuple[int, int], tuple[bytes, bytes]]
    losses: list[float]
    weights: dict[str, torch.Tensor]


async def in_turns(config: Config) -> Turns:
    """Load, generate all, train all, step; and again."""
    source, learner = ScriptedTask(config), RealLearner(random_model(), config)
    engine = engine_of(random_model(), config)
    order = list(range(config.task.train_size))
    random.Random(f"{config.run.seed}/0").shuffle(order)
    sampled: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    size = config.rollout.group_size
    for step in range(config.train.steps):
        await engine.load(step, learner.weights())
        places = range(step * config.train.batch_groups, (step + 1) * config.train.batch_groups)
        prompts = {
            place: np.array(source.encode(source.prompt("train", order[place])), np.int32)
            for place in places
        }
        keys = [(place, member) for place in places for member in range(size)]
        requests = [
            Request(
                n,
                1,
                size * place + member,
                prompts[place],
                0,
                config.rollout.max_new_tokens,
                config.rollout.temperature,
            )
            for n, (place, member) in enumerate(keys)
        ]
        for (place, member), found in zip(keys, await generated(engine, requests), strict=True):
            sampled[order[place], member] = found
        groups = [
            (prompts[place].tobytes(), [sampled[order[place], member] for member in range(size)])
            for place in places
        ]
        scores = [
            [judge(order[place], np.frombuffer(ids, np.int32).tolist()) for ids, _ in group[1]]
            for place, group in zip(places, groups, strict=True)
        ]
        await trained(learner, step, groups, scores, config)
    return Turns(sampled, learner.losses, learner.weights())


async def generated(engine: object, requests: Sequence[Request]) -> list[tuple[bytes, bytes]]:
    chunks: dict[int, list[Chunk]] = {request.rollout: [] for request in requests}
    left = len(requests)

    async def emit(found: Sequence[Chunk]) -> None:
        nonlocal left
        for chunk in found:
            chunks[chunk.rollout].append(chunk)
            left -= bool(chunk.finish)
        if not left:
            nursery.cancel_scope.cancel()

    engine.submit(requests)  # type: ignore[attr-defined]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, emit)  # type: ignore[attr-defined]
    return [
        (b"".join(c.ids.tobytes() for c in found), b"".join(c.behaviour.tobytes() for c in found))
        for found in chunks.values()
    ]


async def trained(
    learner: RealLearner,
    step: int,
    groups: Sequence[tuple[bytes, list[tuple[bytes, bytes]]]],
    scores: list[list[float]],
    config: Config,
) -> None:
    """Micro-batches of as many whole groups as there is room for, a quarter of the step at most; of
    single rollouts where one group is too long."""
    room, most = config.train.micro_tokens, math.ceil(len(groups) / 4)
    batches: list[list[tuple[int, int]]] = []
    held = whole = 0
    for group, (prompt, members) in enumerate(groups):
        lengths = [(len(prompt) + len(ids)) // 4 for ids, _ in members]
        fits = sum(lengths) <= room
        for piece in (
            [list(range(len(members)))] if fits else [[member] for member in range(len(members))]
        ):
            tokens = sum(lengths[member] for member in piece)
            if not batches or held + tokens > room or whole == most:
                batches.append([])
                held = whole = 0
            batches[-1] += [(group, member) for member in piece]
            held += tokens
            whole += fits
        if not fits:
            held = room
    for index, batch in enumerate(batches):
        samples, buffers = [], [bytearray(), bytearray(), bytearray()]
        for group, member in batch:
            prompt, (ids, behaviour) = groups[group][0], groups[group][1][member]
            samples.append(
                Sample(
                    10 * group + member,
                    group,
                    len(prompt) // 4,
                    len(ids) // 4,
                    scores[group][member],
                    [Span(step, len(prompt) // 4, len(prompt + ids) // 4)],
                )
            )
            for buffer, part in zip(
                buffers, (prompt + ids, behaviour, b"\1" * (len(ids) // 4)), strict=True
            ):
                buffer += part
        rewards = {group: scores[group] for group, _ in batch}
        await learner.accumulate(
            MicroBatch(step, index, samples, rewards),
            [memoryview(bytes(buffer)) for buffer in buffers],
        )
    await learner.step()


@pytest.mark.explore
@pytest.mark.parametrize("micro_tokens", [64, 1, 10_000])
async def test_at_lag_0_a_run_is_its_own_engine_and_learner_in_turns_to_the_last_bit(
    micro_tokens: int,
) -> None:
    config = short(
        train={"micro_tokens": micro_tokens, "batch_groups": 5, "steps": 2}, engine={"slots": 20}
    )
    world, turns = await run(config), await in_turns(config)
    assert world.sampled() == turns.sampled
    assert world.learner.losses == turns.losses
    weights = world.learner.weights()
    assert [
        name for name, tensor in turns.weights.items() if not torch.equal(tensor, weights[name])
    ] == []


# ---------------------------------------------------------------------------------- real processes


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.explore
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_at_lag_0_real_processes_do_what_a_plain_loop_does(ranks: int, tmp_path: Path) -> None:
    model, file, path = tiny_model(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "run"
    lines = [{"prompt": f"say {n} of it", "answer": ""} for n in range(20)]
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    settings = {
        "task__name": "jsonl",
        "task__path": str(file),
        "task__verifier": "verdicts:verdict",
        "task__eval_size": 4,
        "train__ranks": ranks,
        "train__steps": 5,
        "train__lr": 3e-3,
        "train__lr_warmup_steps": 2,
        "train__micro_tokens": 64,
        "train__eval_every": 0,
        "engine__context_tokens": 48,
        "rollout__max_new_tokens": 10,
        "rollout__actors": 2,
        "machine__cores": 2,
        "staleness__max_lag": 0,
        "staleness__depth": 0,
    }
    done = train_for_real(command(model, path, **settings), PYTHONPATH=str(Path(__file__).parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary.read(path / SUMMARY).steps == 5
    config, tokenizer = configuration.read(path / "run.toml"), Tokenizer(model)
    [stop] = tokenizer.stop_ids
    plain = train(
        load_model(model),
        told(
            config,
            train_size=16,
            stop=stop,
            prompt=lambda prompt_index: tokenizer.encode(f"say {prompt_index} of it\n"),
            judge=lambda item, ids: score(tokenizer.decode(ids)),
        ),
    )
    assert real_responses(path) == plain.responses
    weights = {
        name: parameter.detach() for name, parameter in load_model(path / MODEL).named_parameters()
    }
    assert farthest(weights, plain.weights) < 20 * ROUNDING, (
        "a larger model, of which some gradients are near 0"
    )


def real_responses(path: Path) -> dict[tuple[int, int], list[int]]:
    """Ids of each training rollout by item and member, from the journal."""
    whose: dict[int, tuple[int, int]] = {}
    found: dict[tuple[int, int], list[int]] = {}
    for _, event in journal.read(path / JOURNAL):
        if isinstance(event, e.Admitted) and event.split == "train":
            whose |= {
                event.first + member: (event.prompt_index, member) for member in range(event.size)
            }
        elif isinstance(event, e.Extended) and event.rollout in whose:
            found.setdefault(whose[event.rollout], []).extend(
                np.frombuffer(event.ids, np.int32).tolist()
            )
    return found
