"""A request that goes on from an ended one has only what is new computed, and gives what it gives
without that: in whichever slot, among others, and never across a change of weights."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference import ARCHITECTURES, CONTEXT, VOCABULARY, behaviour_of, greedy, random_model
from some_values import some
from test_embedded import TOLERANCE, Answers, answers, batcher_of, load, request

from asyncrl.engines.embedded.batcher import Batcher

torch.set_num_threads(1)


class Counted:
    """The programs of a batcher's current lane, with the tokens that their prefills computed,
    padding included."""

    def __init__(self, batcher: Batcher) -> None:
        self._programs, self.computed = batcher._current.programs, 0
        batcher._current.programs = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    @property
    def prefill(self) -> Callable[..., Any]:
        return self._counting(self._programs.prefill)

    @property
    def onward(self) -> Callable[..., Any]:
        return self._counting(self._programs.onward)

    def taken(self) -> int:
        computed, self.computed = self.computed, 0
        return computed

    def _counting(self, program: Callable[..., Any]) -> Callable[..., Any]:
        def counting(ids: torch.Tensor, *more: torch.Tensor) -> Any:
            self.computed += ids.numel()
            return program(ids, *more)

        return counting


@pytest.mark.explore
@pytest.mark.parametrize(
    "compile",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")),
    ],
)
@pytest.mark.parametrize("name", some(ARCHITECTURES))
def test_each_turn_has_only_what_is_new_computed(name: str, compile: bool) -> None:
    model = random_model(name)
    batcher = batcher_of(model, compile=compile)
    counted = Counted(batcher)
    context, held = [3, 1, 4, 1, 5], 0
    for turn in range(8):
        seen = answers(batcher, [request(turn, context, 3)])
        assert seen.ids[turn] == greedy(model, context, 3)
        expected = behaviour_of(model, context, seen.ids[turn])
        assert np.abs(expected - seen.behaviour[turn]).max() < TOLERANCE
        # the last known token is decoded, and the last that is sampled is not computed
        assert counted.taken() == len(context) - 1 - held
        held = len(context) + 2
        context = [*context, *seen.ids[turn], *[turn + 2] * (turn % 4)]


@pytest.mark.explore
@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_nothing_is_used_across_a_change_of_weights(kv: str) -> None:
    models = [random_model("qwen3", seed) for seed in range(2)]
    batcher = batcher_of(models[0], kv=kv)
    counted = Counted(batcher)
    ended = answers(batcher, [request(0, [1, 2, 3], 4)])
    across = Answers()
    batcher.submit([request(1, [4, 5, 6, 7], 6)])
    across.add(batcher.advance(3))
    load(batcher, 1, models[1])
    across.drain(batcher)
    counted.taken()
    context = [1, 2, 3, *ended.ids[0], 9]
    seen = answers(batcher, [request(2, context, 5)])
    assert seen.ids[2] == greedy(models[1], context, 5) and counted.taken() == len(context) - 1
    context = [4, 5, 6, 7, *across.ids[1], 9]
    seen = answers(batcher, [request(3, context, 5)])
    assert seen.ids[3] == greedy(models[1], context, 5)
    # what was begun under other weights is of use only where it was computed again
    assert counted.taken() == (len(context) - 1 if kv == "keep" else 1)
    expected = behaviour_of(models[1], context, seen.ids[3])
    assert np.abs(expected - seen.behaviour[3]).max() < TOLERANCE


def test_what_is_idle_for_longest_goes_first_and_only_where_there_is_no_other_slot() -> None:
    model = random_model("llama")
    batcher = batcher_of(model, slots=3)
    counted = Counted(batcher)
    contexts = {}
    for first in (1, 2, 3):
        seen = answers(batcher, [request(first, [first, 7], 3)])
        contexts[first] = [first, 7, *seen.ids[first]]
    answers(batcher, [request(4, [9, 9], 1)])
    counted.taken()
    for first, computed in ((2, 0), (3, 0), (1, 4)):
        seen = answers(batcher, [request(10 + first, contexts[first], 3)])
        assert seen.ids[10 + first] == greedy(model, contexts[first], 3)
        assert counted.taken() == computed, first


def test_another_context_takes_nothing_of_what_it_shares() -> None:
    """One that shares the start of an idle slot leaves it to the episode that goes on there."""
    model = random_model("qwen3")
    batcher = batcher_of(model)
    counted = Counted(batcher)
    seen = answers(batcher, [request(0, [1, 2, 3, 4], 4)])
    other = answers(batcher, [request(1, [1, 2, 3, 4, 5], 4)])
    assert other.ids[1] == greedy(model, [1, 2, 3, 4, 5], 4)
    counted.taken()
    context = [1, 2, 3, 4, *seen.ids[0]]
    both = answers(batcher, [request(2, context, 4), request(3, context, 4)])
    assert both.ids[2] == both.ids[3] == greedy(model, context, 4)
    assert counted.taken() == len(context) - 1, "one goes on in the slot, and one is computed"


@pytest.mark.explore
@pytest.mark.parametrize("slots", some([5, 2, 11]))
def test_episodes_among_each_other(slots: int) -> None:
    """Many episodes that go on at any time, are cut, and see weights change: each answer is that of
    full forwards under the weights of the moment, and a good part is not computed again."""
    chance = random.Random(slots)
    models = [random_model("qwen3", seed) for seed in range(2)]
    batcher = batcher_of(models[0], slots=slots)
    counted = Counted(batcher)
    contexts = [[chance.randrange(VOCABULARY) for _ in range(3 + n)] for n in range(9)]
    given = number = 0
    for turn in range(40):
        if turn == 20:
            load(batcher, 1, models[1])
        asked = {}
        for episode in chance.sample(range(9), chance.randrange(1, 7)):
            if len(contexts[episode]) > CONTEXT - 8:
                contexts[episode] = contexts[episode][:4]
            number += 1
            asked[number] = episode
        batcher.submit([request(n, contexts[e], chance.randrange(1, 7)) for n, e in asked.items()])
        seen = Answers()
        seen.add(batcher.advance(chance.randrange(4)))
        batcher.interrupt([next(iter(asked))])
        seen.drain(batcher, chance.randrange(1, 4))
        for n, e in asked.items():
            context, model = contexts[e], models[turn >= 20]
            given += len(context) - 1
            ids = seen.ids[n]
            assert ids == (greedy(model, context, len(ids)) if ids else [])
            if ids:
                error = np.abs(behaviour_of(model, context, ids) - seen.behaviour[n]).max()
                assert error < TOLERANCE
            contexts[e] = [*context, *ids, chance.randrange(VOCABULARY)]
    assert counted.computed < (0.9 if slots < 9 else 0.5) * given
