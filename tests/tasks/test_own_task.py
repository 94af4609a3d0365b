"""A task of a user's own as a class: its rows and splits, and what is refused before a run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import asyncrl as rl
from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.entry import entry_of
from asyncrl.tasks.judge_checks import origins
from asyncrl.tasks.own_task import open_found

SUMS = """
import asyncrl as rl

class Sums(rl.Task):
    def __init__(self, most=20):
        self.most = most

    def rows(self):
        return [{"a": a, "b": a + 1} for a in range(self.most)]

    def prompt(self, row):
        return f"{row['a']} + {row['b']} ="

    def answer(self, row):
        return row["a"] + row["b"]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SUMS)
    return tmp_path / "mine.py"


def opened(kind: Any, **settings: Any) -> Any:
    return open_found(kind, TaskConfig(name="mine:T", **settings), seed=3)


def test_a_file_of_fifteen_lines_is_a_task(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "run.toml").write_text(
        '[task]\nname = "./mine.py:Sums"\nparams = {most = 50}\neval_size = 8\n'
    )
    assert main(["check", str(file.parent / "run.toml")]) == 0
    out = capsys.readouterr().out
    assert "This configuration can run." in out and "of 42:" in out, "its prompts are counted"
    config = TaskConfig(name=f"{file}:Sums", params={"most": 50}, eval_size=8)
    task = open_task(config, seed=0)
    assert (task.size("train"), task.size("evaluation")) == (42, 8)
    assert task.prompt("train", 3) == "3 + 4 =\n" and task.answer("train", 3) == "7"
    assert task.verify("train", 3, " 7\n") == 1.0 and task.verify("train", 3, "8") == 0.0
    assert entry_of(task, "train", 3) == {"prompt": "3 + 4 =", "answer": "7", "a": 3, "b": 4}
    assert len(origins(config)[str(file)]) == 64
    assert not task.executes and not task.languages and task.writes


def test_it_is_one_of_a_mix(file: Path) -> None:
    mix = {
        "small": {"name": f"{file}:Sums", "params": {"most": 10}, "eval_size": 2},
        "large": {"name": f"{file}:Sums", "eval_size": 0},
        "gcd": {"name": "gcd", "train_size": 3, "eval_size": 1},
    }
    task = open_task(TaskConfig(mix=mix), seed=0)
    assert task.size("train") == 8 + 20 + 3 and task.size("evaluation") == 2 + 1
    assert task.prompt("train", 8) == "0 + 1 =\n"


def test_rows_without_an_end_and_rows_of_any_kind() -> None:
    class Endless(rl.Task):
        def rows(self) -> Any:
            return (f"Say {n + self.seed}:" for n in itertools.count())

        def verify(self, answer: str, row: Any) -> float:
            return float(str(row[4:-1]) == answer)

    task = opened(Endless, train_size=30, eval_size=5)
    assert (task.size("train"), task.size("evaluation")) == (30, 5)
    assert task.prompt("evaluation", 0) == "Say 33:\n", "the seed is the run's"
    assert task.answer("train", 0) is None and task.verify("train", 0, "3") == 1.0


def test_held_out_prompts_never_train() -> None:
    class Own(rl.Task):
        def rows(self) -> Any:
            return [{"prompt": str(n % 10), "answer": n} for n in range(30)]

        def evaluation_rows(self) -> Any:
            return [{"prompt": str(n), "answer": n} for n in range(8, 12)]

    task = opened(Own)
    assert (task.size("train"), task.size("evaluation")) == (24, 4)
    assert (
        len(task.notes) == 2 and "6 rows of Own have the prompt of a held-out one" in task.notes[0]
    )
    assert opened(Own, eval_size=0).size("train") == 30

    class Few(rl.Task):
        def rows(self) -> Any:
            return [{"prompt": str(n), "answer": n} for n in range(10)]

    assert [opened(Few).size(split) for split in ("train", "evaluation")] == [8, 2]


def test_a_verdict_changes_no_row_and_may_have_parts() -> None:
    class Parts(rl.Task):
        rewards = ("right", "brief")

        def rows(self) -> Any:
            return [{"prompt": "a", "left": [1]}]

        def verify(self, answer: str, row: Any) -> Any:
            return {"right": row["left"].pop(), "brief": 0.5}

    task = opened(Parts, eval_size=0)
    for _ in range(2):
        assert task.verify("train", 0, "").parts == {"right": 1.0, "brief": 0.5}
    assert opened(Parts, eval_size=0).size("evaluation") == 0
    with pytest.raises(TaskError, match=r"several rewards by name: set task.reward to score"):
        opened(Parts, reward="exact")


GOOD = "def rows(self): return [{'prompt': str(n), 'answer': '1'} for n in range(9)]"
BAD = {
    "pass": "it must define rows",
    "rows = 3": "TypeError: 'int' object is not callable",
    "def rows(self): return []": "leaves no row to train on: it has none",
    "def rows(self): return 'abc'": "it returned a str, and must return rows",
    "def rows(self): 1 / 0": "because rows() failed (ZeroDivisionError: division by zero)",
    "def rows(self): raise SystemExit(3)": "because rows() failed (SystemExit: 3)",
    "def rows(self): yield {'question': 'a'}": "no prompt of row 0 of train (LookupError",
    f"{GOOD}\n    def prompt(self, row): return row": "makes a dict of row 0 of",
    f"{GOOD}\n    def prompt(self, row): return None": "must return text",
    f"{GOOD}\n    def prompt(self, row): return ' '": "makes an empty prompt of row",
    f"{GOOD}\n    def prompt(self, row): return row['q']": "(KeyError: 'q')",
    f"{GOOD}\n    def prompt(self): return 'a'": "and it is called as prompt(self, row)",
    f"{GOOD}\n    def verify(self, answer): return 1": "it is called as verify(self, answer, row)",
    f"{GOOD}\n    async def verify(self, a, r): return 1": "defines verify as async",
    f"{GOOD}\n    def verify(self, a, r): return 'yes'": "gives no reward on the data's own answer",
    f"{GOOD}\n    languages = 'python'": "has languages that are no names",
    f"{GOOD}\n    rewards = 'a'": "which must be different names",
    f"{GOOD}\n    def evaluation_rows(self): return self.rows()": "have the prompt of a held-out",
    f"{GOOD}\n    def __init__(self): raise OSError('no disk')": "(OSError: no disk)",
    f"{GOOD}\n    def __init__(self, size): pass": "takes (size), and is given nothing",
    f"{GOOD}\n    def answer(self, row): return row['gone']": "(KeyError: 'gone')",
}


@pytest.mark.parametrize("body", BAD)
def test_a_class_that_does_not_fit_is_a_sentence_and_status_2(
    body: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"import asyncrl as rl\nclass T(rl.Task):\n    {body}\n")
    name = f"--set=task.name={file}:T"
    assert main(["check", name, "--set=task.reward=score"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("asyncrl: ") and sentence.endswith(".")
    assert BAD[body] in sentence, sentence


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["task.name=./mine.py:Sumz"], "did you mean Sums"),
        (["task.name=./none.py:Sums"], "none.py is not there"),
        (["task.name=./mine.py:rl"], "derive a class from asyncrl.Task"),
        (
            ["task.name=./mine.py:Sums", "task.params.least=3"],
            "takes (most=20), and is given least",
        ),
        (["task.name=./mine.py:Sums", "task.path=a.jsonl"], "files are read when task.name is"),
        (["task.name=./mine.py:Sums", "task.verifier=number"], "have verifiers of their own"),
    ],
)
def test_a_setting_that_does_not_fit_is_a_sentence(
    sets: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *(f"--set={one}" for one in sets)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert said in sentence, sentence


def test_by_hand_it_is_opened_by_its_class(file: Path) -> None:
    class Yes(rl.Task):
        def rows(self) -> Any:
            return [{"prompt": "Yes?", "answer": "yes"}] * 3

    task = rl.open_task(rl.Config(task={"eval_size": 0}), Yes)  # type: ignore[arg-type]
    assert task.prompt("train", 2) == "Yes?\n" and task.verify("train", 2, "yes") == 1.0

    class Runs(Yes):
        executes = True

    with pytest.raises(ConfigError, match=r"executes what the model answers"):
        rl.open_task(rl.Config(), Runs)
    json.dumps(entry_of(task, "train", 0))
