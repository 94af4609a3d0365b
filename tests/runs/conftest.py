"""Shared parts of the tests of real runs: a model, and one run that agents talked to."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents_run import AgentsRun, agents_run
from train_support import tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def talked_to(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AgentsRun:
    """A run with a gateway, after four sessions of agents and SIGTERM."""
    return agents_run(model, tmp_path_factory.mktemp("agents"))
