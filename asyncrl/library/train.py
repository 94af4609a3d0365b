"""The one way to a run, from the command line and from Python: check, claim the directory, launch.

This process never imports torch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.console import Console
from trio.lowlevel import in_trio_run

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row, derived
from asyncrl.config.paths import exists, is_file, reachable, refuse_unnamed
from asyncrl.config.plugins import importing
from asyncrl.config.sft import supervised_run
from asyncrl.explain.cell import console_here
from asyncrl.explain.display import show_rows
from asyncrl.launch import model_directories, preflight
from asyncrl.launch.hub.hub_models import named_models
from asyncrl.launch.private import private_files, refuse_foreign
from asyncrl.launch.publication_row import delta_row, publication_row, weights_row
from asyncrl.launch.routing_bytes import routing_bytes
from asyncrl.launch.scale_rows import scale_rows
from asyncrl.launch.sft_checks import check_sft
from asyncrl.launch.trainer_memory import memory_rows
from asyncrl.library.given_config import as_config
from asyncrl.library.kept_code import kept_code
from asyncrl.library.own_code import own_code
from asyncrl.runtime.processes.machine import available_cores
from asyncrl.runtime.run_dir import CLUSTER_MODELS, CODE, RUN_TOML
from asyncrl.runtime.waiting import Doing, waiting
from asyncrl.sandbox.support import support
from asyncrl.words import duration


class EndedRun(NamedTuple):
    """A run that is over: its directory, its exit status, and the digests of its folder `code` as
    this session wrote it."""

    run: Path
    status: int
    code: dict[str, str]


def start(
    config: Config,
    given: Mapping[str, Any],
    *,
    resume: Path | None,
    console: Console | None = None,
    models: Path | None = None,
    known: Mapping[str, str] = MappingProxyType({}),
) -> EndedRun:
    """Run to the end. `given` are objects by the keywords of `asyncrl.train`; `resume` is the
    directory of the run to go on with, and `known` are the digests of its code. `models` names the
    file that `asyncrl calibrate` wrote, if any. Raises ConfigError if the run cannot start as
    configured."""
    _refuse_place()
    as_config("train", config)
    console = console_here() if console is None else console
    if resume is not None:
        refuse_unnamed([resume])
        refuse_foreign(resume.absolute())
    code = own_code(config, given, resumes=resume is not None)
    if not code.settings:
        config = checked(config, resume, console, models)
        return _launched(config, resume, console, known)
    run = (resume or preflight.directory(code.named(config), datetime.now())).absolute()
    if resume is None:
        preflight.refuse_taken(run)
    with private_files(), code.written(run) as changed:
        config = code.configured(config, run)
        if resume is None:
            config = replace(config, run=replace(config.run, dir=str(run)))
        config = checked(config, resume, console, models)
    for name in changed:
        console.print(f"{CODE}/{name} is not what this run had: it continues with this one.")
    return _launched(config, resume, console, {**known, **code.digests})


def _launched(
    config: Config, resume: Path | None, console: Console, code: Mapping[str, str]
) -> EndedRun:
    with preflight.claimed(config) as run:
        from asyncrl.launch.launcher import launch

        return EndedRun(run, launch(config, resume=resume and run, console=console), dict(code))


def _refuse_place() -> None:
    """Check that a run can be started from here. Raises ConfigError."""
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "train: this is not the main thread, which receives Ctrl-C and to which the processes "
            "of a run are tied: call it there."
        )
    if in_trio_run():
        raise ConfigError(
            "train: a trio program is running in this thread, and a run has its own: call it "
            "outside of it."
        )
    if importing():
        raise ConfigError(
            "train: this module is just imported for a setting, and would start a run in each "
            'process of it: put the call below `if __name__ == "__main__":`.'
        )


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
    take minutes for sizes that no model has; one of an unusual family always is. Raises
    ConfigError."""
    cores = available_cores()
    if config.sft.run:
        config = supervised_run(config)
    with waiting() as doing, named_models(doing) as named:
        config = named.find(config, resume)
        if named.missing and not architecture:  # what would refuse the run does so before that
            _tried(config, resume, cores, doing, architecture=True)
            named.download()
            config = named.settled(config)
        config, notes = _tried(config, resume, cores, doing, architecture=architecture)
        doing("computing sizes and memory")
        if config.sft.run:
            rows = [*named.rows, *notes, *memory_rows(config)]
            show_rows([Row(*map(named.by_name, row)) for row in rows], console)
            return config
        sent = [*weights_row(config), publication_row(config, _measured_pause(models))]
        sent += delta_row(config)
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
        if resume is None:
            _refuse_code_of(Path(config.run.dir))
        checks = check_sft if config.sft.run else preflight.check
        config, notes = checks(config, resume, cores, doing)
    model = Path(config.model.path)
    if config.model.path and (architecture or not model_directories.familiar(model)):
        doing("making the model, without weights")
        notes += model_directories.check_architecture(Path(config.model.path), config)
    return preflight.Checked(config, notes)


def _refuse_code_of(run: Path) -> None:
    """Check that a directory for a new run has no run with code of its own, which a comparison of
    their settings may import. Raises ConfigError."""
    if is_file(run / RUN_TOML) and kept_code(run):
        preflight.refuse_taken(run)


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
