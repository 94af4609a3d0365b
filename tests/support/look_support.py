"""Directories of runs, made of points, settings and a status, to be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.explain import run_status
from asyncrl.explain.curve import EvaluationPoint, Point, StepPoint, line_of
from asyncrl.explain.run_status import RunStatus
from asyncrl.journal import SqliteDisk
from asyncrl.journal.disk import EventRows, Keep, Write
from asyncrl.messages import Scored
from asyncrl.runtime.run_dir import JOURNAL, METRICS, RUN_TOML, STATUS

HOSTILE = "\x1b[2J</style><script>alert(1)</script><img src=x onerror=y>\u202e\x00\r\n'\"&amp;"
"""Text that clears a terminal, runs a script, leaves a style and turns the direction of writing."""


def step(version: int, **changes: Any) -> StepPoint:
    """The point of a step that took a second, of 100 generated and 40 trained tokens."""
    settings: dict[str, Any] = {
        "version": version,
        "at": 1e9 + version,
        "seconds": 10.0 + version,
        "step_seconds": 0.5,
        "reward": version / 100,
        "trained": 40,
        "discarded": {"stale": 10},
        "lag_mean": 0.5,
        "lag_max": version % 3,
        "metrics": {"entropy": 1.0 / version, "k3": None},
        "alarms": [],
        "generated": 100 * version,
        "generated_per_s": 10.0,
        "trained_per_s": 9.0,
        "queue_rollouts": 3,
        "queue_bytes": 999,
        "idle_trainer": 0.25,
        "idle_rollout": None,
        "pause_seconds": 0.25,
    }
    return StepPoint(**(settings | changes))


def evaluation(version: int, accuracy: float) -> EvaluationPoint:
    return EvaluationPoint(version=version, at=1e9, seconds=10.5 + version, accuracy=accuracy)


def make_run(
    run: Path, points: Iterable[Point] = (), toml: str = "", status: RunStatus | None = None
) -> Path:
    """Make the directory of a run that nobody runs."""
    run.mkdir(parents=True)
    (run / RUN_TOML).write_text(toml)
    (run / METRICS).write_bytes(b"".join(map(line_of, points)))
    if status is not None:
        run_status.write(status, run / STATUS)
    return run


def status(**changes: Any) -> RunStatus:
    """A run that trains: 12 of 100 steps."""
    settings: dict[str, Any] = {
        "at": 1e9,
        "seconds": 500.0,
        "phase": "run",
        "step": 12,
        "steps": 100,
        "committed": 12,
        "token_s": 0.1,
        "verdict_s": 0.5,
        "step_s": 2.0,
        "stall_s": 300.0,
        "report_s": 1.0,
        "window_s": 10.0,
        "idle": {"trainer": {"command": 0.5}, "rollout": {"requests": 0.25}},
        "generated_per_s": 1234.0,
        "trained_per_s": 1200.0,
        "actors": [],
        "waits": [],
        "publication": None,
        "evaluating": None,
        "rollouts": {"leased": 16},
        "groups": run_status.GroupCounts(),
        "awaited": [],
        "lease_p95_s": 4.0,
        "lease_deadline_s": 30.0,
        "pump_s": 0.001,
        "tokens": run_status.TokenTotals(),
        "ledger": run_status.RolloutTotals(),
        "journal": run_status.JournalStatus(),
        "restarts": {},
    }
    return RunStatus(**(settings | changes))


def ids_of(text: str) -> bytes:
    """Token ids of the bundled tokenizer's characters."""
    return np.array([*map(ord, text)], "<i4").tobytes()


def life(
    group: int,
    *,
    text: str = "42",
    reward: float = 1.0,
    finish: str = "stop",
    prompt: int = 7,
    version: int = 0,
    end: bool = True,
) -> list[e.AnyEvent]:
    """The life of a training group of one rollout, of the same number, which answers `text` and is
    filtered at the `end`."""
    ids = ids_of(text)
    events: list[e.AnyEvent] = [
        e.Admitted(group, group, 1, "train", prompt, ids_of("6 * 7"), 9999),
        e.Leased(group, "rollout-0", 1),
        e.Extended(group, 1, version, 0, ids, ids),
        e.Sealed(group, 1, finish),  # type: ignore[arg-type]
        e.Judged(group, Scored(reward)),
    ]
    return [*events, e.Discarded(group, "zero_variance")] if end else events


def rows(events: Sequence[e.AnyEvent], first: int = 1) -> EventRows:
    """Events from number `first` as a row of a journal."""
    return EventRows(first, len(events), msgspec.msgpack.encode(events))


def kept(experience: Experience, number: int, version: int = 0) -> Keep:
    """The snapshot of a state after event `number`."""
    return Keep(number, version, msgspec.msgpack.encode(experience.snapshot()))


def make_journal(run: Path, *parts: Sequence[e.AnyEvent] | Write) -> None:
    """Write a run's journal: events, one row after the other, and what else is committed."""
    trio.run(write_journal, run, *parts)


async def write_journal(run: Path, *parts: Sequence[e.AnyEvent] | Write) -> None:
    """As `make_journal`, where trio runs already."""
    first, writes = 1, list[Write]()
    for part in parts:
        if isinstance(part, Sequence):
            writes.append(rows(part, first))
            first += len(part)
        else:
            writes.append(part)
    disk = await SqliteDisk.open(run / JOURNAL, "run")
    await disk.commit(writes)
    await disk.aclose()
