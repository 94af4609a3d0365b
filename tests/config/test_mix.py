"""Several tasks: what [task] says of them, and what it must not say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.journal_size import steps
from asyncrl.config.load import read, write
from asyncrl.config.mix import each, held_out_size, members, shares, trained_size

MIX = """
[task]
template = "Q: {question} A:"
eval_size = 16
stages = [40]

[task.mix.sums]
name = "chain_sum"
train_size = 100
params = { min_terms = 2, max_terms = 2 }

[task.mix.words]
train_size = 50

[task.mix.held]
name = "jsonl"
path = "held.jsonl"

[task.weights]
sums = [1.0, 0.25]
words = [0, 0.75]
"""


def loaded(tmp_path: Path, text: str = MIX, *sets: str) -> Config:
    (path := tmp_path / "run.toml").write_text(text)
    return load(path, sets, {})


def refusal(tmp_path: Path, *sets: str, text: str = MIX) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text, *sets)
    said = str(refused.value)
    assert said.endswith(".") and "\n" not in said
    return said


def test_each_task_has_what_it_says_and_the_rest_of_the_section(tmp_path: Path) -> None:
    task = loaded(tmp_path, MIX).task
    found = members(task)
    assert list(found) == ["sums", "words", "held"] and each(task) == list(found.values())
    assert found["sums"].params == {"min_terms": 2, "max_terms": 2}
    assert (found["words"].name, found["words"].train_size) == ("spell_backward", 50)
    assert {one.template for one in found.values()} == {"Q: {question} A:"}
    assert shares(task) == {"sums": (1.0, 0.25), "words": (0.0, 0.75), "held": (0.0, 0.0)}
    assert held_out_size(task) == 48 and trained_size(task) == 150


def test_params_are_not_inherited_by_another_data_set(tmp_path: Path) -> None:
    text = MIX.replace("[task.mix.words]", "[task.params]\nmin_word_len = 3\n[task.mix.words]")
    found = members(loaded(tmp_path, text).task)
    assert found["words"].params == {"min_word_len": 3} and found["held"].params == {}


def test_it_is_written_and_read_and_derived(tmp_path: Path) -> None:
    config = loaded(tmp_path, MIX, "task.epochs=2", "train.batch_groups=10", "train.steps=1000")
    write(config, tmp_path / "again.toml")
    assert read(tmp_path / "again.toml") == config
    assert list(read(tmp_path / "again.toml").task.mix) == list(config.task.mix)
    assert steps(config) == math.ceil(2 * 150 / 10)
    rows = {row[0]: row for row in derived(config, 2)}
    assert rows["task sums"][2] == "100% → 25% of the prompts"
    assert rows["task held"][2] == "evaluated alone" and "task" not in rows


def test_one_task_is_what_it_was() -> None:
    task = Config().task
    assert members(task) == {} and each(task) == [task] and shares(task) == {}


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["task.weights.sums=[0.5, 0.25]"], "the weights of stage 1 add up to 0.5"),
        (["task.weights.words=[0, 0.74]"], "the weights of stage 2 add up to 0.99"),
        (["task.weights.word=0.5"], "'word' names no task; the nearest is 'words'"),
        (["task.weights.sums=1.0"], "the weights of stage 2 add up to 1.75"),
        (["task.weights.sums=[1, 0.2, 0.05]"], "has 3 weights, and there are 2 stages"),
        (["task.weights.sums=[2, 0.25]"], "not a number from 0 to 1"),
        (["task.weights.sums=[true, 0.25]"], "not a number from 0 to 1"),
        (['task.weights.sums="much"'], "not a number from 0 to 1"),
        (["task.stages=[40, 40]"], "sort them"),
        (["task.mix.sums.trainsize=3"], "the nearest is 'train_size'"),
        (["task.mix.sums.train_size=0"], "train_size"),
        (["task.mix.sums.curriculum=unsolved"], "which a task of a mix cannot have"),
        (["task.mix.sums.path=x"], "path of the task 'sums'"),
        (["task.mix.held.params={a = 1}"], "of the task 'held': parameters belong to"),
        (["task.mix.sums.verifier=mine:judge"], "verifier of the task 'sums'"),
        (["task.mix.words.template=Say it."], "of the task 'words': the prompt would not"),
        (["task.mix.words=3"], "the task 'words' is not a table"),
    ],
)
def test_what_does_not_add_up_is_refused_in_a_sentence(
    tmp_path: Path, sets: list[str], says: str
) -> None:
    assert says in refusal(tmp_path, *sets)


def test_weights_of_no_mix_are_refused(tmp_path: Path) -> None:
    assert "give task.mix a table" in refusal(tmp_path, "task.weights.a=1.0", text="")
    assert "give task.mix a table" in refusal(tmp_path, "task.stages=[3]", text="")
    none = MIX.partition("[task.weights]")[0]
    assert "add up to 0" in refusal(tmp_path, text=none)
    odd = MIX.replace("task.mix.held", 'task.mix."a b"')
    assert "a label has 1 to 32" in refusal(tmp_path, text=odd)
