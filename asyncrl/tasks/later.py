"""Rewards that are waited for: those of verifiers that are `async` functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

Loop = Literal["asyncio", "trio"]
"""The library under which an `async` function runs."""


class Later(NamedTuple):
    """A reward to wait for. `finish` makes the task's reward of what the function returns, and may
    raise what a verifier may.

    >>> async def half() -> float:
    ...     return 0.5
    >>> import asyncio
    >>> later = Later(half(), lambda returned: 2 * returned, "asyncio")
    >>> later.finish(asyncio.run(later.returned))
    1.0
    """

    returned: Awaitable[Any]
    finish: Callable[[Any], Any]
    loop: Loop


def loop_of(verifier: Callable[..., Any]) -> Loop | None:
    """The library under which a verifier runs: asyncio, unless its module imports trio. None if it
    is no `async` function.

    >>> loop_of(len) is None
    True
    """
    verifier = inspect.unwrap(verifier)
    called = type(verifier).__call__
    if not (inspect.iscoroutinefunction(verifier) or inspect.iscoroutinefunction(called)):
        return None
    module = sys.modules.get(getattr(verifier, "__module__", ""), None)
    imported = (
        (value for value in vars(module).values() if isinstance(value, ModuleType))
        if module
        else ()
    )
    return "trio" if any(one.__name__.split(".")[0] == "trio" for one in imported) else "asyncio"
