"""A game's runs from the command line: check all, claim all directories, launch all.

Invariant: nothing starts before each run can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.errors import usable
from asyncrl.config.game import GameRuns, refuse_unlike
from asyncrl.config.paths import exists, is_file
from asyncrl.config.plugins import load_named
from asyncrl.explain.run_files import game_of, is_game, is_run
from asyncrl.files import read_regular, write_whole
from asyncrl.launch import preflight
from asyncrl.launch.game_launcher import PolicyRun, launch_game
from asyncrl.launch.past.past_directory import checked_past, claimed_past
from asyncrl.launch.private import private_files, refuse_foreign
from asyncrl.library.train import checked
from asyncrl.runtime.run_dir import GAME, PAST_TOML, RUN_TOML

BYTES = 2**16
"""Bytes of a GAME file, at most."""


class _Policies(msgspec.Struct, forbid_unknown_fields=True):
    """The file GAME: the policies, the host first."""

    policies: list[str]


def start_game(game: GameRuns, resume: Path | None, console: Console) -> int:
    """Run to the end; returns the exit status of the whole. Raises ConfigError if a run cannot
    start as configured."""
    folder = (resume or _folder(game)).absolute()
    configs = checked_game(game, folder, console, resumes=resume is not None)
    with ExitStack() as claims, private_files():
        for config in configs.values():
            claims.enter_context(
                claimed_past(config) if config.game.frozen else preflight.claimed(config)
            )
        with usable(folder / GAME, "written"):
            write_whole(folder / GAME, msgspec.json.encode(_Policies([*configs])))
        runs = [
            PolicyRun(name, config, resume and Path(config.run.dir))
            for name, config in configs.items()
        ]
        return launch_game(runs, console)


def checked_game(
    game: GameRuns,
    folder: Path | None,
    console: Console,
    *,
    resumes: bool = False,
    architecture: bool = False,
) -> dict[str, Config]:
    """Check each run, and show what follows from its settings. Raises ConfigError, which names the
    policy."""
    folder = folder or _folder(game).absolute()
    if not resumes and exists(folder / GAME):
        raise ConfigError(
            f"{folder}: this game exists already; continue it by --resume {folder}, or choose "
            "another game.dir."
        )
    configs = dict[str, Config]()
    for name, config in game.policies.items():
        console.print(f"[bold]{name}[/bold]")
        run = folder / name
        config = replace(config, run=replace(config.run, dir=str(run)))
        try:
            if config.game.frozen:
                host = next(iter(configs.values()))  # whose data is counted by now
                configs[name] = checked_past(replace(config, task=host.task), console)
                continue
            configs[name] = checked(
                config, run if resumes else None, console, None, architecture=architecture
            )
            if config.game.guests:
                _refuse_environment(str(config.agent.run))
        except ConfigError as error:
            raise ConfigError(f"policy {name}: {error}") from None
    return configs


def _refuse_environment(run: str) -> None:
    """Check that a game is a function. Raises ConfigError."""
    if isinstance(load_named(run, "agent"), type):
        raise ConfigError(
            f"the game {run!r} is a class, whose steps have one policy; name a function, as in "
            "async def play(client, episode)."
        )


def resumed_game(folder: Path, sets: Sequence[str], environ: Mapping[str, str]) -> GameRuns | None:
    """The game in a directory, as its runs have it; None if there is none. Raises ConfigError, also
    for the directory of one policy alone."""
    refuse_foreign(folder.absolute())
    if not is_game(folder):
        _refuse_one_of_several(folder)
        return None
    try:
        with usable(folder / GAME, "read"):
            names = msgspec.json.decode(read_regular(folder / GAME, BYTES), type=_Policies).policies
    except msgspec.DecodeError:
        raise ConfigError(f"{folder / GAME}: this is no list of policies; put it back.") from None
    policies = dict[str, Config]()
    for name in names:
        run = folder / name
        toml = run / (PAST_TOML if is_file(run / PAST_TOML) else RUN_TOML)
        if not is_file(toml):
            raise ConfigError(f"{run}: there is no run of the policy {name}; put it back.")
        refuse_foreign(run.absolute())
        policies[name] = load(toml, sets, environ)
    refuse_unlike(policies)
    return GameRuns(str(folder), policies)


def _refuse_one_of_several(folder: Path) -> None:
    """Check that a run that is resumed is not one of a game's. Raises ConfigError."""
    run = folder.absolute()
    if is_run(run) and (game := game_of(run)) != run:
        raise ConfigError(
            f"{folder}: this run is one policy of a game; continue all of them by --resume {game}."
        )


def _folder(game: GameRuns) -> Path:
    return Path(game.dir) if game.dir else preflight.fresh("game", datetime.now())
