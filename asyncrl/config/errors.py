"""The error of a run that cannot start as configured."""

from __future__ import annotations

from asyncrl.escape import escaped

BAD_INPUT = 2
"""Exit status of a command whose input is wrong, and of an actor that was the first to see it."""


def installs(extra: str) -> str:
    """The commands that install an extra.

    >>> installs("lora")
    "run `make extras` in a clone, or pip install 'asyncrl[lora]'"
    """
    return f"run `make extras` in a clone, or pip install 'asyncrl[{extra}]'"


class ConfigError(Exception):
    """The run cannot start as configured. Its text is one sentence on one printable line: where,
    what is wrong, what is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(escaped(text))
