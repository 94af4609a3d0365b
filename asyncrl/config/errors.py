"""The error for a run that cannot start as configured."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from asyncrl.escape import CUT, SENTENCE, escaped
from asyncrl.os_errors import machine_lacks, remedy, to_read

BAD_INPUT = 2
"""Exit status of a command whose input is wrong, and of an actor that detected it first."""
DISK_NOT_READY = 74
"""Exit status of an actor whose disk took nothing more (EX_IOERR of sysexits.h): another start of
it would meet the same disk."""
UV_TOOL = Path(sys.prefix, "uv-receipt.toml")
"""A file that `uv tool install` leaves in its environment, which has no pip."""


def installs(extra: str) -> str:
    """The command that installs an extra beside this installation. It needs no index that has
    asyncrl: pip knows the extras of what is installed, and `uv tool` is told its source.

    >>> installs("lora")
    "run `make extras` in a clone, or pip install 'asyncrl[lora]'"
    """
    if UV_TOOL.exists():
        return f"run uv tool install 'asyncrl[{extra}]{_source()}'"
    return f"run `make extras` in a clone, or pip install 'asyncrl[{extra}]'"


def _source() -> str:
    """The end of a requirement that says what asyncrl was installed from; empty for an index."""
    try:
        origin = json.loads(distribution("asyncrl").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    if not (url := origin.get("url")):
        return ""
    version_control = origin.get("vcs_info", {}).get("vcs")
    return f" @ {version_control}+{url}" if version_control else f" @ {url}"


class InputError(Exception):
    """The input of a process cannot be used: settings, a model, a task. Another try with the same
    fails the same way, so an actor that ends by it is not started again; unless the machine lacked
    something when it was read."""


def input_error(error: BaseException) -> InputError | None:
    """The first InputError in an error, which may be a group of them; None if there is none, or if
    a machine that lacks something is behind it.

    >>> input_error(ExceptionGroup("", [ValueError(), ExceptionGroup("", [ConfigError("no")])]))
    ConfigError('no')
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(input_error, error.exceptions)), None)
    return error if isinstance(error, InputError) and not machine_lacks(error) else None


class ConfigError(InputError):
    """The run cannot start as configured. Its text is one sentence on one printable line: the
    source, the error, and what is allowed. A long one loses its middle: the reason stands at its
    end.

    >>> str(ConfigError(f"{'a' * 5000}: cannot be read (File name too long)."))[-41:]
    'aaa: cannot be read (File name too long).'
    """

    def __init__(self, text: str) -> None:
        if len(text) > SENTENCE // 2:
            half = SENTENCE // 4
            text = f"{text[:half]}{CUT}{text[-half:]}"
        super().__init__(escaped(text))

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows: what is wrong is in the sentence, and not in ours."""
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def usable(path: Path, used: Literal["read", "written"]) -> Iterator[None]:
    """Raise ConfigError where a system does not let a file be read, or written, in the block."""
    try:
        yield
    except OSError as error:
        todo = remedy(error) if used == "written" else to_read(error)
        raise ConfigError(f"{path}: cannot be {used} ({error.strerror}); {todo}.") from None


class ContradictionError(ConfigError):
    """Settings that contradict each other: `values` are their values in words, by key; `remedy` is
    the end of the sentence."""

    def __init__(
        self, values: Mapping[str, str], remedy: str, sources: Mapping[str, str] | None = None
    ) -> None:
        """`sources` are the sources of settings; the others are defaults. None: unknown."""
        self.values, self.remedy = values, remedy
        contradiction = " and ".join(
            f"{key} is {value}"
            + ("" if sources is None else f" ({sources.get(key, 'the default')})")
            for key, value in values.items()
        )
        super().__init__(f"{contradiction}: {remedy}.")
