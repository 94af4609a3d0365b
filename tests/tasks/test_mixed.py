"""Several tasks as one: each prompt with its own task's verifier."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.mixed import MixedTask, in_turn, size_of


def config(tmp_path: Path, **changes: object) -> TaskConfig:
    (path := tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n} + 1 =", "answer": n + 1}) + "\n" for n in range(10))
    )
    numbers = {"name": "jsonl", "path": str(path), "verifier": "number", "eval_size": 4}
    return TaskConfig(
        eval_size=2,
        train_size=3,
        mix={"numbers": numbers | changes, "words": {"template": "{question} >"}},
        weights={"numbers": 0.5, "words": 0.5},
    )


def test_each_prompt_is_of_one_task_and_judged_by_its_verifier(tmp_path: Path) -> None:
    task = open_task(config(tmp_path), seed=0)
    assert isinstance(task, MixedTask)
    assert (task.size("train"), task.size("evaluation")) == (6 + 3, 4 + 2)
    numbers, words = task.tasks["numbers"], task.tasks["words"]
    for split, first in (("train", 6), ("evaluation", 4)):
        assert task.prompt(split, first - 1) == numbers.prompt(split, first - 1)
        assert task.prompt(split, first) == words.prompt(split, 0)
        assert task.prompt(split, first).endswith(" >")
        for n in range(task.size(split)):
            answer = task.answer(split, n)
            assert answer is not None and task.verify(split, n, answer) == 1.0
    # 1.0 is the number 1, and no word
    assert task.verify("train", 0, f"{float(task.answer('train', 0) or 0)}") == 1.0
    assert task.verify("train", 6, "1.0") < 1.0
    with pytest.raises(IndexError):
        task.prompt("train", 9)
    with pytest.raises(IndexError):
        task.prompt("train", -1)


def test_the_sizes_of_labels_are_those_of_the_tasks(tmp_path: Path) -> None:
    size = size_of(open_task(config(tmp_path), seed=0))
    assert [size(label, "train") for label in ("numbers", "words")] == [6, 3]
    assert list(islice(in_turn(open_task(config(tmp_path), seed=0)), 5)) == [0, 6, 1, 7, 2]


def test_an_error_names_the_task(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"^task\.mix\.numbers: .*cannot be read"):
        open_task(config(tmp_path, path="/nowhere"), seed=0)
