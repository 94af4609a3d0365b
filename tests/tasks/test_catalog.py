"""`asyncrl tasks`: what it says is what the tasks are, and what was measured."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.config.schema import EngineConfig, RolloutConfig, TaskConfig
from asyncrl.explain.task_list import example, page, show_tasks
from asyncrl.tasks import open_task
from asyncrl.tasks.catalog import CatalogEntry, Learned, catalog, fits, verdict
from asyncrl.tasks.gym_library import DATASETS

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
UNLISTED = {"composite"}
"""Data sets that cannot be opened with their own parameters."""


def test_every_data_set_is_listed_once_in_the_order_of_names() -> None:
    assert [*catalog()] == sorted(DATASETS.keys() - UNLISTED)


@pytest.mark.parametrize("name", ["spell_backward", "chain_sum", "gcd", "word_sorting"])
def test_an_example_is_a_prompt_of_the_task_and_its_answer_is_right(name: str) -> None:
    entry, task = catalog()[name], open_task(TaskConfig(name=name, eval_size=0, train_size=64), 0)
    prompts = {task.prompt("train", item).strip(): item for item in range(64)}
    assert entry.question in prompts and entry.answer is not None
    assert task.verify("train", prompts[entry.question], entry.answer) == 1.0


def entry(learned: Learned | None = None, answer: str | None = "2") -> CatalogEntry:
    return CatalogEntry(
        name="sum",
        question="1 + 1 =",
        answer=answer,
        prompt_tokens=8,
        answer_tokens=2,
        learned=learned,
    )


@pytest.mark.parametrize(
    ("accuracy", "ended", "said"),
    [
        (0.3, True, "yes: 0.30 right after 9 s"),
        (0.29, True, "no: 0.29 right after 9 s"),
        (0.02, False, "not in that time: 0.02 right after 9 s"),
    ],
)
def test_the_verdict_is_what_was_measured(accuracy: float, ended: bool, said: str) -> None:
    found = Learned(accuracy=accuracy, steps=3, seconds=9.2, ended=ended)
    assert verdict(entry(found)) == said
    assert verdict(entry(found, answer=None)).startswith("no: it has no answers")


def test_the_page_says_what_the_list_says_of_what_was_measured() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [(row[0], row[2]) for row in rows] == [
        (f"| `{name}`", f"{verdict(listed)} |")
        for name, listed in catalog().items()
        if listed.learned is not None or listed.answer is None
    ]


def test_the_list_has_a_line_for_each_and_one_task_has_a_page() -> None:
    shown = io.StringIO()
    show_tasks(None, Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()
    assert len(lines) == len(catalog()) + 1
    for line, (name, listed) in zip(lines, catalog().items(), strict=False):
        assert line.startswith(name) and line.endswith(verdict(listed)) and line.isprintable()
        assert example(listed) in line
    assert any("asyncrl init sum" in line for line in page(entry()))


def test_an_unknown_task_is_a_sentence_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'spell_backward'"):
        show_tasks("spell_backwards", Console(file=io.StringIO()))
    assert main(["tasks", "zzz\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.strip().isprintable() and "asyncrl tasks" in said


def test_what_fills_the_context_fits_and_one_token_more_does_not() -> None:
    room = EngineConfig().context_tokens - RolloutConfig().max_new_tokens
    one = next(iter(catalog().values()))
    for tokens, expected in [(room, True), (room + 1, False)]:
        entry = msgspec.structs.replace(one, prompt_tokens=tokens, answer_tokens=1)
        assert fits(entry) is expected


def test_a_list_and_a_page_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0 and main(["tasks", "chain_sum"]) == 0
    assert capsys.readouterr().out
