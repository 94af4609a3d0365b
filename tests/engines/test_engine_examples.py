"""Examples in docstrings run, and every public class of the protocol has one."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest

from asyncrl.config import engines, plugins
from asyncrl.engines import options, protocol

MODULES = (protocol, options, engines, plugins)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_say_what_happens(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def test_every_class_of_the_protocol_has_an_example() -> None:
    classes = [
        found
        for name, found in vars(protocol).items()
        if inspect.isclass(found) and found.__module__ == protocol.__name__ and name[0] != "_"
    ]
    assert {found.__name__ for found in classes} == {
        "Request",
        "Chunk",
        "Engine",
        "AveragingEngine",
        "CanaryEngine",
        "DirectEngine",
    }
    assert all(">>> " in (found.__doc__ or "") for found in classes)
