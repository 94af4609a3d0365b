"""Examples in the docstrings of tasks, algorithms, staleness and conditions run, and every public
class of them has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import asyncrl.algorithms
import asyncrl.explain.conditions
import asyncrl.staleness
import asyncrl.tasks
import asyncrl.training.packing

PACKAGES = (asyncrl.algorithms, asyncrl.tasks, asyncrl.staleness, asyncrl.explain.conditions)


ROOT = Path(__file__).parents[1]


def folder(package: ModuleType) -> str:
    """The package's own folder: its `__path__` may have that of its tests too, which bears its
    name."""
    return str(ROOT / package.__name__.replace(".", "/"))


def modules() -> list[ModuleType]:
    names = [
        info.name
        for package in PACKAGES
        for info in pkgutil.walk_packages([folder(package)], f"{package.__name__}.")
    ]
    return [
        *PACKAGES,
        *map(importlib.import_module, names),
        asyncrl.training.packing,
    ]


MODULES = modules()


def public_classes(module: ModuleType) -> list[type]:
    return [
        found
        for name, found in vars(module).items()
        if inspect.isclass(found) and found.__module__ == module.__name__ and name[0] != "_"
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_say_what_happens(module: ModuleType) -> None:
    assert not doctest.testmod(module).failed


def test_every_public_class_has_an_example() -> None:
    """Of an exception, what raises it has."""
    classes = [
        found
        for module in MODULES
        for found in public_classes(module)
        if not issubclass(found, Exception)
    ]
    assert len(classes) > 50
    assert not [found for found in classes if ">>> " not in (found.__doc__ or "")]
