"""Settings that name code: something of asyncrl's by its name, or a user's own by `module:name` or
`./file.py:name`.

Such a setting has the mark `Named` in its type, and a `Registry` finds the object. Invariant: a
module is imported for a setting of run.toml, a variable or `--set`, and never for names in data
(docs/security.md). It is imported at the first use of the object, in each process that uses it; so
it must be importable there (PYTHONPATH), or the file be there (`own_files.py`).
"""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from asyncrl.config import own_files
from asyncrl.config.errors import ConfigError

T = TypeVar("T")
SHOWN = 200
"""Characters of a foreign error in a message."""
OWN = "module:name or ./file.py:name"
"""The forms of a user's own, in words."""


class Named(NamedTuple):
    """Mark of a string setting: one of `names`, or a user's own `kind` by `module:name` or
    `./file.py:name`.

    `kind: Annotated[str, Named("engine", ("embedded", "sglang"))]`
    """

    kind: str
    names: tuple[str, ...]

    def allows(self, text: str) -> bool:
        """True for a known name, and for a text of the form `module:name` or `./file.py:name`.

        >>> Named("engine", ("sglang",)).allows("my.engines:Echo")
        True
        >>> Named("engine", ("sglang",)).allows("../engines.py:Echo")
        True
        >>> Named("engine", ("sglang",)).allows("sglagn")
        False
        """
        return text in self.names or module_and_name(text) is not None


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
        """The one called `text`: a built-in name, or a user's own. Raises ConfigError."""
        own = self._built_in.get(text, text)
        if not isinstance(own, str):
            return own
        if module_and_name(own) is None:
            known = f"{', '.join(self)}, or " if self._built_in else ""
            raise ConfigError(
                f"{text!r} names no {self.kind}: give {known}the {OWN} of one of your own."
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


def file_names(folder: str) -> tuple[str, ...]:
    """The names of the modules in a folder of asyncrl, for a setting whose registry is above the
    settings; none is imported.

    >>> "exact" in file_names("tasks/verifiers")
    True
    """
    path = Path(__file__).parents[1] / folder
    return tuple(sorted(module.name for module in iter_modules([str(path)])))


def load_named(text: str, kind: str) -> Any:
    """The object called `module:name` or `./file.py:name`; `kind` is the word for it in messages.
    Raises ConfigError.

    >>> load_named("math:pi", "number")
    3.141592653589793
    """
    parts = module_and_name(text)
    if parts is None:
        raise ConfigError(f"{text!r} names no {kind}: give the {OWN} of one of your own.")
    module, name = parts
    of_file = own_files.split(text) is not None
    cannot = f"the {kind} {text!r} cannot be loaded, because"
    try:
        imported = own_files.imported(module) if of_file else import_module(module)
        found = hasattr(imported, name)  # a module may have a __getattr__
    except own_files.NoFile as error:
        raise ConfigError(
            f"{cannot} {error}; give the path of a file, as from the folder of run.toml."
        ) from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        cure = "fix it" if of_file else "put its folder on PYTHONPATH, or fix it"
        raise ConfigError(
            f"{cannot} {module} cannot be imported ({_where(error, module)}{reason(error)}); "
            f"{cure}."
        ) from error
    if not found:
        near = difflib.get_close_matches(name, dir(imported), n=1)
        cure = f"did you mean {near[0]}?" if near else "give the name of one that it has."
        raise ConfigError(f"{cannot} {module} has no {name}; {cure}")
    return getattr(imported, name)


def _where(error: BaseException, path: str) -> str:
    """The last line of a file that was run when the error was raised, in words; empty for another
    module."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f"line {lines[-1]}: " if lines else ""


def importing() -> bool:
    """True while this thread imports the module of a setting: what that starts would start in each
    process that imports it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not load_named.__code__:
        frame = frame.f_back
    return frame is not None


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


def module_and_name(text: str) -> tuple[str, str] | None:
    """Module and name of `module:name`, path and name of `./file.py:name`; None for any other text.

    >>> module_and_name("my.rewards:judge"), module_and_name("/a/rewards.py:judge")
    (('my.rewards', 'judge'), ('/a/rewards.py', 'judge'))
    """
    if of_file := own_files.split(text):
        return of_file
    module, _, name = text.partition(":")
    whole = all(part.isidentifier() for part in (*module.split("."), name))
    return (module, name) if whole else None


def without_folder(text: str) -> str:
    """A name for reasons and metrics, which hold no path.

    >>> without_folder("/home/me/filters.py:Hard"), without_folder("zero_variance")
    ('filters.py:Hard', 'zero_variance')
    """
    return text.rpartition("/")[2] if module_and_name(text) else text


def file_stem(text: str) -> str:
    """The name, without its end, of the file in which the object called `text` probably is.

    >>> file_stem("my.rewards:judge"), file_stem("/a/rewards.py:judge"), file_stem("rewards.py:f")
    ('rewards', 'rewards', 'rewards')
    """
    module, _ = module_and_name(text) or (text, "")
    return module.removesuffix(".py").replace("/", ".").rpartition(".")[2]
