"""game.toml: a run for each policy of a game, from shared tables and each policy's own.

    [game]
    run = "./guess.py:play"     # the game: an agent that calls each policy by its name
    dir = "runs/guess"

    [rollout]                   # shared, as in run.toml
    group_size = 8

    [[policy]]                  # the host: its run's agents play
    name = "proposer"
    [[policy]]
    name = "solver"
    train = { lr = 1e-5 }       # its own, by exception

Invariant: any input gives the runs of one game, or a ConfigError of one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.config.cluster import joined
from asyncrl.config.errors import ConfigError
from asyncrl.config.fields import FIELDS, lookup
from asyncrl.config.frozen_policies import KEYS as FROZEN_KEYS
from asyncrl.config.frozen_policies import frozen_names, frozen_settings, refuse_without_past
from asyncrl.config.load import Setting, load_settings, settings_in, table_settings
from asyncrl.config.own_files import located
from asyncrl.config.schema import PLAYED_BY_HOST, Config
from asyncrl.config.schema.game_section import NAME
from asyncrl.config.schema.other_models import TRAINED
from asyncrl.config.setting import quoted
from asyncrl.config.shared_servers import refuse_one_server

KEYS = ("run", "dir")
SAME = (
    *(key for key in FIELDS if key.startswith("task.") and key not in ("task.sandbox",)),
    "run.seed",
    "rollout.group_size",
)
"""Settings that all runs of a game have in common: what is the n-th game follows from them."""
PORTS = ("agent.port", "metrics.port", "run.page_port")


class GameRuns(NamedTuple):
    """The runs of a game by policy, the host first; `dir` has a directory for each, and may be
    empty."""

    dir: str
    policies: dict[str, Config]


def is_game(settings: Sequence[Setting]) -> bool:
    """True of the settings of a game.toml."""
    return any(
        setting.path == ("policy",) or setting.path in (("game", "run"), ("game", "dir"))
        for setting in settings
    )


def load_game(path: Path, sets: Sequence[str], environ: Mapping[str, str]) -> GameRuns:
    """The game of a game.toml. Raises ConfigError."""
    settings = settings_in(path)
    shared = [one for one in settings if one.path[0] not in ("game", "policy")]
    game = {one.path[1]: one.value for one in settings if one.path[0] == "game" and one.path[1:]}
    for key, value in game.items():
        if key not in KEYS:
            raise ConfigError(
                f"{path}: there is no setting game.{key} in a game.toml; there are game.run and "
                "game.dir."
            )
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path}: game.{key} is {quoted(value)}, and must be a text.")
    if "run" not in game:
        raise ConfigError(
            f"{path}: [game] has no run: name the function that plays the game, as "
            'run = "./game.py:play".'
        )
    tables = [table for one in settings if one.path == ("policy",) for table in _tables(path, one)]
    names = [_name(path, table) for table in tables]
    if len(names) < 2:
        raise ConfigError(
            f"{path}: a game has two policies or more: write a [[policy]] table with a name for "
            "each."
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two policies have one name: give each its own.")
    policies = dict[str, Config]()
    run = located(game["run"], path.absolute().parent)
    by_name = dict(zip(names, tables, strict=True))
    frozen = frozen_names(path, by_name)
    for name, table in by_name.items():
        source = f"{path}, policy {name}"
        of = frozen.get(name, ())
        own = _own_settings(by_name.get(of[0], {}) if of else {}, source)
        own += _own_settings(table, source)
        of_game = {
            ("agent", "run"): PLAYED_BY_HOST if policies else run,
            ("game", "policy"): name,
            ("game", "guests"): [] if policies else names[1:],
            ("game", "past"): [] if policies else [*frozen],
            ("run", "dir"): _own_dir(game, name),
        }
        given = [Setting(key, value, source) for key, value in of_game.items()]
        if of:
            given += frozen_settings(table, of, source)
        for setting in (*shared, *own):
            if setting.path in {one.path for one in given} - {("model", "path")}:
                key = ".".join(setting.path)
                raise ConfigError(f"{setting.source}: {key} is the game's: remove it.")
        layer = [*shared, *own, *given]
        policies[name] = load_settings(layer, path.absolute().parent, sets, environ)
    refuse_unlike(policies)
    named = next(iter(policies.values())).run.dir  # a variable, or --set, may have named another
    folder = game.get("dir", "") if named == _own_dir(game, names[0]) else named
    return GameRuns(folder, policies)


def _own_settings(table: Mapping[str, Any], source: str) -> list[Setting]:
    return [
        setting
        for section, value in table.items()
        if section not in ("name", *FROZEN_KEYS)
        for setting in table_settings(section, value, source)
    ]


def _own_dir(game: Mapping[str, Any], name: str) -> str:
    return str(Path(game["dir"]) / name) if "dir" in game else name


def refuse_unlike(policies: Mapping[str, Config]) -> None:
    """Check that runs can play one game. Raises ConfigError."""
    refuse_without_past(policies)
    for (one, mine), (other, its) in pairwise(policies.items()):
        for key in SAME:
            if lookup(mine, key) != lookup(its, key):
                raise ConfigError(
                    f"the policies {one} and {other} differ in {key} "
                    f"({quoted(lookup(mine, key))} and {quoted(lookup(its, key))}), which says "
                    "what the games are: set it once, for all."
                )
    refuse_one_server(policies)
    taken = dict[int, str]()
    for name, config in policies.items():
        if joined(config):
            raise ConfigError(
                f"the policy {name} has cluster.kind {config.cluster.kind}: the runs of a game are "
                "on one machine."
            )
        for key in PORTS:
            port = lookup(config, key)
            if port and (other := taken.setdefault(port, name)) != name:
                raise ConfigError(
                    f"the policies {other} and {name} have one port, {port} ({key}): give each "
                    "its own."
                )


def _tables(path: Path, setting: Setting) -> list[dict[str, Any]]:
    if not isinstance(setting.value, list) or not all(
        isinstance(table, dict) for table in setting.value
    ):
        raise ConfigError(f"{path}: write each policy as a table of its own, [[policy]].")
    return setting.value


def _name(path: Path, table: Mapping[str, Any]) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == TRAINED:
        raise ConfigError(
            f"{path}: a policy has the name {quoted(name)}: a name is 1 to 32 letters, digits, - "
            f"and _, and not {TRAINED!r}."
        )
    return name
