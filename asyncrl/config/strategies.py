"""Failures of strategies in the middle of a run. Invariant: whatever a strategy raises ends the run
like bad input, with its name, its file and its line; the journal has all before it, so a resume
with the right file goes on there.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import file_stem, reason
from asyncrl.os_errors import machine_lacks


class StrategyError(ConfigError):
    """A strategy that raised, or that returned what it may not."""


@contextmanager
def blamed(kind: str, name: str) -> Iterator[None]:
    """Raise what the strategy `name` of this `kind` raises as a StrategyError of one sentence, but
    for what a machine lacks. The line is the last one of its own file, or of any. `name` may be
    several, with commas.

    >>> try:
    ...     with blamed("sizing", "mine:Half"):
    ...         1 / 0
    ... except StrategyError as error:
    ...     print(str(error).rpartition("(")[2])
    ZeroDivisionError: division by zero); correct it, and resume the run.
    """
    try:
        yield
    except StrategyError:
        raise
    except Exception as error:  # a user's strategy may raise anything
        if machine_lacks(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        files = {file_stem(one) for one in name.split(", ")}
        own = [frame for frame in frames if Path(frame.filename).stem in files]
        last = (own or frames)[-1]
        raise StrategyError(
            f"the {kind} {name!r} failed in {Path(last.filename).name}, line {last.lineno} "
            f"({reason(error)}{_names(error)}); correct it, and resume the run."
        ) from error


def _names(error: Exception) -> str:
    """The names of a thing of asyncrl's, where a strategy asked it for something else.

    >>> from asyncrl.algorithms.selection.growth import GrowingGroup
    >>> try:
    ...     GrowingGroup(4, []).answers
    ... except AttributeError as error:
    ...     print(_names(error))
    ; it has members, prompt, rewards, size, solved
    """
    asked = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    if not type(asked).__module__.startswith("asyncrl."):
        return ""
    names = [name for name in dir(asked) if name[0] != "_" and not hasattr(tuple, name)]
    return f"; it has {', '.join(names)}"
