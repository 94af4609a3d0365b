"""Data sets by name: from the cache of `datasets`, and without a network one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError, open_task


def named(path: str, **more: Any) -> TaskConfig:
    return TaskConfig(**{"name": "data", "path": path, "eval_size": 1, **more})


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, with a cache and no network of its own."""
    package = pytest.importorskip("datasets")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return package


def test_splits_of_a_data_set_are_read_by_name(datasets: Any, tmp_path: Path) -> None:
    (folder := tmp_path / "sums").mkdir()
    for split, count in (("train", 6), ("test", 3)):
        rows = [{"question": f"{split} {n}", "answer": f"#### {n}"} for n in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        task = open_task(named(f"hub:{folder}", eval_path=f"hub:{folder}::test", eval_size=2), 0)
        assert (task.size("train"), task.size("evaluation")) == (6, 2)
        assert (task.prompt("train", 5), task.answer("train", 5)) == ("train 5\n", "5")
        assert task.prompt("evaluation", 1) == "test 1\n"


def test_a_name_without_a_network_is_one_sentence(datasets: Any) -> None:
    with pytest.raises(TaskError, match=r"is not in the cache of datasets and cannot be loaded"):
        open_task(named("hub:org/nothing"), 0)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"the package datasets loads: .*asyncrl\[datasets\]"):
        open_task(named("hub:org/sums"), 0)
