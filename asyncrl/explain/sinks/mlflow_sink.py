"""MLflow. Its own variables say where to: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME …"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

EXPERIMENT = "asyncrl"
PARAMETERS, METRICS = 100, 1000
"""Parameters and metrics of a request, at most."""
LENGTH = 500
"""Characters of a parameter, at most, as the oldest servers have it."""


class MlflowSink:
    """Logs figures as metrics of one run, by version."""

    def __init__(self, client: MlflowClient, identity: str) -> None:
        self._client = client
        self.identity = identity

    def add(self, version: int, at: float, figures: Mapping[str, float]) -> None:
        """Log the figures of a version."""
        found = [
            Metric(_allowed(name), value, int(at * 1000), version)
            for name, value in figures.items()
        ]
        for start in range(0, len(found), METRICS):
            self._client.log_batch(self.identity, metrics=found[start : start + METRICS])

    def close(self) -> None:
        """Say that the run has ended."""
        self._client.set_terminated(self.identity)


def open_sink(run: Path, settings: Mapping[str, Any], identity: str) -> MlflowSink:
    """Begin MLflow's run, with the settings as its parameters, or go on with it."""
    client = MlflowClient()
    if identity:
        client.update_run(identity, status="RUNNING")
        return MlflowSink(client, identity)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    begun = client.create_run(experiment, run_name=run.name)
    parameters = [Param(key, str(value)[:LENGTH]) for key, value in _flat(settings)]
    for start in range(0, len(parameters), PARAMETERS):
        client.log_batch(begun.info.run_id, params=parameters[start : start + PARAMETERS])
    return MlflowSink(client, begun.info.run_id)


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of a table of tables.

    >>> list(_flat({"run": {"seed": 3}, "task": {"mix": {"a b!": {"weight": 1}}}}))
    [('run.seed', 3), ('task.mix.a b_.weight', 1)]
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield _allowed(f"{path}{key}"), value


def _allowed(name: str) -> str:
    """The name with what MLflow allows in one.

    >>> _allowed("evaluation/pass@4")
    'evaluation/pass_4'
    """
    return re.sub(r"[^\w. :/-]", "_", name, flags=re.ASCII)
