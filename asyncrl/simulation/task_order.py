"""Order of tasks. Invariant: inside `replayable(seed)` trio draws the order of tasks from the
seed, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def replayable(seed: int) -> Iterator[None]:
    """Make every `trio.run` inside the block shuffle its runnable tasks as `seed` says; afterwards
    trio is as it was.

    trio has no public gateway to this; hypothesis-trio and pytest-trio use the same one.
    """
    scheduler = trio._core._run
    allowed, state = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc]
        scheduler._r.setstate(state)
