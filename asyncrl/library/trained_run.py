"""The start of a run from Python, with code as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.advantages.credit import Credit
from asyncrl.algorithms.advantages.group_weight import GroupWeight
from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.objectives import Objective
from asyncrl.config import Config
from asyncrl.config.sft import supervised_run
from asyncrl.library.given_config import as_config
from asyncrl.library.opened_run import Run
from asyncrl.library.own_code import Corrections
from asyncrl.library.task import ListTask
from asyncrl.library.train import start
from asyncrl.tasks.own_task import RowTask


def train(
    config: Config,
    *,
    reward: Callable[..., Any] | None = None,
    task: type[RowTask] | ListTask | None = None,
    agent: Callable[..., Any] | None = None,
    advantage: type[Advantage] | None = None,
    objective: type[Objective] | None = None,
    credit: type[Credit] | None = None,
    group_weight: type[GroupWeight] | None = None,
    minibatch_by: type[MinibatchRule] | None = None,
    keep: type[Any] | None = None,
    replay: type[Any] | None = None,
    correction: Corrections | Sequence[Corrections] | None = None,
    curriculum: type[Any] | None = None,
    sizing: type[Any] | None = None,
    filter: type[Any] | None = None,
    prune: type[Any] | None = None,
    resume: str | Path | None = None,
    console: Console | None = None,
    models: Path | None = None,
) -> Run:
    """Train to the end, in processes of the run's own, and return the run, whose `status` says how
    it ended. The keywords from `reward` on are code as objects: functions and classes of a module,
    or of this notebook or script, whose source is written to the run's folder `code`.

    `resume` goes on with the run in that directory. `models` names the file that `asyncrl
    calibrate` wrote, if any. Raises ConfigError if the run cannot start as configured."""
    given = {
        "reward": reward,
        "task": task,
        "agent": agent,
        "advantage": advantage,
        "objective": objective,
        "credit": credit,
        "group_weight": group_weight,
        "minibatch_by": minibatch_by,
        "keep": keep,
        "replay": replay,
        "correction": correction,
        "curriculum": curriculum,
        "sizing": sizing,
        "filter": filter,
        "prune": prune,
    }
    over = start(
        config,
        given,
        resume=None if resume is None else Path(resume),
        console=console,
        models=models,
    )
    return Run(over.run, over.status, code=over.code)


def sft(
    config: Config,
    *,
    task: type[RowTask] | ListTask | None = None,
    resume: str | Path | None = None,
    console: Console | None = None,
) -> Run:
    """Learn the data's own answers to the end (docs/sft.md), as `train` trains: the run's
    `model_path` is what `model.path` of another run takes. Settings that only rewarded rollouts
    have are left out. Raises ConfigError if the run cannot start as configured."""
    return train(
        supervised_run(as_config("sft", config)), task=task, resume=resume, console=console
    )
