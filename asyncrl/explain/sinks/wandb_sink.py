"""Weights & Biases. Its own variables say where to (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE …); its
files are in RUN/wandb, so `wandb sync RUN/wandb/offline-*` sends an offline run later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

PROJECT = "asyncrl"


class WandbSink:
    """Logs figures over the version that they are of: an evaluation may come after later steps."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        run.define_metric("version", hidden=True)
        run.define_metric("*", step_metric="version")

    @property
    def identity(self) -> str:
        """W&B's id of the run."""
        return str(self._run.id)

    def add(self, version: int, at: float, figures: Mapping[str, float]) -> None:
        """Log the figures of a version."""
        self._run.log({"version": version, **figures})

    def close(self) -> None:
        """Send what is left, and say that the run has ended."""
        self._run.finish()


def open_sink(run: Path, settings: Mapping[str, Any], identity: str) -> WandbSink:
    """Begin W&B's run, or go on with it. No code is sent, and nothing that processes print."""
    begun = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=os.environ.get("WANDB_NAME", run.name),
        id=identity or os.environ.get("WANDB_RUN_ID"),
        resume="allow",
        dir=str(run),
        config=dict(settings),
        settings=wandb.Settings(console="off", disable_code=True),
    )
    return WandbSink(begun)
