"""`asyncrl init`: a run.toml that `asyncrl check` takes, for any task, and never over a file."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from asyncrl.bundled.bundled_model import frame, tokenizer
from asyncrl.cli import main
from asyncrl.config import Config, load
from asyncrl.launch.first_run import KEYS, OF_A_FILE, first_run
from asyncrl.tasks import open_task
from asyncrl.tasks.gym import parameters


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def jsonl(path: Path, lines: int) -> str:
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{n} and {n} is", "answer": f"the number {2 * n}"}) + "\n"
            for n in range(lines)
        )
    )
    return path.name


@pytest.mark.parametrize("what", ["spell_backward", "basic_arithmetic", "mini_sudoku", "file"])
def test_check_takes_it_and_every_prompt_and_answer_fits(
    what: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = jsonl(here / "sums.jsonl", 40) if what == "file" else what
    assert main(["init", name]) == 0
    assert "run.toml" in capsys.readouterr().out
    assert main(["check", "run.toml"]) == 0
    config = load(Path("run.toml"), (), {})
    assert config.task.name == ("data" if what == "file" else what)
    task = open_task(config.task, 1)
    items = range(min(64, task.size("train")))
    prompts = [task.prompt("train", item) for item in items]
    of_bytes = tokenizer(frame(prompts))
    for item, prompt in zip(items, prompts, strict=True):
        answer = len(of_bytes.encode(str(task.answer("train", item))).ids) + 1
        assert answer <= config.rollout.max_new_tokens
        asked = len(of_bytes.encode(prompt).ids)
        assert asked + config.rollout.max_new_tokens <= config.engine.context_tokens


@pytest.mark.parametrize(
    ("different", "lines", "held_out"),
    [
        (400, 400, 80),
        (12, 12, 2),
        (3, 3, 0),  # fewer than five lines
        (1, 20, 0),  # each prompt is a held-out one, whatever is held out
        (20, 200, 10),  # 20 held out would leave no line, and 10 leave half
    ],
)
def test_of_a_file_as_much_is_held_out_as_leaves_lines_to_train_on(
    different: int, lines: int, held_out: int, here: Path
) -> None:
    one = [json.dumps({"prompt": f"{n % different} is", "answer": "a"}) for n in range(lines)]
    (here / "few.jsonl").write_text("\n".join(one))
    (here / "run.toml").write_text(first_run("few.jsonl", "run.toml"))
    task = load(Path("run.toml"), (), {}).task
    assert task.eval_size == held_out and 2 * open_task(task, 0).size("train") >= lines
    head = (here / "run.toml").read_text()
    words = f"# Held out: the last {held_out} of" if held_out else "# Nothing is held out of"
    assert f"{words} {lines} rows" in head


def test_it_says_what_each_setting_means_and_what_is_known_of_the_task() -> None:
    text = first_run("chain_sum", "run.toml")
    lines = text.splitlines()
    for key in set(KEYS) - set(OF_A_FILE):
        name = key.rpartition(".")[2]
        at = next(index for index, line in enumerate(lines) if line.startswith(f"{name} = "))
        assert lines[at - 1].startswith("# ")
    assert "The bundled model: " in text and "asyncrl train run.toml" in text


def test_the_data_sets_own_parameters_are_there_to_be_uncommented() -> None:
    lines = first_run("chain_sum", "run.toml").splitlines()
    at = lines.index("# [task.params]")
    own = "\n".join(
        line.removeprefix("# ") for line in lines[at : at + 1 + len(parameters("chain_sum"))]
    )
    assert tomllib.loads(own)["task"]["params"] == parameters("chain_sum")
    assert parameters("chain_sum")["min_terms"] == 2


def test_a_file_that_is_there_is_left(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run.toml").write_text("mine")
    assert main(["init"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "run.toml: this already exists" in said
    assert (here / "run.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("spel_backward", "did you mean 'spell_backward'"),
        ("nowhere.jsonl", "nowhere.jsonl cannot be read"),
        ("nowhere.csv", "nowhere.csv cannot be read"),
        (".", ". has no rows"),
        ("empty.jsonl", "empty.jsonl"),
    ],
)
def test_what_is_no_task_is_a_sentence_and_nothing_is_written(
    what: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.jsonl").touch()
    assert main(["init", what]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not (here / "run.toml").exists()


def test_the_context_has_room_for_the_longest_prompt_and_the_longest_answer(here: Path) -> None:
    """Of different lengths, so that the one cannot stand for the other."""
    lines = [json.dumps({"prompt": f"{n**40} and {n**41} is", "answer": "1"}) for n in range(9, 19)]
    (here / "long.jsonl").write_text("\n".join(lines) + "\n")
    text = first_run("long.jsonl", "run.toml")
    found = {
        name: int(value)
        for name, value in re.findall(r"^(context_tokens|max_new_tokens) = (\d+)", text, re.M)
    }
    assert found["context_tokens"] > 3 * found["max_new_tokens"]


def test_settings_of_a_file_are_written_and_win_over_what_it_needs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"frage": f"{n} + 1?", "info": {"loesung": n + 1}} for n in range(40)]
    (here / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "own.jsonl"]) == 2
    assert "--set task.prompt_key=KEY" in capsys.readouterr().err
    sets = ["task.prompt_key=frage", "task.answer_key=info.loesung", "task.verifier=last_number"]
    arguments = [part for text in [*sets, "train.steps=3"] for part in ("--set", text)]
    assert main(["init", "own.jsonl", *arguments]) == 0
    assert main(["check", "run.toml"]) == 0
    config = load(Path("run.toml"), (), {})
    task = config.task
    assert (task.prompt_key, task.answer_key) == ("frage", "info.loesung")
    assert (task.verifier, config.train.steps, task.eval_size) == ("last_number", 3, 8)
    assert config.rollout.max_new_tokens == Config().rollout.max_new_tokens, "a number in a text"
    Path("run.toml").unlink()
    assert main(["init", "own.jsonl", *arguments, "--set", "task.eval_size=0"]) == 0
    assert load(Path("run.toml"), (), {}).task.eval_size == 0
    capsys.readouterr()
    assert main(["init", "--set", "task.prompt_key=frage"]) == 2
    assert "asyncrl init FILE --set" in capsys.readouterr().err


OWN = """
import asyncrl

class Double(asyncrl.Task):
    def rows(self):
        return range(40)

    def prompt(self, row):
        return f"2 * {row} ="

    def answer(self, row):
        return str(2 * row)
"""


def test_a_class_of_ones_own_is_a_task_and_no_file_of_prompts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own.py").write_text(OWN)
    assert main(["init", "./own.py:Double"]) == 0
    assert "own.py:Double" in capsys.readouterr().out
    text = (here / "run.toml").read_text()
    assert 'name = "./own.py:Double"' in text and "task.path" not in text
    assert main(["check", "run.toml"]) == 0
    config = load(Path("run.toml"), (), {})
    assert config.rollout.max_new_tokens == 8 and config.task.eval_size == 8
