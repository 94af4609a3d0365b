"""The one way to a run, from the command line and from Python: check, claim the directory, launch.

This process never imports torch.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import derived
from asyncrl.config.paths import exists, reachable
from asyncrl.config.sft import supervised_run
from asyncrl.explain.display import show_rows
from asyncrl.launch import model_directories, preflight
from asyncrl.launch.private import refuse_foreign
from asyncrl.launch.publication_row import publication_row, weights_row
from asyncrl.launch.routing_bytes import routing_bytes
from asyncrl.launch.scale_rows import scale_rows
from asyncrl.launch.sft_checks import check_sft
from asyncrl.launch.trainer_memory import memory_rows
from asyncrl.library.opened_run import Run
from asyncrl.runtime.output import Output
from asyncrl.runtime.processes.machine import available_cores
from asyncrl.runtime.run_dir import CLUSTER_MODELS
from asyncrl.runtime.waiting import waiting
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


def sft(config: Config, *, resume: str | Path | None = None, console: Console | None = None) -> Run:
    """Learn the data's own answers to the end (docs/sft.md), as `train` trains: the run's `model`
    is what `model.path` of another run takes. Settings that only rewarded rollouts have are left
    out. Raises ConfigError if the run cannot start as configured."""
    return train(supervised_run(config), resume=resume, console=console)


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
    with waiting() as doing:
        with reachable():
            if config.sft.run:
                config = supervised_run(config)
            config = preflight.resolved(config, resume, datetime.now())
            checks = check_sft if config.sft.run else preflight.check
            config, notes = checks(config, resume, cores, doing)
        if architecture and config.model.path:
            doing("making the model, without weights")
            notes += model_directories.check_architecture(Path(config.model.path), config)
        doing("computing sizes and memory")
        if config.sft.run:
            show_rows([*notes, *memory_rows(config)], console)
            return config
        sent = [*weights_row(config), publication_row(config, _measured_pause(models))]
        scale = [*memory_rows(config), *scale_rows(config)]
    show_rows([*derived(config, cores, routing_bytes(config)), *sent, *scale, *notes], console)
    if config.task.sandbox == "process" and (missing := support().missing):
        console.print(
            f"This machine does not have the sandbox strict ({missing}): processes that "
            "judge answers can be killed, and are not confined."
        )
    return config


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
