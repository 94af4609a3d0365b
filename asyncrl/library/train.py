"""The one way to a run, from the command line and from Python: check, claim the directory, launch.

This process never imports torch.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row, derived
from asyncrl.config.paths import exists, reachable
from asyncrl.explain.display import show_rows
from asyncrl.launch import model_directories, preflight
from asyncrl.launch.hub.hub_models import named_models
from asyncrl.launch.private import refuse_foreign
from asyncrl.launch.publication_row import publication_row, weights_row
from asyncrl.launch.routing_bytes import routing_bytes
from asyncrl.launch.scale_rows import scale_rows
from asyncrl.launch.trainer_memory import memory_rows
from asyncrl.library.opened_run import Run
from asyncrl.runtime.output import Output
from asyncrl.runtime.processes.machine import available_cores
from asyncrl.runtime.run_dir import CLUSTER_MODELS
from asyncrl.runtime.waiting import Doing, waiting
from asyncrl.sandbox.support import support
from asyncrl.words import duration


def train(
    config: Config,
    *,
    resume: str | Path | None = None,
    console: Console | None = None,
    models: Path | None = None,
) -> Run:
    """Train to the end, in processes of the run's own, and return the run, whose `status` says how
    it ended. `resume` goes on with the run in that directory. `models` names the file that
    `asyncrl calibrate` wrote, if any. Raises ConfigError if the run cannot start as
    configured."""
    if console is None:
        console = Console(file=Output(sys.stdout))  # type: ignore[arg-type]
    resume = None if resume is None else Path(resume)
    if resume is not None:
        refuse_foreign(resume.absolute())
    config = checked(config, resume, console, models)
    with preflight.claimed(config) as run:
        from asyncrl.launch.launcher import launch

        status = launch(config, resume=resume and run, console=console)
    return Run(run, status)


def checked(
    config: Config,
    resume: Path | None,
    console: Console,
    models: Path | None,
    *,
    architecture: bool = False,
) -> Config:
    """Resolve a configuration, check it against this machine, and show what follows from it. With
    `architecture` the model is made, without weights, before its memory is predicted, which would
    take minutes for sizes that no model has. Raises ConfigError."""
    cores = available_cores()
    with waiting() as doing, named_models(doing) as named:
        config = named.find(config, resume)
        if named.missing and not architecture:  # what would refuse the run does so before that
            _tried(config, resume, cores, doing, architecture=True)
            named.download()
            config = named.settled(config)
        config, notes = _tried(config, resume, cores, doing, architecture=architecture)
        doing("computing sizes and memory")
        sent = [*weights_row(config), publication_row(config, _measured_pause(models))]
        scale = [*memory_rows(config), *scale_rows(config)]
        rows = [*derived(config, cores, routing_bytes(config)), *named.rows, *sent, *scale, *notes]
        rows = [Row(*map(named.by_name, row)) for row in rows]
    show_rows(rows, console)
    if config.task.sandbox == "process" and (missing := support().missing):
        console.print(
            f"This machine does not have the sandbox strict ({missing}): processes that "
            "judge answers can be killed, and are not confined."
        )
    return config


def _tried(
    config: Config, resume: Path | None, cores: int, doing: Doing, *, architecture: bool
) -> preflight.Checked:
    """The configuration with all that follows from it, checked. Raises ConfigError."""
    with reachable():
        config = preflight.resolved(config, resume, datetime.now())
        config, notes = preflight.check(config, resume, cores, doing)
    if architecture and config.model.path:
        doing("making the model, without weights")
        notes += model_directories.check_architecture(Path(config.model.path), config)
    return preflight.Checked(config, notes)


def _measured_pause(models: Path | None) -> str:
    """The pause in a file of cluster models, in words; empty if there is none."""
    if models is None or not exists(models):
        return ""
    from asyncrl.sizing.cluster_models import read_models

    try:
        swap_s = read_models(models).network.swap_s
    except ConfigError as error:  # a forecast needs the file, and a run does not
        return str(error)
    return f"{duration(swap_s)} in {CLUSTER_MODELS}" if swap_s else ""
