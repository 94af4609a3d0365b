"""The real libraries: what they have of a run is what its curve says, by readers of their own, also
after the run was killed and went on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from look_support import evaluation, make_run, step
from train_support import wait_for
from wandb_file import history

from asyncrl.explain.curve import line_of
from asyncrl.explain.sinks.sink import NAMES, opener
from asyncrl.explain.sinks.sink_feed import SinkFeed
from asyncrl.runtime.run_dir import METRICS, TENSORBOARD

TOML = '[train]\nsteps = 3\n[task]\nname = "jsonl"\n[task.params]\n"wide @!" = 1\n'


def next_second() -> None:
    """Wait for it: W&B names the folder of each life of a run by the second."""
    now = int(time.time())
    wait_for("the next second", lambda: int(time.time()) > now)


POINTS = [evaluation(0, 0.25), step(1, reward=0.5), step(2, reward=0.75), evaluation(2, 1.0)]
LATER = [step(3, reward=0.25, metrics={"loss": 0.125})]

Found = dict[str, list[tuple[int, float]]]
"""By figure, the versions and values that a library has."""


def of_tensorboard(run: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    reader = EventAccumulator(str(run / TENSORBOARD))
    reader.Reload()
    for name in reader.Tags()["tensors"]:
        assert reader.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    return {
        name: [(at.step, float(make_ndarray(at.tensor_proto))) for at in reader.Tensors(name)]
        for name in reader.Tags()["tensors"]
    }


def of_wandb(run: Path) -> Found:
    found: Found = {}
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len({path.name for path in files}) == 1  # each life of the run is the same run
    for row in (row for path in files for row in history(path)):
        version = row.pop("version")
        for name, value in row.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((version, value))
    return found


def of_mlflow(run: Path) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient()
    [experiment] = client.search_experiments(filter_string="name = 'asyncrl'")
    [only] = client.search_runs([experiment.experiment_id])
    assert only.info.status == "FINISHED" and only.info.run_name == run.name
    assert only.data.params["task.name"] == "jsonl"
    assert only.data.params["task.params.wide __"] == "1"
    return {
        name: [(at.step, at.value) for at in client.get_metric_history(only.info.run_id, name)]
        for name in only.data.metrics
    }


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("tensorboard", of_tensorboard),
        pytest.param("wandb", of_wandb, marks=pytest.mark.explore),
        pytest.param("mlflow", of_mlflow, marks=pytest.mark.explore),
    ],
)
def test_a_library_has_what_the_curve_says(
    name: Any, has: Callable[[Path], Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in NAMES
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    run = make_run(tmp_path / "my-run", POINTS, TOML)
    for more in ([], LATER):  # the second time, the run goes on
        with (run / METRICS).open("ab") as file:
            file.writelines(map(line_of, more))
        feed = SinkFeed(run, name, opener(name))
        feed.send()
        feed.close()
        next_second()
    found = has(run)
    assert found["evaluation/accuracy"] == [(0, 0.25), (2, 1.0)]
    assert found["train/reward"] == [(1, 0.5), (2, 0.75), (3, 0.25)]
    assert found["train/loss"][-1] == (3, 0.125)
    assert sorted(version for version, _ in found["run/seconds"]) == [0, 1, 2, 2, 3]
