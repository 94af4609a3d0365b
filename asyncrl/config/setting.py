"""One setting: its allowed values in words, and the check of a value. Invariant: messages and
comments in run.toml agree with the schema, whether the value comes from a file or from Python.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.loss_names import CORRECTIONS
from asyncrl.config.own_files import located
from asyncrl.config.plugins import OWN, Named
from asyncrl.config.renamed import VALUES
from asyncrl.staleness.corrections import Correction

COMPARED = 200
"""Characters of a name that are compared with those that exist."""
NONE = "none"
"""The word for an empty list of tables."""
TEXTS = tuple[str, ...]
TEXT_OR_TEXTS = str | tuple[str, ...]
COUNTS = tuple[Annotated[int, msgspec.Meta(ge=1)], ...]


class Tier(Enum):
    """Mark of a setting: the users who need it."""

    BASIC = "basic"
    """The tier for a first run: `asyncrl init` writes the setting, and `asyncrl settings` lists
    it."""
    ADVANCED = "advanced"
    """The tier of a setting without a mark."""


class Mark(Enum):
    """Mark of a setting: how its text is read."""

    PATH = "path"
    """It names a file or a directory: `~` at its start is the user's home."""
    CODE = "code"
    """It may name code of a user's own, as a setting with the mark `Named` does."""


class Field(msgspec.Struct, frozen=True):
    """One setting: `key` is `section.name` (a section may lie in another: `engine.sglang`), `kind`
    its Python type (or the Literal), `allowed` its allowed values in words, `named` the mark of a
    setting that names code. A setting that `is_code` may name code in its values, too."""

    key: str
    hint: Any
    kind: Any
    description: str
    allowed: str
    named: Named | None = None
    tier: Tier = Tier.ADVANCED
    is_path: bool = False
    is_code: bool = False

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def is_table(self) -> bool:
        """True if its keys are free (`task.params`)."""
        return get_origin(self.kind) is dict

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed strings, or () where any is allowed."""
        if self.named is not None:
            return self.named.names
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def listed(self) -> tuple[str, ...]:
        """The allowed items, where it is a list of strings; otherwise ()."""
        inner = get_args(self.kind)[:1] if get_origin(self.kind) is tuple else ()
        return get_args(inner[0]) if inner and get_origin(inner[0]) is Literal else ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Built-in kinds of table, where it is a list of tables; otherwise ()."""
        return tuple(CORRECTIONS) if self.kind == tuple[Correction, ...] else ()

    @property
    def words(self) -> str:
        """All allowed names, for the comment above it; empty where any is allowed."""
        listed = [*(self.choices or self.listed or self.entries)]
        own = OWN.split(" or ") if self.named or self.entries else []
        return ", ".join([*listed, *own])

    @property
    def is_text(self) -> bool:
        return self.kind is str or bool(self.choices)


def _allowed(kind: Any, metas: list[msgspec.Meta], named: Named | None) -> str:
    if named is not None:
        return f"one of {', '.join(named.names)}, {OWN}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is dict:
        return "a table"
    if kind == TEXTS:
        return "a list of strings"
    if (texts := _texts(kind)) is not None:
        return "a list of strings" + (f", each of {texts.title}" if texts.title else "")
    if get_origin(kind) is tuple and get_origin(get_args(kind)[0]) is Literal:
        return "a list of " + ", ".join(get_args(get_args(kind)[0]))
    if kind == TEXT_OR_TEXTS:
        return "a string or a list of strings"
    if kind == COUNTS:
        return "a list of whole numbers, each at least 1"
    if get_origin(kind) is tuple:
        return "a list of tables with a kind each, or of kinds alone"
    noun = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[kind]
    bounds: list[str] = []
    for meta in metas:
        bounds += [
            f"{words} {bound:g}" if abs(bound) < 1e6 else f"{words} {bound}"
            for words, bound in (
                ("at least", meta.ge),
                ("above", meta.gt),
                ("at most", meta.le),
                ("below", meta.lt),
            )
            if bound is not None
        ]
        bounds += [f"of {meta.title}"] if meta.title else []
    return " ".join([noun, " and ".join(bounds)]).strip()


def _texts(kind: Any) -> msgspec.Meta | None:
    """The pattern of each text, where the setting is a list of texts that have one."""
    inner = get_args(kind)[0] if get_origin(kind) is tuple else None
    if get_origin(inner) is not Annotated or get_args(inner)[0] is not str:
        return None
    return next((meta for meta in get_args(inner)[1:] if isinstance(meta, msgspec.Meta)), None)


def field_of(section: str, name: str, hint: Any) -> Field:
    """Read a setting from the type of a field of `section`; empty: of no table yet."""
    kind, metas, named, tier = hint, [], None, Tier.ADVANCED
    if get_origin(hint) is Annotated:
        kind, *rest = get_args(hint)
        metas = [meta for meta in rest if isinstance(meta, msgspec.Meta)]
        named = next((mark for mark in rest if isinstance(mark, Named)), None)
        tier = next((mark for mark in rest if isinstance(mark, Tier)), tier)
    description = next((meta.description for meta in metas if meta.description), "")
    allowed = _allowed(kind, metas, named)
    marks = get_args(hint) if get_origin(hint) is Annotated else ()
    return Field(
        f"{section}.{name}",
        hint,
        kind,
        description,
        allowed,
        named,
        tier,
        is_path=Mark.PATH in marks,
        is_code=Mark.CODE in marks or named is not None or kind == tuple[Correction, ...],
    )


def nearest(word: str, words: Iterable[str]) -> str:
    """The most similar of `words`, of which there is at least one. A key matches best by its last
    part (`train.group_size` → `rollout.group_size`)."""
    word = word[:COMPARED]

    def similarity(other: str) -> tuple[float, float]:
        last, other_last = word.rpartition(".")[2], other.rpartition(".")[2]
        whole = difflib.SequenceMatcher(None, word.lower(), other.lower()).ratio()
        return difflib.SequenceMatcher(
            None, last.lower(), other_last.lower()
        ).ratio() + whole, whole

    return max(words, key=similarity)


def checked(field: Field, value: Any, source: str) -> Any:
    """`value` as the setting's type. Raises ConfigError with `source`, the value and what is
    allowed."""
    problem = ""
    if field.is_code:
        value = located(value)
    if field.entries:
        return _listed(field, value, source)
    if field.listed and isinstance(value, str):
        value = [word for part in value.split(",") if (word := part.strip())]
    if field.is_path:
        value = _from_home(value)
    if field.is_table:
        problem = _unplain(value) if isinstance(value, dict) else "is not a table"
    elif (
        field.kind in (TEXTS, TEXT_OR_TEXTS)
        and isinstance(value, list)
        and not all(isinstance(item, str) and _is_text(item) for item in value)
    ):
        problem = f"is {quoted(value)}"
    elif isinstance(value, str) and not _is_text(value):
        problem = f"is {quoted(value)}, which is not text"
    elif field.kind is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        problem = "does not fit in 64 bits"
    elif field.kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
        problem = f"is {quoted(value)}, which is too large to compute with"
    elif isinstance(value, float) and not math.isfinite(value):
        problem = f"is {value}"
    elif field.named is not None and isinstance(value, str) and not field.named.allows(value):
        problem = f"is {quoted(value)}"
    else:
        try:
            of_kind = field.kind is float and isinstance(value, int) and not isinstance(value, bool)
            return msgspec.convert(float(value) if of_kind else value, field.hint)
        except msgspec.ValidationError:
            problem = f"is {quoted(value)}"
    if not problem:
        return value
    hint = f" ({field.description})" if field.description else ""
    if field.choices and isinstance(value, str):
        now = VALUES.get(field.key, {}).get(value)
        hint = f"; {value} is called {now} now" if now else ""
        hint = hint or f"; the nearest is {nearest(value, field.choices)}"
    raise ConfigError(f"{source}: {field.key} {problem}, and must be {field.allowed}{hint}.")


def _from_home(value: Any) -> Any:
    """A path, or a list of them, with the user's home in place of `~`: run.toml and `--set` have no
    shell that does it."""
    if isinstance(value, str) and value.startswith("~"):
        with contextlib.suppress(RuntimeError):  # no such user, or no home
            return str(Path(value).expanduser())
    return [_from_home(item) for item in value] if isinstance(value, list | tuple) else value


def _listed(field: Field, value: Any, source: str) -> tuple[Any, ...]:
    """A list of tagged tables; a kind alone has its default settings. A string has comma-separated
    kinds, or NONE."""
    if isinstance(value, str):
        value = [] if value.strip() == NONE else [kind.strip() for kind in value.split(",")]
    if not isinstance(value, list | tuple):
        kinds = ", ".join([*field.entries, NONE])
        raise ConfigError(
            f"{source}: {field.key} is {quoted(value)}, and must be {field.allowed}: {kinds} "
            f"({field.description})."
        )
    return tuple(
        _entry(field, {"kind": item} if isinstance(item, str) else item, source) for item in value
    )


def _entry(field: Field, table: Any, source: str) -> Any:
    if isinstance(table, Correction):
        return _settled(field, type(table), msgspec.structs.asdict(table), source)
    kinds = field.entries
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(kind, str):
        raise ConfigError(
            f"{source}: {field.key} has {quoted(table)} in it, and must be {field.allowed}: "
            f"{', '.join([*kinds, NONE])}."
        )
    if kind == NONE:
        raise ConfigError(
            f"{source}: {field.key} has {NONE} beside others, which has no meaning: remove it."
        )
    if kind not in kinds and ":" not in kind:
        near = nearest(kind, kinds)
        raise ConfigError(
            f"{source}: {field.key} has the kind {quoted(kind)}, which does not exist; the nearest "
            f"is {near}."
        )
    try:
        cls = CORRECTIONS.find(kind)
    except ConfigError as error:
        raise ConfigError(f"{source}: {field.key}: {error}") from None
    settings = {name: value for name, value in table.items() if name != "kind"}
    return _settled(field, cls, settings, source)


def _settled(field: Field, cls: type[Correction], settings: Mapping[str, Any], source: str) -> Any:
    """The correction of these settings."""
    kind, values = cls.kind, dict[str, Any]()
    try:
        hints = _settings(cls)
    except ConfigError as error:
        raise ConfigError(f"{source}: {field.key}: {error}") from None
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(
                f"{source}: {field.key} has a {kind} with {quoted(name)}, which it does not take; "
                f"{_takes(str(name), hints)}."
            )
        values[name] = checked(field_of(f"{field.key}.{kind}", name, hints[name]), value, source)
    for known in msgspec.structs.fields(cls):
        if known.required and known.name not in values:
            raise ConfigError(
                f"{source}: {field.key} has a {kind} without {quoted(known.name)}, which it needs."
            )
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # from __post_init__ of a user's class
        raise ConfigError(f"{source}: {field.key} has a {kind} that is refused: {error}.") from None


def _settings(cls: type[Correction]) -> dict[str, Any]:
    """The types of a correction's settings by name. Raises ConfigError for a type that a table of
    run.toml cannot have."""
    try:
        every = get_type_hints(cls, include_extras=True)
        hints = {name: every[name] for name in cls.__struct_fields__}
        for name, hint in hints.items():
            field_of(cls.kind, name, hint)
    except (NameError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the settings of {cls.kind} cannot be read ({type(error).__name__}: {error}); give "
            "each the type int, float, str, bool or Literal."
        ) from error
    return hints


def _takes(name: str, hints: Iterable[str]) -> str:
    if not (listed := list(hints)):
        return "it takes none"
    return f"it takes {', '.join(listed)}, and the nearest is {nearest(name, listed)}"


def quoted(value: Any) -> str:
    """A value as written in TOML, shortened."""
    return shortened(_toml(value))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Correction):
        inner = ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.table().items())
        return f"{{{inner}}}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    try:
        return repr(value)
    except ValueError:  # Python writes no number of so many digits
        whole = isinstance(value, int)
        return "a number of thousands of digits" if whole else "a value with thousands of digits"


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _is_text(value: str) -> bool:
    """True if it can be written to a file and name one: an environment variable may hold bytes that
    are not UTF-8."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _unplain(value: Any, path: str = "") -> str:
    """The reason why a free table cannot be journalled and compared; empty where it can."""
    if isinstance(value, dict):
        return next(
            (
                problem
                for key, item in value.items()
                if (problem := _unplain(item, f"{path}.{key}"))
            ),
            "",
        )
    if isinstance(value, list):
        return next((problem for item in value if (problem := _unplain(item, path))), "")
    if isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if _is_text(value) else f"has at {path[1:]} {quoted(value)}, which is not text"
    if isinstance(value, int):
        return (
            ""
            if -(2**63) <= value < 2**63
            else f"has at {path[1:]} a number that does not fit in 64 bits"
        )
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"has {value} at {path[1:]}"
    return f"has at {path[1:]} a {type(value).__name__}, which no task accepts"
