"""Loading of run.toml, `ASYNCRL_*` and `--set` into one frozen Config. Invariant: any input gives a
Config or a ConfigError of one sentence.

`--set` wins over a variable, a variable over run.toml, run.toml over the defaults. `task.params`
belong to the named data set: a source that names another task drops the params of weaker sources.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import tomli_w

from asyncrl.config.errors import ConfigError, ContradictionError
from asyncrl.config.fields import FIELDS, SECTIONS, lookup
from asyncrl.config.own_files import from_folder, located, suggested
from asyncrl.config.renamed import about_old_name, says_nothing
from asyncrl.config.schema import VARIABLES, Config, Section
from asyncrl.config.setting import (
    TEXT_OR_TEXTS,
    Field,
    Tier,
    checked,
    nearest,
    quoted,
    shortened,
)
from asyncrl.files import read_regular, write_whole
from asyncrl.staleness.corrections import Correction
from asyncrl.words import beyond_reading

PREFIX = "ASYNCRL_"
ROOM_FOR_AGENTS = MappingProxyType({"engine.context_tokens": 2048, "rollout.max_new_tokens": 512})
"""Sizes with an agent, unless either is set: the bundled model holds no more."""
BYTES = 2**20
"""Bytes of a run.toml, at most."""
DEPTH = 32
"""Tables and lists within one another in a setting, at most, and names of its key."""
_TOO_LONG = "a number in it has too many digits"
_DOTTED = re.compile(r"(?:\.[ \t]*+[\"']?+[\w-]{1,64}+[\"']?+[ \t]*+){200}")
"""A key of so many names that tomllib, which is quadratic in them, reads it for minutes."""


class Setting(NamedTuple):
    """`value` for the key `path` (section, name, and further names inside a free table), and its
    source."""

    path: tuple[str, ...]
    value: Any
    source: str


def load(path: Path | None, sets: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Return the configuration of a run from run.toml at `path` (None: defaults only), `--set
    section.key=value` strings and `ASYNCRL_*`.

    Raises ConfigError.
    """
    beside = path.absolute().parent if path else Path()
    return load_settings(settings_in(path) if path else [], beside, sets, environ)


def load_settings(
    own: Sequence[Setting], beside: Path, sets: Sequence[str], environ: Mapping[str, str]
) -> Config:
    """As `load`, for the settings of a run.toml in the folder `beside`. Raises ConfigError."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = own, _from_environment(environ), [_from_set(text) for text in sets]
    for settings, folder in zip(layers, (beside, Path(), Path()), strict=True):
        _forget_params_of_another_task(settings, values)
        for setting in settings:
            _put(_found_from(folder, setting), values, sources)
    _fit_agents(values, sources)
    return _build(values, sources)


def read(path: Path) -> Config:
    """Return the configuration in a run.toml, without variables. It is the inverse of `write`.
    Raises ConfigError."""
    return load(path, (), {})


def read_numbers(path: Path) -> Config:
    """Return the configuration in a run.toml for its numbers: settings that may name code have
    their defaults, and nothing is imported. If other settings contradict these, only numbers are
    read. Raises ConfigError."""
    settings = [
        setting
        for setting in settings_in(path)
        if (field := FIELDS.get(".".join(setting.path[:2]))) is None or not field.is_code
    ]
    try:
        return _of(settings)
    except ContradictionError:
        return _of([setting for setting in settings if isinstance(setting.value, int | float)])


def _of(settings: Sequence[Setting]) -> Config:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in settings:
        _put(setting, values, sources)
    return _build(values, sources)


def write(config: Config, path: Path) -> None:
    """Write every setting to a run.toml, each with its meaning as a comment. The file appears
    whole or not at all. Files of code in its folder are named from there."""
    write_whole(path, render(config, folder=path.absolute().parent))


def render(config: Config, keys: Collection[str] = FIELDS, *, folder: Path | None = None) -> str:
    """Return `config`, or these settings of it, as the text of a run.toml, each with its meaning:
    in each table first the basic settings, then, below a heading, the advanced ones. Files of code
    in `folder` are named from there."""
    parts: list[str] = []
    for section, cls in SECTIONS.items():
        fields = [field for key in _keys(section) if (field := FIELDS[key]).key in keys]
        if not fields:
            continue
        parts.append(f"# {(cls.__doc__ or '').strip()}\n[{section}]\n")
        fields.sort(key=lambda field: (field.is_table, field.tier is Tier.ADVANCED))
        first_advanced = next((field for field in fields if field.tier is Tier.ADVANCED), None)
        for field in fields:  # a table comes last, because it takes every key that follows it
            if field is first_advanced:
                parts.append("\n# Advanced:\n\n")
            value = as_written(lookup(config, field.key))
            if folder is not None and field.is_code:
                value = from_folder(value, folder)
            parts.append(_comment(field))
            if field.is_table:
                parts.append(tomli_w.dumps({section: {field.name: value}}))
            elif field.entries:
                parts.append(f"{field.name} = [{_inline(value)}]\n")
            else:
                parts.append(tomli_w.dumps({field.name: value}))
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def as_written(value: Any) -> Any:
    """A setting as a TOML value: corrections as tables."""
    if isinstance(value, tuple):
        return [item.table() if isinstance(item, Correction) else item for item in value]
    return value


def _inline(tables: Sequence[Mapping[str, Any]]) -> str:
    """The items of a list of tables, each on a line of its own, however long."""
    items = (
        ", ".join(tomli_w.dumps({name: value}).strip() for name, value in table.items())
        for table in tables
    )
    return "\n" * bool(tables) + "".join(f"    {{ {item} }},\n" for item in items)


def _comment(field: Field) -> str:
    choices = f" ({field.words})" if field.words else ""
    return f"# {field.description}{choices}\n"


# ----------------------------------------------------------------------------------------- sources


def settings_in(path: Path) -> list[Setting]:
    """The settings in a run.toml, unchecked, without an import of any module that one names. Raises
    ConfigError where it cannot be read, or is not TOML."""
    try:
        text = read_regular(path, BYTES).decode("utf-8-sig")  # some editors write a mark first
        if _DOTTED.search(text):
            raise RecursionError
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of a run.toml."
        ) from None
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"at line ([0-9]+)", str(error))
        source = f"{path}:{where[1]}" if where else f"{path}, at its end"
        raise ConfigError(
            f"{source}: this is not TOML: {str(error).partition(' (at ')[0]}."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: this is not TOML: it is not UTF-8 text.") from None
    except ValueError:
        raise ConfigError(f"{path}: this is not TOML that can be read: {_TOO_LONG}.") from None
    except RecursionError:  # brackets a thousand deep
        raise ConfigError(
            f"{path}: this is not TOML that can be read: a nesting in it has no end."
        ) from None
    settings: list[Setting] = []
    for section, table in tree.items():
        settings += table_settings(section, table, str(path))
    return settings


def table_settings(section: str, table: Any, source: str) -> list[Setting]:
    """Settings of a section, and of its subsections."""
    if not isinstance(table, dict) or not table:
        return [Setting((section,), table, source)]
    settings = []
    for name, value in table.items():
        inner = f"{section}.{name}"
        settings += (
            table_settings(inner, value, source)
            if inner in SECTIONS
            else [Setting((section, name), value, source)]
        )
    return settings


def _from_environment(environ: Mapping[str, str]) -> list[Setting]:
    settings = []
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX):
            continue
        if name not in VARIABLES:
            raise ConfigError(
                f"{name}: there is no such variable; the nearest is {nearest(name, VARIABLES)}."
            )
        field = FIELDS[VARIABLES[name]]
        settings.append(Setting((field.section, field.name), _parsed(field, text, name), name))
    return settings


def _from_set(text: str) -> Setting:
    source = f"--set {shortened(text)}"
    key, equals, value = text.partition("=")
    first, *rest = (part.strip() for part in key.split("."))
    while rest and f"{first}.{rest[0]}" in SECTIONS:
        first = f"{first}.{rest.pop(0)}"
    path = first, *rest
    if not equals:
        raise ConfigError(
            f"{source}: write --set section.key=value, for example --set train.steps=100."
        )
    field = _known(path, source)
    return Setting(path, _parsed(field, value.strip(), source, inside=len(path) > 2), source)


def _parsed(field: Field, text: str, source: str, *, inside: bool = False) -> Any:
    """`text` as a TOML value; unparsed for a string, for comma-separated kinds, and inside a free
    table where it is not TOML."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if beyond_reading(error) and not field.is_text:
            raise ConfigError(
                f"{source}: {field.key}: {_TOO_LONG}, and it must be {field.allowed} "
                f"({field.description})."
            ) from None
        tree = {}
    value = tree.get("value") if len(tree) == 1 else None
    if field.is_text and not isinstance(value, str):
        return text
    if value is None:
        free = inside or field.kind == TEXT_OR_TEXTS
        words = field.entries or field.listed
        if free or not text or (words and not text.startswith(("[", "{"))):
            return text
        raise ConfigError(
            f"{source}: {field.key} is {quoted(text)}, and must be {field.allowed} "
            f"({field.description})."
        )
    return value


# ---------------------------------------------------------------------------- settings to a Config


def _known(path: tuple[str, ...], source: str) -> Field:
    """Return the field that `path` names. Raises ConfigError with the new name of an old one, or
    with the nearest."""
    if old := about_old_name(path):
        raise ConfigError(f"{source}: {old}.")
    key = ".".join(path)
    if path[0] not in SECTIONS and key in FIELDS:
        raise ConfigError(
            f"{source}: {quoted(path[0])} is one name in quotes: write {key} without them."
        )
    if path[0] not in SECTIONS:
        near = (
            nearest(key, FIELDS)
            if len(path) > 1 or any(field.name == path[0] for field in FIELDS.values())
            else nearest(key, SECTIONS)
        )
        raise ConfigError(
            f"{source}: there is no section {path[0] or repr('')}; the sections are "
            f"{', '.join(SECTIONS)}, and the nearest is {near}."
        )
    if len(path) == 1:
        raise ConfigError(
            f"{source}: {path[0]} is a section of settings; name one of them, as "
            f"{nearest(key, _keys(path[0]))}."
        )
    field = FIELDS.get(".".join(path[:2]))
    if field is None:
        elsewhere = [other.key for other in FIELDS.values() if other.name == path[1]]
        own = {name.rpartition(".")[2]: name for name in _keys(path[0])}
        close = [own[name] for name in difflib.get_close_matches(path[1], own, cutoff=0.85)]
        near = nearest(key, [*elsewhere, *close] if elsewhere else own.values())
        raise ConfigError(
            f"{source}: there is no setting {'.'.join(path[:2])}; the nearest is {near}."
        )
    if len(path) > 2 and not field.is_table:
        raise ConfigError(
            f"{source}: {field.key} holds no further settings; it must be {field.allowed} "
            f"({field.description})."
        )
    if not all(path):
        raise ConfigError(
            f"{source}: a name in {key} is empty; write --set {field.key}.name=value."
        )
    return field


@cache
def _keys(section: str) -> tuple[str, ...]:
    return tuple(field.key for field in FIELDS.values() if field.section == section)


def _forget_params_of_another_task(settings: Sequence[Setting], values: dict[str, Any]) -> None:
    named = [setting.value for setting in settings if setting.path == ("task", "name")]
    if named and named[-1] != values.get("task.name", Config().task.name):
        values.pop("task.params", None)


def _fit_agents(values: dict[str, Any], sources: dict[str, str]) -> None:
    """Give an agent whose run sets no size room for a system's prompt, tools and turns. For one
    that brings its problems, the bundled model is not warmed up: there are no answers."""
    if values.get("task.name") == "seeds" and not values.get("model.path"):
        values.setdefault("model.warmup_steps", 0)
    if values.get("agent.run") and not ROOM_FOR_AGENTS.keys() & values.keys():
        values |= ROOM_FOR_AGENTS
        sources |= dict.fromkeys(ROOM_FOR_AGENTS, "the default with an agent")


def _found_from(folder: Path, setting: Setting) -> Setting:
    """The setting with each file of code that it names from `folder`. Raises ConfigError for a
    module that Python cannot find where its file lies in the folder."""
    field = FIELDS.get(".".join(setting.path[:2]))
    if field is None or not field.is_code:
        return setting
    value = located(setting.value, folder)
    text, file = suggested(value, folder)
    if file:
        where = "beside run.toml" if folder != Path() else "here"
        raise ConfigError(
            f"{setting.source}: {field.key} names {quoted(text)}, and no such module is on "
            f"PYTHONPATH; to name the file that lies {where}, write {file}."
        )
    return setting._replace(value=value)


def _put(setting: Setting, values: dict[str, Any], sources: dict[str, str]) -> None:
    """Check one setting, which overrides weaker sources."""
    path, value, source = setting
    if path[0] in SECTIONS and len(path) == 1:
        if value != {}:
            raise ConfigError(
                f"{source}: {path[0]} is {quoted(value)}, and must be a section: write "
                f"[{path[0]}] and its settings below."
            )
        return
    if says_nothing(path, value):
        return
    field = _known(path, source)
    if len(path) > DEPTH or _deeper(value, DEPTH):
        raise ConfigError(
            f"{source}: {field.key} has more than {DEPTH} tables or lists within one another; "
            "write fewer."
        )
    if len(path) > 2:
        value = _merged(values.get(field.key, {}), path[2:], value, source, field.key)
    values[field.key] = checked(field, value, source)
    sources[field.key] = source


def _deeper(value: Any, depth: int) -> bool:
    """True of a value with more than `depth` tables and lists within one another."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not depth or any(_deeper(item, depth - 1) for item in inner)


def _merged(
    table: Mapping[str, Any], path: tuple[str, ...], value: Any, source: str, key: str
) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**table, name: value}
    inner = table.get(name, {})
    if not isinstance(inner, dict):
        raise ConfigError(
            f"{source}: {key}.{name} is {quoted(inner)}, and holds no further settings."
        )
    return {**table, name: _merged(inner, tuple(rest), value, source, f"{key}.{name}")}


def _build(values: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    built: dict[str, Section] = {}
    for section, cls in reversed(SECTIONS.items()):  # a section comes before its subsections
        settings: dict[str, Any] = {
            FIELDS[key].name: values[key] for key in _keys(section) if key in values
        }
        settings |= {
            name.rpartition(".")[2]: part
            for name, part in built.items()
            if name.rpartition(".")[0] == section
        }
        built[section] = cls(**settings)
    sections: dict[str, Any] = {
        section: part for section, part in built.items() if "." not in section
    }
    try:
        return Config(**sections)
    except ContradictionError as error:
        raise ContradictionError(error.values, error.remedy, sources) from None
