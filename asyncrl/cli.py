"""The command `asyncrl`. Bad input gives one sentence and exit status 2, before anything starts.

Imports are as late as possible: `--help` is instant. Only `play` imports torch here.

From `train` to the training loop:

    library/train.py                       checks the settings, claims the directory
    launch/launcher.py                     starts the run's processes, shows it, heals it
    runtime/processes/run_supervisor.py    restarts actors within their budgets
    actors/__main__.py, actors/roles.py    one actor's process, assembled by its role
    actors/coordinator/coordinator.py      `conduct`, the loop; `_pump`, one turn of it
    actors/trainer_process.py              the trainer's process, around training/learner.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from asyncrl.arguments import parser
from asyncrl.exit_status import FAILED, INTERRUPTED
from asyncrl.runtime.output import outlived
from asyncrl.view_verbs import (
    compare_runs,
    list_runs,
    report_run,
    serve_page,
    show_rollouts,
    watch_run,
    why_run,
)

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.config.game import GameRuns

LONG = ("train", "sft", "agent", "play", "page")
"""Verbs in which an error after the start is no matter of the input."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status. Ctrl-C is no traceback at any moment, also
    while modules are imported."""
    try:
        with outlived():
            return _main(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    for size in ("COLUMNS", "LINES"):
        if not os.environ.get(size, "0").strip("0"):
            os.environ.pop(size, None)  # at a width of 0, as some editors set it, nothing is shown
    if given[:1] == ["help"]:  # as of git: `help train` is `train --help`
        given = [*given[1:2], "--help"]
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from asyncrl.completion import complete

        complete(known)
    args = known.parse_args(given)
    from asyncrl.config.errors import BAD_INPUT, ConfigError
    from asyncrl.config.paths import reachable, refuse_nowhere, refuse_unnamed
    from asyncrl.escape import escaped
    from asyncrl.os_errors import machine_lacks, remedy
    from asyncrl.runtime.output import complain

    try:
        refuse_nowhere()
        refuse_unnamed(vars(args).values())
        with nullcontext() if args.verb in LONG else reachable():
            return VERBS[args.verb](args)
    except ConfigError as error:
        complain(str(error))
        return BAD_INPUT
    except Exception as error:
        if not machine_lacks(error):
            raise
        words = escaped(str(error), 300) or type(error).__name__
        complain(f"this machine has no room for `{args.verb}` ({words}): {remedy(error)}.")
        return FAILED


def _train(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.library.train import start

    console = Console()
    if (game := _game(args, args.resume)) is not None:
        from asyncrl.library.train_game import start_game

        return start_game(game, args.resume, console)
    config = _loaded(args, args.resume)
    models = _models(args, args.resume)
    return start(config, {}, resume=args.resume, console=console, models=models).status


def _sft(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.config.sft import supervised_run
    from asyncrl.library.train import checked, start

    config = supervised_run(_loaded(args, args.resume))
    if args.check:
        checked(config, args.resume, Console(), None, architecture=True)
        print("This configuration can run.")
        return 0
    console = Console()
    return start(config, {}, resume=args.resume, console=console).status


def _simulate(args: argparse.Namespace) -> int:
    from asyncrl.config import ConfigError
    from asyncrl.simulation.command import command
    from asyncrl.sizing.scale_command import cluster

    of_faults = args.seed, args.seeds, args.jobs, args.runs or None
    of_run = args.trainers, args.models, args.price, args.sets or None, args.search, args.exact
    if args.config is not None:
        if any(option is not None for option in of_faults):
            raise ConfigError(
                "simulate: --seed, --seeds, --jobs, --agents and --games search for faults, and "
                "take no run.toml."
            )
        return _forecast(args)
    if any(option is not None and option is not False for option in of_run):
        raise ConfigError(
            "simulate: --trainers, --models, --price, --search, --exact and --set forecast a run; "
            "name its run.toml first."
        )
    if args.engines is not None:
        if args.runs == "games":
            raise ConfigError("simulate: --games searches for faults, and takes no --engines.")
        return cluster(args.engines, 3600.0 * args.hours, agents=args.runs == "agents")
    seeds = args.seeds or range(20)
    if args.seed is not None:
        seeds = range(args.seed, args.seed + 1)
    return command(seeds, args.runs, jobs=args.jobs or 1, as_json=args.json)


def _forecast(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl import config as configuration
    from asyncrl.explain.display import show_rows
    from asyncrl.runtime.run_dir import CLUSTER_MODELS
    from asyncrl.sizing.sizing_command import size

    sized = size(
        configuration.load(args.config, args.sets, os.environ),
        args.models or args.config.parent / CLUSTER_MODELS,
        args.engines,
        args.trainers,
        args.hours,
        price=args.price,
        search=args.search,
        exact=args.exact,
    )
    if args.json:
        print(sized.json)
    else:
        show_rows(sized.rows, Console())
    return 0 if sized.whole else INTERRUPTED


def _calibrate(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped
    from asyncrl.sizing.sizing_command import fit

    path = fit(args.runs, args.output)
    print(f"{escaped(str(path))} is written. Its first lines say what could not be fitted.")
    return 0


def _check(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.library.train import checked

    console = Console()
    if (game := _game(args, None)) is not None:
        from asyncrl.library.train_game import checked_game

        checked_game(game, None, console, architecture=True)
        console.print("This game can run.")
        return 0
    config = _loaded(args, None)
    if args.machine is not None:
        from asyncrl.explain.display import show_rows
        from asyncrl.launch.other_machine import read_machine, rows_for

        show_rows(rows_for(config, read_machine(args.machine)), console)
        console.print("GPUs and memory suffice. What is tried on the machine itself was not.")
        return 0
    checked(config, None, console, _models(args, None), architecture=True)
    console.print("This configuration can run.")
    return 0


def _play(args: argparse.Namespace) -> int:
    from asyncrl.launch.play.play import play

    def say(text: str) -> None:
        print(text, flush=True)

    return play(_loaded(args, None), args.split, args.prompt, args.seed, args.fake, say)


def _tasks(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.explain.task_list import show_tasks

    show_tasks(args.task, Console())
    return 0


def _settings(args: argparse.Namespace) -> int:
    from asyncrl.config.listing import overview, section_settings

    print(section_settings(args.section) if args.section else overview())
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped
    from asyncrl.launch.private import private_files
    from asyncrl.launch.stored_copy import fetch
    from asyncrl.library.kept_code import kept_code
    from asyncrl.words import size

    def say(name: str, count: int) -> None:
        print(f"{escaped(name)}, {size(count)}", flush=True)

    with private_files():
        fetch(args.url, args.directory, say)
    kept = kept_code(args.directory)
    for text in kept.values():
        print(f"Its code is in it, and was not run: read {escaped(text.rpartition(':')[0])}")
    named = "".join(f" --set {quote(f'{key}={text}')}" for key, text in kept.items())
    print(
        "The copy is complete. Go on with: asyncrl train --resume "
        f"{escaped(str(args.directory))}{escaped(named)}"
    )
    return 0


def _init(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped
    from asyncrl.launch.first_run import write_first_run
    from asyncrl.runtime.run_dir import RUN_TOML

    write_first_run(args.task, Path(RUN_TOML), args.sets)
    what = args.task or "the bundled job"
    print(f"{RUN_TOML} is written, for {escaped(what)}. Look at it, then: asyncrl train {RUN_TOML}")
    return 0


def _merge(args: argparse.Namespace) -> int:
    from asyncrl import config as configuration
    from asyncrl.escape import escaped
    from asyncrl.library.held_out import HeldOutPrompts
    from asyncrl.library.merging import merge, model_of
    from asyncrl.runtime.waiting import waiting

    held = None
    if args.evaluate is not None:
        held = HeldOutPrompts(configuration.load(args.evaluate, [], os.environ))
    with waiting() as doing:
        path = merge(args.models, args.output, weights=args.weights, base=args.base, say=doing)
        print(f"{escaped(str(path))} is written.", flush=True)
        if held is None:
            return 0
        for model in [*args.models, str(path)]:
            right = held.right(model_of(model), doing)
            told = f"{right / held.prompts:.3f} of {held.prompts} held-out prompts"
            print(f"{told} by {escaped(model)}", flush=True)
    return 0


def _agent(args: argparse.Namespace) -> int:
    from asyncrl.launch.cluster.agent import agent
    from asyncrl.launch.cluster.join_token import JoinToken
    from asyncrl.launch.cluster.joining import PATIENCE_S

    token, patience_s = JoinToken.read(args.join), args.patience or PATIENCE_S
    return agent(token, args.dir, args.name, args.cores, patience_s, args.role, args.tags)


def _sweep(args: argparse.Namespace) -> int:
    from asyncrl.launch.sweep import sweep

    return sweep(args.run, lambda text: print(text, flush=True))


def _game(args: argparse.Namespace, resume: Path | None) -> GameRuns | None:
    """The game of the command line; None if it names none."""
    from asyncrl.config.game import is_game, load_game
    from asyncrl.config.load import settings_in
    from asyncrl.library.train_game import resumed_game

    if args.config is None:
        return None if resume is None else resumed_game(resume, args.sets, os.environ)
    if not is_game(settings_in(args.config)):
        return None
    return load_game(args.config, args.sets, os.environ)


def _loaded(args: argparse.Namespace, resume: Path | None) -> Config:
    """The configuration of the command line."""
    from asyncrl import config as configuration
    from asyncrl.config.errors import ConfigError
    from asyncrl.config.game import is_game
    from asyncrl.config.load import settings_in
    from asyncrl.explain.run_files import RunFiles
    from asyncrl.launch.private import refuse_foreign
    from asyncrl.library.kept_code import refuse_kept_code
    from asyncrl.runtime.run_dir import RUN_TOML

    if args.config is not None and is_game(settings_in(args.config)):
        raise ConfigError(
            f"{args.config}: this is a game of several runs; `asyncrl train` and `asyncrl check` "
            "take it, and no other command."
        )
    if resume:
        refuse_foreign(resume.absolute())  # its run.toml may name modules
        files = RunFiles(resume)  # what is no run is said as by every other command
        if args.config is None or args.config.absolute() == resume.absolute() / RUN_TOML:
            refuse_kept_code(resume, [text.partition("=")[0].strip() for text in args.sets])
            with files.of_its_version():
                return configuration.load(_run_toml(args, resume), args.sets, os.environ)
    return configuration.load(_run_toml(args, resume), args.sets, os.environ)


def _run_toml(args: argparse.Namespace, resume: Path | None) -> Path | None:
    from asyncrl.runtime.run_dir import RUN_TOML

    path: Path | None = args.config or (resume / RUN_TOML if resume else None)
    return path


def _models(args: argparse.Namespace, resume: Path | None) -> Path | None:
    """The path of a cluster's models, beside the run.toml."""
    from asyncrl.runtime.run_dir import CLUSTER_MODELS

    path = _run_toml(args, resume)
    return path.parent / CLUSTER_MODELS if path else None


VERBS = {
    "train": _train,
    "sft": _sft,
    "agent": _agent,
    "check": _check,
    "play": _play,
    "tasks": _tasks,
    "settings": _settings,
    "fetch": _fetch,
    "init": _init,
    "simulate": _simulate,
    "calibrate": _calibrate,
    "why": why_run,
    "compare": compare_runs,
    "runs": list_runs,
    "rollouts": show_rollouts,
    "merge": _merge,
    "top": watch_run,
    "report": report_run,
    "page": serve_page,
    "sweep": _sweep,
}


if __name__ == "__main__":
    sys.exit(main())
