"""reasoning-gym, as far as wheels are published for it. Invariant: `sys.modules` keeps no module
that is not a real one.

reasoning-gym imports three packages that few of its data sets use and that exist as source alone.
Locks have no such packages. So during its import a stand-in replaces each one that is not
installed, and `lacking` names the data sets that need it.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

__all__ = ["DATASETS", "create_dataset", "extract_answer", "lacking"]

_SOURCE_ONLY = {
    "cellpylib": {"game_of_life", "game_of_life_halting"},
    "pycosat": {"zebra_puzzles"},
    "zss": {"codeio"},
}
"""Packages without wheels, and the data sets that use each."""


class _Absent(ModuleType):
    """A package that is not installed."""

    def __getattr__(self, name: str) -> object:
        raise ModuleNotFoundError(f"No module named {self.__name__!r}", name=self.__name__)


_ABSENT = {name for name in _SOURCE_ONLY if importlib.util.find_spec(name) is None}
sys.modules.update({name: _Absent(name) for name in _ABSENT})
try:
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import extract_answer
finally:
    for _name in _ABSENT:
        del sys.modules[_name]


def lacking(name: str) -> str | None:
    """The package that the data set `name` needs and that is not installed, if there is one."""
    return next((each for each in _ABSENT if name in _SOURCE_ONLY[each]), None)
