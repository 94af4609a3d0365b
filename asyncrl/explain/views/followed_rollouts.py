"""`asyncrl rollouts --follow`: rollouts as they end, until nobody runs the run any more.

The end of the journal is read once a second, as far back as the first of those that are new needs.
The run does not know of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import trio

from asyncrl.config.paths import exists
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.newest_rollouts import newest_ended
from asyncrl.explain.views.rollout_records import (
    LAST,
    RolloutRecord,
    Wanted,
    record,
)
from asyncrl.explain.views.run_texts import Note, run_texts
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.explain.views.top import EVERY_S, goes_on
from asyncrl.runtime.run_dir import JOURNAL


def follow(
    files: RunFiles, wanted: Wanted, show: Callable[[RolloutRecord], None], note: Note
) -> None:
    """Show records of rollouts until the run is over, as `followed`. Raises ConfigError."""
    texts = run_texts(files, note)
    trio.run(followed, files.path, wanted, lambda seen: show(record(seen, texts)))


async def followed(
    run: Path,
    wanted: Wanted,
    show: Callable[[SeenRollout], None],
    now: Callable[[], float] = time.time,
) -> None:
    """Show the `wanted.last` newest rollouts that fit (LAST where that is None), and then each that
    ends, the oldest first, until the run is over. `now` is in seconds since 1970. Raises
    ConfigError for what is no run any more."""
    after: int | None = None
    while True:
        files = RunFiles(run)
        status = files.last_status
        alive = goes_on(files, max(0.0, now() - status.at) if status is not None else 0.0)
        before = after
        if exists(run / JOURNAL) or not alive:
            after = _show_new(files, wanted, after, show)
        over = status is not None and status.ok is not None
        if not alive or (over and after == before):
            return
        await trio.sleep(EVERY_S)


def _show_new(
    files: RunFiles, wanted: Wanted, after: int | None, show: Callable[[SeenRollout], None]
) -> int:
    """Show what ended after event `after`; returns the number of the last event."""
    most = (LAST if wanted.last is None else wanted.last) if after is None else None
    with files.journal() as history:
        forgotten = history.forgotten
        last = next((number for number, _ in history.backward(forgotten)), forgotten)
        found = list[SeenRollout]()
        for _, seen in newest_ended(history, forgotten, after or 0):
            if len(found) == most:
                break
            if wanted.fits(seen):
                found.append(seen)
    for seen in reversed(found):
        show(seen)
    return max(last, after or 0)
