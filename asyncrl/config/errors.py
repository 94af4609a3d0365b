"""The error for a run that cannot start as configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from asyncrl.escape import escaped

BAD_INPUT = 2
"""Exit status of a command whose input is wrong, and of an actor that detected it first."""
DISK_NOT_READY = 74
"""Exit status of an actor whose disk took nothing more (EX_IOERR of sysexits.h): another start of
it would meet the same disk."""


def installs(extra: str) -> str:
    """The commands that install an extra.

    >>> installs("lora")
    "run `make extras` in a clone, or pip install 'asyncrl[lora]'"
    """
    return f"run `make extras` in a clone, or pip install 'asyncrl[{extra}]'"


class ConfigError(Exception):
    """The run cannot start as configured. Its text is one sentence on one printable line: the
    source, the error, and what is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(escaped(text))


@contextmanager
def usable(path: Path, used: Literal["read", "written"]) -> Iterator[None]:
    """Raise ConfigError where a system does not let a file be read, or written, in the block."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be {used} ({error.strerror}).") from None


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
