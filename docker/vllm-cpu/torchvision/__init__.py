"""A stand-in for torchvision, which has no build for processors on PyPI. vLLM's Qwen3.5 and others
import it for pictures, and serve text without it. Invariant: any name can be imported, and none can
be used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.28.0+stand.in"


class Absent(type):
    """A class of torchvision that is not there; so are its attributes."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name, (), {})

    def __call__(cls, *_: object, **__: object) -> Any:
        raise ImportError("torchvision is a stand-in here: this server processes no pictures")


class Finder(MetaPathFinder, Loader):
    """Every module below torchvision."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("torchvision."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        """Have it created as any."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = __getattr__


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(name, (), {})


sys.meta_path.append(Finder())
