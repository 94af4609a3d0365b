"""Parameters and examples of which `make test` tries some, and CI all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def some(values: Iterable[Any], one_in: int = 3) -> list[Any]:
    """The values, of which the first of each `one_in` is for `make test`, too. The boundary comes
    first, and never the neutral value: what forgets a setting is right there.

    >>> [value if isinstance(value, str) else value.values for value in some("abcd")]
    ['a', ('b',), ('c',), 'd']
    """
    return [
        pytest.param(value, marks=pytest.mark.explore) if number % one_in else value
        for number, value in enumerate(values)
    ]


IN_CI = 40
"""Examples of a property in CI, by the profile (tests/conftest.py)."""


def drawn(number: int) -> int:
    """Examples of a property that needs so many in CI: `make test` draws the share of them that it
    draws of any property, others each time.

    >>> drawn(200) in (200, 200 * settings().max_examples // IN_CI)
    True
    """
    return number * min(settings().max_examples, IN_CI) // IN_CI
