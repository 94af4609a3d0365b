"""Rewards of reasoning-gym: those of which data sets are exact unless set, and what that means."""

from __future__ import annotations

import math
from typing import Any

import pytest

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import open_task
from asyncrl.tasks.gym_library import DATASETS, create_dataset, lacking
from asyncrl.tasks.partial_credit import PARTIAL_CREDIT, settled_reward

WORDS_OF_NINE = {"min_word_len": 9, "max_word_len": 9}


def junk(right: str | None) -> list[str]:
    """A right answer with something behind it; something alone; nothing."""
    behind = (
        []
        if right is None
        else [
            f"{right}\n{right[:5]} 1 0 x",
            right + right[-1:] * 3,
            f"{right}\n{right}",
            f"{right} and so on",
        ]
    )
    return [*behind, "", "x 1 0"]


def gives_partial_credit(name: str) -> bool:
    """True if the data set's scorer gives more than 0 and less than 1 for junk."""
    data: Any = create_dataset(name, seed=7, size=8)
    for entry in (data[index] for index in range(4)):
        for text in junk(entry["answer"]):
            try:
                if 0 < float(data.score_answer(text, entry)) < 1:
                    return True
            except Exception:  # noqa: BLE001 (a scorer may raise anything: no credit)
                continue
    return False


def check(name: str) -> None:
    assert gives_partial_credit(name) is (name in PARTIAL_CREDIT), name


@pytest.mark.parametrize(
    "name", ["chain_sum", "dice", "ab", "rotate_matrix", "spell_backward", "jugs"]
)
def test_what_gives_partial_credit_for_junk_is_known(name: str) -> None:
    check(name)


@pytest.mark.explore
@pytest.mark.parametrize("name", sorted(DATASETS))
def test_what_gives_partial_credit_for_junk_is_known_of_all(name: str) -> None:
    if name == "composite":
        pytest.skip("its parts are the user's")
    if package := lacking(name):
        pytest.skip(f"{package} is not installed")
    check(name)


def test_names_are_of_data_sets() -> None:
    assert set(DATASETS) >= PARTIAL_CREDIT


def test_a_right_answer_with_junk_behind_it_is_worth_nothing_unless_it_is_asked_for() -> None:
    """Show the old defect: 0.9 was trained where 0 was counted; a policy learned never to stop."""
    params = {"min_n": 3, "max_n": 3}
    given = {"name": "rotate_matrix", "params": params, "train_size": 4, "eval_size": 0}
    by_default, score = (
        open_task(TaskConfig(**given, **more), 0)  # type: ignore[arg-type]
        for more in ({}, {"reward": "score"})
    )
    for index in range(4):
        answer = by_default.answer("train", index)
        assert answer is not None
        assert by_default.verify("train", index, answer) == 1.0
        assert by_default.verify("train", index, answer + "\n1") == 0.0
        assert 0.5 < score.verify("train", index, answer + "\n1") < 1.0


@pytest.mark.parametrize("reward", ["exact", "score"])
def test_a_sum_of_parts_is_never_a_right_answer(reward: str) -> None:
    """Nine times 1/9 is 1 and a little: reasoning-gym's score of a right word of nine letters with
    anything behind it."""
    assert math.fsum([1 / 9] * 9) == 1.0 < sum([0.0] + [1 / 9] * 9)
    task = open_task(
        TaskConfig(
            name="spell_backward",
            params=WORDS_OF_NINE,
            train_size=2,
            eval_size=0,
            reward=reward,  # type: ignore[arg-type]
        ),
        0,
    )
    answer = task.answer("train", 0)
    assert answer is not None and len(answer) == 9
    assert task.verify("train", 0, answer) == 1.0 > task.verify("train", 0, answer + "zz")


def test_the_reward_that_is_set_is_the_reward() -> None:
    assert settled_reward(TaskConfig(name="dice", reward="exact")) == "exact"
    assert settled_reward(TaskConfig(name="rotate_matrix", reward="score")) == "score"
