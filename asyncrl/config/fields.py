"""The catalogue of settings, read off the schema. Invariant: an error message and a comment in run.toml say what the schema says."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from asyncrl.config.schema import Config, Section


class ConfigError(Exception):
    """The run cannot start as configured. Its text is one sentence on one printable line: where, what is wrong, what is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


class Field(msgspec.Struct, frozen=True):
    """One setting: `key` is `section.name`, `kind` its Python type (or the Literal), `allowed` what it may be, in words."""

    key: str
    hint: Any
    kind: Any
    description: str
    allowed: str

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def is_table(self) -> bool:
        """Whether its keys are free (`task.params`)."""
        return get_origin(self.kind) is dict

    @property
    def choices(self) -> tuple[str, ...]:
        """What a string may be, or () where it may be anything."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_text(self) -> bool:
        return self.kind is str or bool(self.choices)


def _allowed(kind: Any, metas: list[msgspec.Meta]) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is dict:
        return "a table"
    noun = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[kind]
    bounds: list[str] = []
    for meta in metas:
        bounds += [
            f"{words} {bound:g}" if abs(bound) < 1e6 else f"{words} {bound}"
            for words, bound in (("at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt))
            if bound is not None
        ]
    return " ".join([noun, " and ".join(bounds)]).strip()


def _field(section: str, name: str, hint: Any) -> Field:
    kind, metas = hint, []
    if get_origin(hint) is Annotated:
        kind, *rest = get_args(hint)
        metas = [meta for meta in rest if isinstance(meta, msgspec.Meta)]
    description = next((meta.description for meta in metas if meta.description), "")
    return Field(f"{section}.{name}", hint, kind, description, _allowed(kind, metas))


SECTIONS: dict[str, type[Section]] = get_type_hints(Config)
FIELDS: dict[str, Field] = {
    f"{section}.{name}": _field(section, name, hint)
    for section, cls in SECTIONS.items()
    for name, hint in get_type_hints(cls, include_extras=True).items()
}
"""Every setting by its key, in the schema's order."""


def lookup(config: Config, key: str) -> Any:
    """The value of `section.name`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def nearest(word: str, words: Iterable[str]) -> str:
    """The most similar of `words`, of which there is at least one. A key matches best by its last part (`train.group_size` →
    `rollout.group_size`)."""

    def similarity(other: str) -> tuple[float, float]:
        last, other_last = word.rpartition(".")[2], other.rpartition(".")[2]
        whole = difflib.SequenceMatcher(None, word.lower(), other.lower()).ratio()
        return difflib.SequenceMatcher(None, last.lower(), other_last.lower()).ratio() + whole, whole

    return max(words, key=similarity)


def checked(field: Field, value: Any, place: str) -> Any:
    """`value` as the setting's type. Raises ConfigError naming `place`, the value and what is allowed."""
    problem = ""
    if field.is_table:
        problem = _unplain(value) if isinstance(value, dict) else "is not a table"
    elif isinstance(value, str) and not _is_text(value):
        problem = f"is {quoted(value)}, which is not text"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        problem = "does not fit in 64 bits"
    elif isinstance(value, float) and not math.isfinite(value):
        problem = f"is {value}"
    else:
        try:
            return msgspec.convert(value, field.hint)
        except msgspec.ValidationError:
            problem = f"is {quoted(value)}"
    if not problem:
        return value
    hint = f" ({field.description})" if field.description else ""
    if field.choices and isinstance(value, str):
        hint = f"; the nearest is {nearest(value, field.choices)}"
    raise ConfigError(f"{place}: {field.key} {problem}, and must be {field.allowed}{hint}.")


def quoted(value: Any) -> str:
    """A value as a person writes it in TOML, shortened."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return shortened(text)


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _is_text(value: str) -> bool:
    """Whether it can be written to a file and name one: an environment can hold bytes that are not UTF-8."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _unplain(value: Any, path: str = "") -> str:
    """What makes a free table unfit to be journalled and compared, or nothing."""
    if isinstance(value, dict):
        return next((found for key, item in value.items() if (found := _unplain(item, f"{path}.{key}"))), "")
    if isinstance(value, list):
        return next((found for item in value if (found := _unplain(item, path))), "")
    if isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if _is_text(value) else f"has at {path[1:]} {quoted(value)}, which is not text"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**63 else f"has at {path[1:]} a number that does not fit in 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"has {value} at {path[1:]}"
    return f"has at {path[1:]} a {type(value).__name__}, which no task takes"
