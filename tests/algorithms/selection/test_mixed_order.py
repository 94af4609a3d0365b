"""The stream of several tasks: a function of the place, by weight, and each task in its order."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncrl.algorithms.selection.curriculum import PromptOrder
from asyncrl.algorithms.selection.mixed_order import BLOCK, MixedOrder, TaskPart

PARTS = [
    TaskPart("a", {"train": 30, "evaluation": 0}, (0.5, 0.0)),
    TaskPart("held", {"train": 9, "evaluation": 5}, (0.0, 0.0)),
    TaskPart("b", {"train": 1000, "evaluation": 0}, (0.5, 1.0)),
]
PLACES = 5 * BLOCK


def stream(seed: int = 3, epochs: int = 0, stage: int = 3 * BLOCK) -> MixedOrder:
    return MixedOrder(PARTS, stages=(stage,), seed=seed, epochs=epochs)


def test_a_place_has_its_prompt_whatever_was_asked_before() -> None:
    """A run that is resumed asks from a place on, and a curriculum asks ahead."""
    whole = stream()
    forwards = [whole.prompt_index(place) for place in range(PLACES)]
    backwards = stream()
    assert [backwards.prompt_index(place) for place in reversed(range(0, PLACES, 97))] == [
        forwards[place] for place in reversed(range(0, PLACES, 97))
    ]
    for place in (0, BLOCK - 1, BLOCK, PLACES - 1):
        assert stream().prompt_index(place) == forwards[place]
    assert [stream(seed=4).prompt_index(place) for place in range(50)] != forwards[:50]


def test_tasks_come_by_weight_and_by_stage() -> None:
    mixed = stream()
    tasks = [mixed.task(place) for place in range(PLACES)]
    first, then = Counter(tasks[: 3 * BLOCK]), Counter(tasks[3 * BLOCK :])
    assert first.keys() == {0, 2} and then.keys() == {2}
    # 6 standard deviations of so many draws
    assert first[0] / (3 * BLOCK) == pytest.approx(0.5, abs=6 * 0.5 / (3 * BLOCK) ** 0.5)


def test_each_task_has_its_own_prompts_in_its_own_order() -> None:
    mixed = stream()
    drawn: dict[int, list[int]] = {0: [], 2: []}
    for place in range(PLACES):
        drawn[mixed.task(place)].append(mixed.prompt_index(place))
    for task, offset, size in ((0, 0, 30), (2, 39, 1000)):
        own = PromptOrder(size, seed=3, epochs=0)
        assert drawn[task] == [offset + own.prompt_index(n) for n in range(len(drawn[task]))]


def test_epochs_end_after_as_many_places_as_trained_tasks_have_prompts() -> None:
    assert stream(epochs=2).size == 1030
    assert not stream(epochs=2).over(2059) and stream(epochs=2).over(2060)


def test_a_stage_begins_within_a_block() -> None:
    mixed = stream(stage=BLOCK + 10)
    assert {mixed.task(place) for place in range(BLOCK + 10, 2 * BLOCK)} == {2}
    assert 0 in {mixed.task(place) for place in range(BLOCK, BLOCK + 10)}
