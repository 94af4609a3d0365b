"""Examples in the heart's docstrings run, and say what happens."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from asyncrl.algorithms.selection import prompt_history
from asyncrl.experience import audit, experience, ledger, micro_batches, sequence, steps


@pytest.mark.parametrize(
    "module",
    (audit, experience, prompt_history, ledger, micro_batches, sequence, steps),
    ids=lambda module: module.__name__,
)
def test_the_examples_say_what_happens(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted and not done.failed
