"""A machine that is to judge has what the launcher has, or the difference is named."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks.judge_checks import check_judging, differing_origin, opened, origins

LINES = '{"prompt": "2 + 2 =", "answer": 4}\n{"prompt": "1 + 2 =", "answer": 3}\n'


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskConfig:
    """Lines that a function of a module judges."""
    (tmp_path / "lines.jsonl").write_text(LINES)
    (tmp_path / "judges_of_a_test.py").write_text("def half(answer, line):\n    return 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "judges_of_a_test", raising=False)
    path = str(tmp_path / "lines.jsonl")
    return TaskConfig(name="jsonl", path=path, verifier="judges_of_a_test:half", eval_size=1)


def test_another_line_and_another_verifier_are_named(task: TaskConfig, tmp_path: Path) -> None:
    theirs = origins(task)
    assert set(theirs) == {task.path, "the module judges_of_a_test"}
    assert differing_origin(theirs, origins(task)) == ""
    (tmp_path / "judges_of_a_test.py").write_text("def half(answer, line):\n    return 0.6\n")
    assert differing_origin(theirs, origins(task)) == (
        "the module judges_of_a_test is not what the launcher has"
    )
    (tmp_path / "lines.jsonl").write_text(LINES.replace("4}", "5}"))
    assert differing_origin(theirs, origins(task)).startswith(f"{task.path} is not what the")
    (tmp_path / "lines.jsonl").unlink()
    assert differing_origin(theirs, origins(task)) == f"{task.path} is not there"


@pytest.mark.parametrize("module", ["no_such_module", "no.such.module"])
def test_a_module_that_is_not_there_is_named(task: TaskConfig, module: str) -> None:
    lacking = msgspec.structs.replace(task, verifier=f"{module}:judge")
    assert origins(lacking)[f"the module {module}"] == "none"
    assert differing_origin(origins(task), origins(lacking)).endswith(
        "judges_of_a_test is not there"
    )


def test_tasks_of_reasoning_gym_come_from_its_version() -> None:
    assert list(origins(TaskConfig(name="chain_sum"))) == ["reasoning-gym"]
    mix = TaskConfig(mix={"one": {"name": "chain_sum"}, "two": {"name": "spell_backward"}})
    assert list(origins(mix)) == ["reasoning-gym"]


def test_a_task_that_cannot_be_opened_is_bad_input(task: TaskConfig, tmp_path: Path) -> None:
    check_judging(task, opened(task, 0))
    (tmp_path / "lines.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"lines\.jsonl"):
        opened(task, 0)
