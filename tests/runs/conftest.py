"""Shared parts of the tests of real runs: a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_support import tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights."""
    return tiny_model(tmp_path_factory.mktemp("model"))
