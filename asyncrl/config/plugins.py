"""Settings that name code: something of asyncrl's by its name, or a user's own by `module:name`.

Such a setting has the mark `Named` in its type, and a `Registry` finds the object. Invariant: a
module is imported for a setting of run.toml, a variable or `--set`, and never for names in data
(docs/security.md). It is imported at the first use of the object, in each process that uses it; so
it must be importable there (PYTHONPATH).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, NamedTuple, TypeVar

from asyncrl.config.errors import ConfigError

T = TypeVar("T")
SHOWN = 200
"""Characters of a foreign error in a message."""


class Named(NamedTuple):
    """Mark of a string setting: one of `names`, or the `module:name` of a user's own `kind`.

    `kind: Annotated[str, Named("engine", ("embedded", "sglang"))]`
    """

    kind: str
    names: tuple[str, ...]

    def allows(self, text: str) -> bool:
        """True for a known name, and for a text of the form `module:name`.

        >>> Named("engine", ("sglang",)).allows("my.engines:Echo")
        True
        >>> Named("engine", ("sglang",)).allows("sglagn")
        False
        """
        return text in self.names or _split(text) is not None


class Registry(Generic[T]):
    """The objects of one `kind` ("engine", "correction", …) that a setting may name.

    `built_in` has those of asyncrl by their names; one that must not be imported yet is given by
    its `module:name`. `wrong` returns the reason why an imported object is not one; empty if it is.

    >>> odd = Registry("odd number", {"one": 1, "three": 3}, lambda candidate: "it is no number")
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

    def all(self) -> dict[str, T]:
        """Those of asyncrl, by their names; each is imported."""
        return {name: self.find(name) for name in self}

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
        loaded = load_named(own, self.kind)
        if problem := self._wrong(loaded):
            raise ConfigError(f"{text!r} is no {self.kind}: {problem}.")
        right: T = loaded
        return right


def in_folder(package: str, base: type) -> dict[str, Any]:
    """The classes derived from `base` in the modules of a package, by their `kind`: so a file that
    is put there is found by its name, and no list names it. Modules come in the order of their
    names, and the classes of one as it defines them. Raises ConfigError where two have one `kind`.

    >>> from asyncrl.staleness.corrections import Correction
    >>> in_folder("asyncrl.staleness.corrections", Correction)["icepop"].__module__
    'asyncrl.staleness.corrections.icepop'
    """
    found = dict[str, Any]()
    for name in sorted(module.name for module in iter_modules(import_module(package).__path__)):
        module = import_module(f"{package}.{name}")
        for candidate in vars(module).values():
            own = isinstance(candidate, type) and candidate.__module__ == module.__name__
            if not own or base not in candidate.__mro__[1:]:
                continue
            kind = vars(candidate).get("kind", "")
            if not kind or ":" in kind:  # a base of others
                continue
            if kind in found:
                raise ConfigError(
                    f"{module.__name__} and {found[kind].__module__} both define {kind!r}; give "
                    "one of them another kind."
                )
            found[kind] = candidate
    return found


def load_named(text: str, kind: str) -> Any:
    """The object called `module:name`; `kind` is the word for it in messages. Raises ConfigError.

    >>> load_named("math:pi", "number")
    3.141592653589793
    """
    parts = _split(text)
    if parts is None:
        raise ConfigError(f"{text!r} names no {kind}: give the module:name of one of your own.")
    module, name = parts
    try:
        imported = import_module(module)
        found = hasattr(imported, name)  # a module may have a __getattr__
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ConfigError(
            f"the {kind} {text!r} cannot be loaded, because {module} cannot be imported "
            f"({reason(error)}); put its folder on PYTHONPATH, or fix it."
        ) from error
    if not found:
        raise ConfigError(
            f"the {kind} {text!r} cannot be loaded, because {module} has no {name}; give the name "
            "of one that it has."
        )
    return getattr(imported, name)


def reason(error: BaseException) -> str:
    """The kind and text of an error of a user's code, on one line; the kind alone where its text
    is an error, too.

    >>> reason(KeyError("a"))
    "KeyError: 'a'"
    """
    with suppress(Exception):
        return " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN]
    return type(error).__name__


def derived_from(base: type) -> Callable[[Any], str]:
    """Return a check that explains why something is not a class derived from `base` with all its
    methods.

    >>> derived_from(Exception)(3)
    'derive a class from builtins:Exception'
    """

    def wrong(candidate: Any) -> str:
        if not isinstance(candidate, type) or not issubclass(candidate, base):
            return f"derive a class from {base.__module__}:{base.__name__}"
        if missing := sorted(getattr(candidate, "__abstractmethods__", ())):
            return f"it must define {', '.join(missing)}"
        return ""

    return wrong


def _split(text: str) -> tuple[str, str] | None:
    """Module and name of `module:name`; None for any other text."""
    module, _, name = text.partition(":")
    whole = all(part.isidentifier() for part in (*module.split("."), name))
    return (module, name) if whole else None
