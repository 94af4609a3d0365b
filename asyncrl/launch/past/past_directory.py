"""The directory of a frozen policy, which is no run: checked, and claimed by its game."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.errors import usable
from asyncrl.config.paths import is_folder
from asyncrl.config.selection_names import LEAGUES
from asyncrl.launch import claim, preflight
from asyncrl.launch.model_directories import check_directory
from asyncrl.launch.private import private_files, refuse_foreign
from asyncrl.runtime.run_dir import PAST_TOML


def checked_past(config: Config, console: Console) -> Config:
    """Resolve the settings of a frozen policy, check its versions and its rule, and show them.
    Raises ConfigError."""
    game = config.game
    LEAGUES.find(game.draw)
    listed = [Path(one) for one in game.frozen if one.startswith("/")]
    for number, path in enumerate(listed):
        if not is_folder(path):
            raise ConfigError(
                f"{path}: version {number} of this frozen policy is gone; put it back, or take it "
                "out of its list."
            )
        check_directory("game.frozen", path)
    of = f"{len(listed)} model directories" if listed else f"past versions of {game.frozen[0]}"
    console.print(f"  frozen: {of}, drawn by {game.draw}, {game.versions} held at most")
    return preflight.resolved(config, None, datetime.now())


@contextmanager
def claimed_past(config: Config) -> Iterator[None]:
    """Claim the directory of a frozen policy in the block, and write its settings there. Raises
    ConfigError."""
    run = Path(config.run.dir)
    with private_files():
        with usable(run, "written"):
            run.mkdir(parents=True, exist_ok=True)
        refuse_foreign(run)
        with claim.claimed(run, preflight.TAKEN):
            with usable(run / PAST_TOML, "written"):
                configuration.write(config, run / PAST_TOML)
            yield
