"""Checks before anything starts: of this machine (`machine_checks.py`), of the files that the run
reads, and of its directory. Invariant: a run directory belongs to one configuration, and to one
running process at a time.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.cluster import joined
from asyncrl.config.derived import Row
from asyncrl.config.errors import installs, usable
from asyncrl.config.fields import FIELDS, SECTIONS, lookup
from asyncrl.config.gpus import gpus_of
from asyncrl.config.keyed_models import keyed_models
from asyncrl.config.loss_names import MINIBATCH_RULES
from asyncrl.config.mix import each, is_counted, members, named
from asyncrl.config.model_names import MODELS, same_model
from asyncrl.config.paths import exists, is_file, is_folder, is_hub_name, refuse_lost, shown
from asyncrl.config.plugins import module_and_name
from asyncrl.config.ranks import settled_ranks
from asyncrl.config.schema import PLAYED_BY_HOST, PLAYED_ELSEWHERE, AgentConfig, TaskConfig
from asyncrl.config.schema.engine_section import SERVER_TABLES
from asyncrl.config.schema.other_models import with_key_files
from asyncrl.config.schema.section import EVERY
from asyncrl.config.selection_names import REPLAYS
from asyncrl.config.setting import quoted
from asyncrl.engines.spec import engine_kind
from asyncrl.escape import escaped
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.recovery import recovered
from asyncrl.explain import curve, run_start
from asyncrl.explain.sinks.sink import refuse_unfit_sinks
from asyncrl.journal import JournalError, SqliteHistory
from asyncrl.judges.api_key import check_judge
from asyncrl.launch import claim
from asyncrl.launch.checkpoint_room import room_rows
from asyncrl.launch.data_origins import check_origins, note_origins
from asyncrl.launch.foreign_checks import check_foreign
from asyncrl.launch.machine_checks import (
    check_certificates,
    check_cores,
    check_gpus,
    check_ports,
    rank_notes,
)
from asyncrl.launch.model_directories import (
    check_adapters,
    check_directory,
    check_examples,
    check_policies,
)
from asyncrl.launch.private import private_files, refuse_foreign, refuse_shared
from asyncrl.launch.prompt_checks import check_prompts
from asyncrl.launch.prune_trial import refuse_rule_that_ends_all
from asyncrl.launch.run_copy import refuse_unfit
from asyncrl.launch.strategy_trials import try_rules
from asyncrl.launch.weight_numbers import check_numbers
from asyncrl.object_store import is_stored
from asyncrl.os_errors import remedy
from asyncrl.runtime.ipc.keys import new_key, read_key, write_key
from asyncrl.runtime.processes.machine import gpus_here
from asyncrl.runtime.run_dir import JOURNAL, KEY, METRICS, RUN_TOML, START
from asyncrl.runtime.waiting import Doing
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.open_boxes import refuse_without_provider
from asyncrl.sandbox.opened import SCRATCH
from asyncrl.sandbox.support import support
from asyncrl.tasks import Task
from asyncrl.tasks.judge_checks import check_judging, opened
from asyncrl.tasks.mixed import size_of
from asyncrl.tasks.partial_credit import settled_reward
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.optimizer_table import check_optimizer
from asyncrl.words import sentence

FREE_BYTES = 100 * 2**20
TAKEN = "another asyncrl is running in this directory; wait for it, or choose another run.dir"
_CONTRADICTIONS = (LookupError, ArithmeticError, AttributeError, TypeError, ValueError)
"""Errors of a state that contradicts itself: the heart trusts its own journal."""
RESUMABLE = frozenset(
    key
    for key, field in FIELDS.items()
    if (allowed := SECTIONS[field.section].resumable) == EVERY or field.name in allowed
)
"""Settings that may differ when a run is resumed."""


def resolved(config: Config, resume: Path | None, now: datetime) -> Config:
    """Return `config` with absolute paths, a run directory (the one resumed, the one set, or
    `runs/<task>-<time>`), and, if they are not set, the sandbox that this machine has, the reward
    that suits the data set, and the number of ranks. Raises ConfigError if that many ranks
    contradict other settings."""
    run = resume or directory(config, now)
    absolute: dict[str, dict[str, Any]] = {
        section: {
            name: str(Path(value).absolute())
            for name in names
            if (value := lookup(config, f"{section}.{name}")) and not _elsewhere(value)
        }
        for section, names in (
            ("task", ("path", "eval_path")),
            ("model", ("path",)),
            ("reference", ("path", "api_key_file")),
            ("teacher", ("path", "api_key_file")),
            ("judge", ("api_key_file",)),
            ("supervised", ("path",)),
            ("run", ("copy",)),
            *((table, ("api_key_file",)) for table in SERVER_TABLES),
        )
    }
    for table in SERVER_TABLES:
        if (launch := lookup(config, f"{table}.launch")) and "/" in launch[0]:
            absolute[table]["launch"] = (str(Path(launch[0]).absolute()), *launch[1:])
    sandbox = config.task.sandbox
    if sandbox == "auto":
        runs = any(task.verifier == "run" for task in each(config.task))
        sandbox = "process" if runs or support().missing else "strict"
    servers = {
        table.removeprefix("engine."): msgspec.structs.replace(
            lookup(config, table), **absolute[table]
        )
        for table in SERVER_TABLES
    }
    return msgspec.structs.replace(
        config,
        task=msgspec.structs.replace(
            config.task,
            **absolute["task"],
            sandbox=sandbox,
            reward=settled_reward(config.task),
            mix=_resolved_mix(config.task),
        ),
        model=msgspec.structs.replace(config.model, **absolute["model"]),
        reference=msgspec.structs.replace(config.reference, **absolute["reference"]),
        teacher=msgspec.structs.replace(config.teacher, **absolute["teacher"]),
        judge=msgspec.structs.replace(config.judge, **absolute["judge"]),
        agent=msgspec.structs.replace(
            config.agent, models=with_key_files(config.agent.models, Path.cwd())
        ),
        supervised=msgspec.structs.replace(config.supervised, **absolute["supervised"]),
        engine=msgspec.structs.replace(config.engine, **servers),
        train=msgspec.structs.replace(config.train, ranks=settled_ranks(config, gpus_here())),
        run=msgspec.structs.replace(config.run, dir=str(run.absolute()), **absolute["run"]),
    )


def _resolved_mix(task: TaskConfig) -> dict[str, Any]:
    """The tables of a mix, with absolute paths and the reward that suits each data set."""
    return {
        label: {
            **task.mix[label],
            **{
                name: str(Path(path).absolute())
                for name in ("path", "eval_path")
                if (path := getattr(member, name)) and not _elsewhere(path)
            },
            "reward": settled_reward(member),
        }
        for label, member in members(task).items()
    }


def _named(config: Config) -> str:
    return f"sft-{named(config.task)}" if config.sft.run else named(config.task)


def _elsewhere(path: str) -> bool:
    """True for a setting in place of a path that names nothing on this disk."""
    return is_stored(path) or is_hub_name(path)


def directory(config: Config, now: datetime) -> Path:
    """The directory of a new run: the one set, or one that is not there yet."""
    return Path(config.run.dir) if config.run.dir else fresh(_named(config), now)


def fresh(task: str, now: datetime) -> Path:
    """A directory of a new run that is not there yet."""
    stem = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', task)[:100]}-{now:%Y%m%d-%H%M%S}"
    count = 1
    while exists(path := Path("runs", stem if count == 1 else f"{stem}-{count}")):
        count += 1
    return path


class Checked(NamedTuple):
    """A configuration that can run, with the sizes that its data has; and notes for the user."""

    config: Config
    notes: list[Row]


def check(
    config: Config, resume: Path | None, available: int, doing: Doing = lambda what: None
) -> Checked:
    """Check all that can be checked without starting a run or writing anything. `available` is the
    number of cores; `doing` is called with each work that may take long. Raises ConfigError."""
    doing("checking the run directory and this machine")
    check_cores(config, available)
    check_paths(config)
    check_run_directory(config, resume)
    refuse_unfit(config, resume)
    notes = rank_notes(config, available)
    if resume:
        doing("reading the journal of the run")
        refuse_unreadable(Path(config.run.dir))
        notes += check_origins(config, Path(config.run.dir))
    check_ports(config)
    check_certificates(config)
    refuse_unfit_sinks(config.run.sinks)
    if (gpus := gpus_of(config)).needed:
        check_gpus(gpus, torch_computes=bool(gpus.trainer or gpus.senders))
    if not joined(config):  # else each machine checks itself
        doing(f"checking the engine {config.engine.kind}")
        said = engine_kind(config.engine.kind).check(config) or ()
        notes += [Row("note", "engine.kind", note) for note in said]
    doing("checking the model")
    if config.model.path:
        check_directory("model.path", Path(config.model.path))
        notes += check_numbers("model.path", Path(config.model.path))
    if config.model.lora.rank:
        check_adapters(config)
    notes += room_rows(config)
    refuse_rule_that_ends_all(config.rollout)
    REPLAYS.find(config.train.replay)
    MINIBATCH_RULES.find(config.train.minibatch_by)
    check_optimizer(config.train)
    doing(_opening(config.task))
    task = opened(config.task, config.run.seed)
    try_rules(config, task.size("train"))
    doing("starting the processes that judge answers")
    if not config.cluster.reward_agents:  # else each machine checks itself
        check_judging(config.task, task)
        check_judge(config)
    doing("checking the other models and examples")
    notes += check_policies(config, task)
    check_examples(config, task)
    notes += check_foreign(config, task)
    if config.agent.run and config.agent.run not in (PLAYED_ELSEWHERE, PLAYED_BY_HOST):
        doing("loading agent.run")
        _agent(config.agent)
        doing("checking the sandboxes of agents")
        scratch = Path(config.run.dir) / SCRATCH
        if said := refuse_without_provider(BoxSettings.of(config.sandbox), scratch):
            notes.append(Row("note", "sandbox.kind", said))
    keyed_models(config.agent)
    doing("trying prompts, and the verifier on an answer of the data")
    return Checked(_counted(config, task), [*notes, *check_prompts(config, task)])


def _opening(task: TaskConfig) -> str:
    """Words on the opening of a task, which imports the modules that settings name."""
    named = (module_and_name(text) for one in each(task) for text in (one.name, one.verifier))
    modules = sorted({shown(module) for module, _ in filter(None, named)})
    return (
        f"importing {', '.join(modules)}, and reading the data" if modules else "reading the data"
    )


def check_paths(config: Config) -> None:
    """Check that the system can look at each path of the settings, whatever is there."""
    for key, field in FIELDS.items():
        value = lookup(config, key)
        for path in value if isinstance(value, tuple) else (value,):
            if field.is_path and path and not _elsewhere(path):
                refuse_lost(key, path)
    for task in each(config.task):
        for path in (task.path, task.eval_path):
            refuse_lost("task.path", path)


def _counted(config: Config, task: Task) -> Config:
    """The configuration with the true number of training prompts of each file. Steps, epochs and
    the schedule of the learning rate follow from it."""
    if not config.task.mix:
        if not is_counted(config.task):
            return config
        counted = msgspec.structs.replace(config.task, train_size=task.size("train"))
        return msgspec.structs.replace(config, task=counted)
    count = size_of(task)
    mix = {
        label: {**config.task.mix[label], "train_size": count(label, "train")}
        if is_counted(member)
        else config.task.mix[label]
        for label, member in members(config.task).items()
    }
    return msgspec.structs.replace(config, task=msgspec.structs.replace(config.task, mix=mix))


def _uncounted(config: Config) -> Config:
    """The configuration without the sizes that `_counted` gave it."""
    task = config.task
    mix = {
        label: {
            name: value
            for name, value in task.mix[label].items()
            if name != "train_size" or not is_counted(member)
        }
        for label, member in members(task).items()
    }
    size = TaskConfig().train_size if is_counted(task) else task.train_size
    return msgspec.structs.replace(
        config, task=msgspec.structs.replace(task, mix=mix, train_size=size)
    )


def _agent(agent: AgentConfig) -> None:
    """Check the agent by loading it as an agents actor does, and its sandbox by starting one."""
    try:
        from asyncrl.agents.agent_sandbox import refuse_without_sandbox
        from asyncrl.agents.load_agent import load_agent

        load_agent(agent.run)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"agent.run is set, and agents need {error.name}, which is not installed: "
            f"{installs('agents')}."
        ) from None
    if agent.sandbox == "bwrap":
        argv = () if isinstance(agent.run, str) else agent.run
        refuse_without_sandbox(argv, agent.paths)


@contextmanager
def claimed(config: Config) -> Iterator[Path]:
    """Claim the run directory for this process inside the block, and write the resolved run.toml to
    it; files written inside the block are readable by their user alone. The claim ends with the
    process, however that ends. Raises ConfigError if another process has it, if it is not its
    user's own, or if it cannot be written."""
    run = Path(config.run.dir)
    with private_files():
        _make(run)
        with claim.claimed(run, TAKEN):
            try:
                _refuse_without_modes(run)
                configuration.write(config, run / RUN_TOML)
                note_origins(config, run)
                run_start.write(run_start.run_start([*_own_command()], time.time()), run / START)
            except OSError as error:
                raise ConfigError(_unwritable(run, error)) from None
            yield run


def _refuse_without_modes(run: Path) -> None:
    """Check that a file can be this user's alone in the run directory: keys must be. Raises
    ConfigError and OSError."""
    write_key(run / KEY, new_key())
    try:
        read_key(run / KEY)
    except ValueError:
        (run / KEY).unlink()
        raise ConfigError(
            f"{run}: other users could open private files there, as on a file system without "
            "modes (FAT, some network mounts); choose another run.dir."
        ) from None


def _own_command() -> Iterator[str]:
    """The command of this process, whose program is called by its name alone."""
    yield Path(sys.argv[0]).name.replace("cli.py", "asyncrl") or sys.executable
    yield from sys.argv[1:]


def _make(run: Path) -> None:
    """Make the run directory, if it is not there. Raises ConfigError."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        refuse_foreign(run)
    except OSError as error:
        raise ConfigError(_unwritable(run, error)) from None


def check_run_directory(config: Config, resume: Path | None) -> None:
    """Check that the run directory is free, or that of the run which is resumed. Raises
    ConfigError."""
    run = Path(config.run.dir)
    toml = run / RUN_TOML
    refuse_foreign(run)
    refuse_shared(run)
    if exists(run) and not is_folder(run):
        raise ConfigError(f"{run}: the run directory is a file; choose another run.dir.")
    if resume and not is_file(toml):
        raise ConfigError(
            f"{run}: there is no {RUN_TOML} in it, so there is no run to resume; give the "
            "directory of a run."
        )
    if exists(toml):
        old, config = _uncounted(configuration.read(toml)), _uncounted(config)
        ignored = RESUMABLE if resume else {"run.dir"}
        for key in FIELDS:
            was, now = lookup(old, key), lookup(config, key)
            names_one = key in MODELS and same_model(str(was), str(now))
            if was != now and not names_one and key not in ignored:
                raise ConfigError(
                    f"{run}: this directory belongs to a run of another configuration: {key} was "
                    f"{quoted(was)} and is {quoted(now)}; "
                    f"choose another run.dir{', or resume with what it was' if resume else ''}."
                )
        if not resume:
            refuse_taken(run)
    parent = next(path for path in (run, *run.parents) if exists(path) or path.is_symlink())
    if not is_folder(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{run}: the run directory cannot be written, because {parent} {_closed(parent)}, or "
            "choose another run.dir."
        )
    free = shutil.disk_usage(parent).free
    if free < FREE_BYTES:
        raise ConfigError(
            f"{run}: the disk has {free >> 20} MiB free, and a run needs {FREE_BYTES >> 20} at "
            "least; make room, or choose another run.dir."
        )


def _closed(path: Path) -> str:
    """The reason why no directory can be made in a path, and the remedy."""
    if not is_folder(path):
        return "is not a directory; move it away"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"is read-only; {remedy(OSError(errno.EROFS, ''))}"
    return f"cannot; {remedy(OSError(errno.EACCES, ''))}"


def refuse_taken(run: Path) -> None:
    """Check that there is no run in a directory. Raises ConfigError."""
    if exists(run / RUN_TOML):
        raise ConfigError(
            f"{run}: this run already exists; continue it by --resume {run}, or choose another "
            "run.dir."
        )


def refuse_unreadable(run: Path) -> None:
    """Check that a resumed run can read its journal, which must give a state for each checkpoint,
    and its curve. Damaged checkpoints are put aside later."""
    steps = check_curve(run)
    path = run / JOURNAL
    if not exists(path):
        if (checkpoints := bool(complete(run))) or steps:
            what = "checkpoints" if checkpoints else f"{steps} steps in {METRICS}"
            raise ConfigError(
                f"{run}: there are {what} in it, but no {JOURNAL}, which records what they "
                "were trained on, as in an incomplete copy; put it back, or choose another "
                "run.dir."
            )
        return
    try:
        with SqliteHistory(path) as history:
            begins = [(number, history.snapshot(number)) for number, _ in history.snapshots()]
            for number, snapshot in begins:
                recovered(Experience.of(snapshot), (event for _, event in history.events(number)))
            if not begins:
                recovered(Experience(), (event for _, event in history.events(0)))
            for _ in history.events(history.forgotten):
                pass
    except JournalError as error:
        raise ConfigError(sentence(error)) from None
    except (ImpossibleEvent, *_CONTRADICTIONS) as error:
        raise ConfigError(
            f"the journal {path} holds events that no run writes "
            f"({escaped(f'{type(error).__name__}: {error}', 300)}): put back a copy of the run."
        ) from None


def check_curve(run: Path) -> int:
    """Check that a resumed run can continue its curve. Damaged lines are left out.
    Returns the steps in it."""
    path = run / METRICS
    if exists(path) and not is_file(path):
        raise ConfigError(f"{path}: this is not a file; remove it to continue without the curve.")
    with usable(path, "read"), suppress(FileNotFoundError):
        return sum(isinstance(point, curve.StepPoint) for point in curve.read(path))
    return 0


def _unwritable(run: Path, error: OSError) -> str:
    return (
        f"{run}: the run directory cannot be written ({error.strerror}); {remedy(error)}, or "
        "choose another run.dir."
    )
