"""Settings that name code: something of asyncrl's by its name, or a user's own by `module:name`.

A setting with the mark `Named` in its type is such a setting, and a `Registry` finds what it names.
Invariant: a module is imported for a setting of run.toml, a variable or `--set`, and never for
anything that data says (docs/security.md). It is imported where the object is first asked for, in
each process that asks; so it must be importable there (PYTHONPATH).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from asyncrl.config.errors import ConfigError

T = TypeVar("T")
SHOWN = 200
"""Characters of somebody else's error that a sentence has."""


class Named(NamedTuple):
    """Mark of a string setting: one of `names`, or the `module:name` of a user's own `kind`.

    `kind: Annotated[str, Named("engine", ("embedded", "sglang"))]`
    """

    kind: str
    names: tuple[str, ...]

    def allows(self, text: str) -> bool:
        """True for a known name, and for what has the form of `module:name`.

        >>> Named("engine", ("sglang",)).allows("my.engines:Echo")
        True
        >>> Named("engine", ("sglang",)).allows("sglagn")
        False
        """
        return text in self.names or _split(text) is not None


class Registry(Generic[T]):
    """The things of one `kind` ("engine", "correction", …) that a setting may name.

    `built_in` has those of asyncrl by their names; one that must not be imported yet is given as
    its own `module:name`. `wrong` says what keeps an imported object from being one; empty where
    nothing does.

    >>> odd = Registry("odd number", {"one": 1, "three": 3}, lambda found: "it is no number")
    >>> odd.find("three"), list(odd)
    (3, ['one', 'three'])
    >>> odd.find("math:floor")
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: 'math:floor' is no odd number: it is no number.
    """

    def __init__(
        self, kind: str, built_in: Mapping[str, T | str], wrong: Callable[[Any], str]
    ) -> None:
        self.kind = kind
        self._built_in = built_in
        self._wrong = wrong

    def __iter__(self) -> Iterator[str]:
        return iter(self._built_in)

    @property
    def named(self) -> Named:
        """The mark of a setting that is one of these."""
        return Named(self.kind, tuple(self))

    def find(self, text: str) -> T:
        """The one called `text`: a built-in name or `module:name`. Raises ConfigError."""
        own = self._built_in.get(text, text)
        if not isinstance(own, str):
            return own
        if _split(own) is None:
            raise ConfigError(
                f"{text!r} names no {self.kind}: give {', '.join(self)} or the module:name of one "
                "of your own."
            )
        found = load_named(own, self.kind)
        if problem := self._wrong(found):
            raise ConfigError(f"{text!r} is no {self.kind}: {problem}.")
        right: T = found
        return right


def load_named(text: str, kind: str) -> Any:
    """The object called `module:name`; `kind` is what a person calls it. Raises ConfigError.

    >>> load_named("math:pi", "number")
    3.141592653589793
    """
    parts = _split(text)
    if parts is None:
        raise ConfigError(f"{text!r} names no {kind}: give the module:name of one of your own.")
    module, name = parts
    try:
        imported = import_module(module)
    except (Exception, SystemExit) as error:  # a module of the user's raises what it likes
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"the {kind} {text!r} cannot be loaded, because {module} cannot be imported "
            f"({said[:SHOWN]}); put its folder on PYTHONPATH, or fix it."
        ) from error
    if not hasattr(imported, name):
        raise ConfigError(
            f"the {kind} {text!r} cannot be loaded, because {module} has no {name}; give the name "
            "of one that it has."
        )
    return getattr(imported, name)


def derived_from(base: type) -> Callable[[Any], str]:
    """Give what says why something is no class derived from `base` with all its methods.

    >>> derived_from(Exception)(3)
    'derive a class from builtins:Exception'
    """

    def wrong(found: Any) -> str:
        if not isinstance(found, type) or not issubclass(found, base):
            return f"derive a class from {base.__module__}:{base.__name__}"
        if missing := sorted(getattr(found, "__abstractmethods__", ())):
            return f"it must define {', '.join(missing)}"
        return ""

    return wrong


def _split(text: str) -> tuple[str, str] | None:
    """Module and name of `module:name`; None for any other text."""
    module, _, name = text.partition(":")
    whole = all(part.isidentifier() for part in (*module.split("."), name))
    return (module, name) if whole else None
