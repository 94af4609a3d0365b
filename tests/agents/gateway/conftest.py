"""Virtual time at the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

_T = TypeVar("_T")


@pytest.fixture
def virtual(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """A clock that jumps where every task waits. It would jump while a thread works, too: so
    threads work at once."""

    async def at_once(function: Callable[..., _T], *given: Any, **_: Any) -> _T:
        await trio.lowlevel.checkpoint()
        return function(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return autojump_clock
