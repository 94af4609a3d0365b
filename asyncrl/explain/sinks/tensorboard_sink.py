"""TensorBoard: event files in RUN/tensorboard. `tensorboard --logdir runs` shows them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.summary import Writer

from asyncrl.runtime.run_dir import TENSORBOARD


class TensorBoardSink:
    """Writes one file for each life of the run."""

    identity = ""

    def __init__(self, folder: Path) -> None:
        self._writer = Writer(str(folder))

    def add(self, version: int, at: float, figures: Mapping[str, float]) -> None:
        """Write the figures of a version, at once."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, version, wall_time=at)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def open_sink(run: Path, settings: Mapping[str, Any], identity: str) -> TensorBoardSink:
    """Open the run's event files."""
    return TensorBoardSink(run / TENSORBOARD)
