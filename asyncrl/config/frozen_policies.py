"""Frozen policies of a game.toml: past versions as opponents, which are never trained.

    [[policy]]
    name = "past"
    frozen = "solver"           # the checkpoints of that policy, as they come; or model directories
    draw = "pfsp"               # the rule that draws the one that plays a group
    versions = 8                # how many are kept

Invariant: past versions are those of a policy that is trained, so no opponents are each other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.load import Setting
from asyncrl.config.schema import Config
from asyncrl.config.setting import quoted

KEYS = ("frozen", "draw", "versions")
"""Keys of a frozen policy's table, beside its name and sections."""


def frozen_names(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The origin of each frozen policy's past versions: a policy's name, or directories, which are
    absolute. Raises ConfigError."""
    found = {name: _frozen(path, name, table) for name, table in tables.items()}
    frozen = {name: of for name, of in found.items() if of}
    for name, of in frozen.items():
        if of[0].startswith("/"):
            continue
        if of[0] not in tables:
            raise ConfigError(
                f"{path}: the policy {name} is past versions of {quoted(of[0])}, which is no "
                "policy of this game: name one, or give a list of model directories."
            )
        if of[0] in frozen:
            raise ConfigError(
                f"{path}: the policy {name} is past versions of {of[0]}, which is frozen itself "
                "and has none: name a policy that is trained."
            )
    if next(iter(tables)) in frozen:
        raise ConfigError(
            f"{path}: the first policy hosts the game and is trained, and {next(iter(tables))} is "
            "frozen: put a trained one first."
        )
    return frozen


def frozen_settings(table: Mapping[str, Any], of: tuple[str, ...], source: str) -> list[Setting]:
    """The settings of a frozen policy that are the game's."""
    given = {key: table[key] for key in KEYS[1:] if key in table} | {"frozen": [*of]}
    settings = [Setting(("game", key), value, source) for key, value in given.items()]
    if of[0].startswith("/"):
        settings.append(Setting(("model", "path"), of[0], source))
    return settings


def refuse_without_past(policies: Mapping[str, Config]) -> None:
    """Check that each policy whose past versions play will have some. Raises ConfigError."""
    for name, config in policies.items():
        of = policies.get(config.game.frozen[0]) if config.game.frozen else None
        if of is None:
            continue
        if not of.train.checkpoint_every:
            raise ConfigError(
                f"the policy {name} is past versions of {of.game.policy}, which would have none "
                "but its first: set train.checkpoint_every of it to the steps between two."
            )
        if of.model.lora.rank:
            raise ConfigError(
                f"the policy {name} is past versions of {of.game.policy}, whose checkpoints are "
                "adapters: set model.lora.rank of it to 0."
            )


def _frozen(path: Path, name: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    frozen = table.get("frozen")
    if frozen is None:
        if given := [key for key in KEYS if key in table]:
            raise ConfigError(
                f"{path}, policy {name}: {given[0]} is of a frozen policy, and this one is "
                "trained: remove it, or say of what it is past versions (frozen)."
            )
        return ()
    if isinstance(frozen, str) and frozen and "/" not in frozen:
        return (frozen,)
    if isinstance(frozen, list) and frozen and all(isinstance(one, str) and one for one in frozen):
        return tuple(str(path.absolute().parent / Path(one).expanduser()) for one in frozen)
    raise ConfigError(
        f"{path}, policy {name}: frozen is {quoted(frozen)}, and must be the name of a policy, or "
        "a list of model directories."
    )
