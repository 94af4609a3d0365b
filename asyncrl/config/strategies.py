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

RESUME = ", and resume the run"


class StrategyError(ConfigError):
    """A strategy that raised, or that returned what it may not, in a run.

    >>> StrategyError("the sizing 'a:B' is odd; correct it, and resume the run.").before_a_run
    ConfigError("the sizing 'a:B' is odd; correct it.")
    """

    @property
    def before_a_run(self) -> ConfigError:
        """The same, where no run has begun."""
        return ConfigError(str(self).replace(RESUME, ""))


@contextmanager
def blamed(kind: str, name: str) -> Iterator[None]:
    """Raise what the strategy `name` of this `kind` raises as a StrategyError of one sentence, but
    for what a machine lacks. The line is the last one of its own file, or of any; there is none
    where asyncrl refuses what a user's strategy returned. `name` may be several, with commas.

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
        last, said = (own or frames)[-1], reason(error)
        if not own and ":" in name and _refused(error):
            _, _, why = said.partition(": ")
            raise StrategyError(
                f"the {kind} {name!r} returns what it may not: {why}; correct it{RESUME}."
            ) from error
        raise StrategyError(
            f"the {kind} {name!r} failed in {Path(last.filename).name}, line {last.lineno} "
            f"({said}{_names(error)}); correct it{RESUME}."
        ) from error


def unknown_name(error: BaseException | None) -> bool:
    """True if a strategy asked a thing of asyncrl's for something that it never has.

    >>> unknown_name(AttributeError(name="best", obj=3))
    False
    """
    asked = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    return type(asked).__module__.startswith("asyncrl.")


def _refused(error: Exception) -> bool:
    """True if asyncrl itself raised a ValueError."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else str(at.tb_frame.f_globals.get("__name__"))
    return isinstance(error, ValueError) and module.startswith("asyncrl.")


def _names(error: Exception) -> str:
    """The names of a thing of asyncrl's, where a strategy asked it for something else.

    >>> from asyncrl.algorithms.selection.growth import GrowingGroup
    >>> try:
    ...     GrowingGroup(4, []).answers
    ... except AttributeError as error:
    ...     print(_names(error))
    ; it has members, prompt, rewards, size, solved
    """
    if not unknown_name(error):
        return ""
    asked: object = getattr(error, "obj", None)
    of_tuple = {*dir(tuple)} if isinstance(asked, tuple) else set[str]()
    names = [name for name in dir(asked) if name[0] != "_" and name not in of_tuple]
    return f"; it has {', '.join(names)}"
