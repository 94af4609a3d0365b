"""The settings of a run, those first that are not the defaults."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from asyncrl.config.fields import FIELDS, lookup
from asyncrl.config.load import as_written
from asyncrl.config.schema import Config
from asyncrl.explain.views.html_page import Html, joined, table, tag
from asyncrl.explain.views.seen_run import SeenRun, moment

VALUE = 500
"""Characters of a value that are shown."""


def settings(seen: SeenRun) -> Html:
    """The settings as run.toml has them. Raises ConfigError."""
    found = [*seen.files.settings.items()]
    changed = [(key, value) for key, value in found if not _is_default(key, value)]
    rest = [(key, value) for key, value in found if _is_default(key, value)]
    if not changed and not rest:
        return tag("p", "Its run.toml sets nothing.", class_="dim")
    return joined(
        _started(seen),
        table(_rows(changed), ("setting", "value", "default")),
        tag(
            "details",
            tag("summary", f"{len(rest)} settings at their defaults"),
            table(_rows(rest), ("setting", "value", "default")),
        )
        if rest
        else joined(),
    )


def _started(seen: SeenRun) -> Html:
    """The command, versions and place of the last start, where they are known."""
    if (start := seen.files.start) is None:
        return joined()
    versions = f"asyncrl {start.asyncrl}, Python {start.python}"
    return table(
        [
            ("command", start.command),
            ("started", f"{moment(start.at)} on {start.host}, {versions}"),
            ("directory", str(seen.files.path.absolute())),
        ]
    )


@cache
def default(key: str) -> Any:
    """The default of a setting, as run.toml has it."""
    return as_written(lookup(Config(), key))


def _is_default(key: str, value: Any) -> bool:
    return key in FIELDS and _text(value) == _text(default(key))


def _rows(found: Iterable[tuple[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (key, _text(value), _text(default(key)) if key in FIELDS else "not a setting of today")
        for key, value in found
    ]


def _text(value: Any) -> str:
    said = msgspec.json.encode(value).decode()
    return said if len(said) <= VALUE else f"{said[:VALUE]}…"
