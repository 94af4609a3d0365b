"""A table of `run.toml`, and ranges that several settings share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from asyncrl.config.errors import ConfigError
from asyncrl.config.setting import Field, Mark, Tier, checked, field_of, nearest, quoted

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

Contradictions = Iterator[tuple[tuple[str, ...], str]]
"""Keys that contradict each other, and the remedy as the end of a sentence."""
Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

BASIC = Tier.BASIC
"""Mark of a basic setting, in its type."""

PATH = Mark.PATH
"""Mark of a setting that names a file or a directory, in its type."""

CODE = Mark.CODE
"""Mark of a setting whose value may name code, in its type, if it also has values that are not
names."""

Tag = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{0,32}$", title="at most 32 letters, digits, - and _")
]
"""A name of what an actor's machine is good at; empty: none."""

EVERY = ("*",)
"""Stands for all settings of a section, as its `resumable`."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of run.toml. However it is created, each of its settings has its type and is in its
    range; a subsection may be given as a mapping of settings.

    A resume may change its `resumable` settings: they change how the run continues, but not the
    meaning of its journal and weights.
    """

    resumable = tuple[str, ...]()

    def __post_init__(self) -> None:
        """Check settings that differ from the defaults. Raises ConfigError with the sentence of
        `load`."""
        cls = type(self)
        for name, default in _defaults(cls).items():
            value = getattr(self, name)
            if type(value) is type(default) and value == default:
                continue
            kind = _kind(cls, name)
            right = (
                checked(kind, value, cls.__name__)
                if isinstance(kind, Field)
                else _inner(kind, value, cls.__name__)
            )
            if right is not value:
                msgspec.structs.force_setattr(self, name, right)

    def contradictions(self, whole: Config) -> Contradictions:
        """Yield contradictions in this table, or with the rest of the `whole`."""
        return iter(())


@cache
def _defaults(cls: type[Section]) -> dict[str, Any]:
    return {
        field.name: field.default
        if field.default_factory is msgspec.NODEFAULT
        else field.default_factory()
        for field in msgspec.structs.fields(cls)
    }


@cache
def _hints(cls: type[Section]) -> dict[str, Any]:
    """The types of its fields, with their marks: to read them takes a millisecond."""
    return get_type_hints(cls, include_extras=True)


@cache
def _kind(cls: type[Section], name: str) -> Field | type[Section]:
    """The setting of this field, or its subsection."""
    hint = _hints(cls)[name]
    if isinstance(hint, type) and issubclass(hint, Section):
        return hint
    return field_of(table_of(cls), name, hint)


@cache
def table_of(cls: type[Section]) -> str:
    """The name of this table in run.toml; empty for the whole of it.

    >>> from asyncrl.config.schema import SglangConfig
    >>> table_of(SglangConfig)
    'engine.sglang'
    """
    for outer in Section.__subclasses__():
        for name, hint in _hints(outer).items():
            if hint is cls:
                return f"{table_of(outer)}.{name}".lstrip(".")
    return ""


def _inner(cls: type[Section], value: Any, source: str) -> Section:
    """`value` as this section. Raises ConfigError."""
    if isinstance(value, cls):
        return value
    table = table_of(cls)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{source}: {table} is {quoted(value)}, and must be a {cls.__name__}, or a mapping of "
            "its settings."
        )
    names = cls.__struct_fields__
    for name in value:
        if name not in names:
            raise ConfigError(
                f"{source}: there is no setting {table}.{name}; the nearest is "
                f"{table}.{nearest(str(name), names)}."
            )
    return cls(**value)
