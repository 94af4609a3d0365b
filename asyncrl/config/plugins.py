"""Settings that name code: something of asyncrl's by its name, or a user's own by `module:name`.

A setting with the mark `Named` in its type is such a setting. The module is imported where the
object is first asked for, in each process that asks; so it must be importable there (PYTHONPATH).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from asyncrl.config.errors import ConfigError


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


def load_named(text: str, kind: str, registry: Mapping[str, str] | None = None) -> Any:
    """The object called `text`: `module:name`, or a key of `registry`, whose value is one. `kind`
    ("engine", "correction", …) is what a person calls it. Raises ConfigError.

    >>> load_named("math:pi", "number")
    3.141592653589793
    >>> load_named("tau", "number", {"tau": "math:tau"})
    6.283185307179586
    """
    parts = _split((registry or {}).get(text, text))
    if parts is None:
        known = "".join(f"{name}, " for name in registry or {})
        raise ConfigError(
            f"{text!r} names no {kind}: give {known}or the module:name of one of your own."
        )
    module, name = parts
    try:
        imported = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"the {kind} {text!r} cannot be had, because {module} cannot be imported "
            f"({type(error).__name__}: {error}); put its folder on PYTHONPATH, or mend it."
        ) from error
    if not hasattr(imported, name):
        raise ConfigError(
            f"the {kind} {text!r} cannot be had, because {module} has no {name}; give the name of "
            "one that it has."
        )
    return getattr(imported, name)


def _split(text: str) -> tuple[str, str] | None:
    """Module and name of `module:name`; None for any other text."""
    module, _, name = text.partition(":")
    whole = all(part.isidentifier() for part in (*module.split("."), name))
    return (module, name) if whole else None
