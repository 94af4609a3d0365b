"""The seconds of lending, against a second account of them: those that the trainer waited for each
step, those that were lent, and those of a loan that were used and that it cost."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.decisions import LoanEnded
from asyncrl.actors.coordinator.lending_choice import LendingChoice, Loan
from asyncrl.actors.coordinator.lent_engines import LentEngines
from asyncrl.config import load

OWN, LENT = "rollout-0", "rollout-1"
CONFIG = load(None, ["rollout.actors=2", "rollout.lent_actors=1", "rollout.lending=switch"], {})


class Spy(LendingChoice):
    """A choice that is always the same, and keeps what it was told."""

    def __init__(self, worth: bool) -> None:
        super().__init__(1.0)
        self.worth, self.waits, self.loans = worth, list[float](), list[Loan]()

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def lent(self, loan: Loan) -> None:
        self.loans.append(loan)


class Pool:
    """Two engines, one of them lent, as far as lending knows them."""

    def __init__(self) -> None:
        self.lent = SimpleNamespace(
            name=LENT, version=0, draining=False, closed=True, held={"train": set[int]()}
        )

    def __len__(self) -> int:
        return 2

    def get(self, name: str) -> Any:
        return self.lent if name == LENT else None

    def open(self, engine: Any) -> None:
        engine.closed = False

    def close(self, engine: Any) -> None:
        engine.closed = True


Tick = tuple[float, bool, bool, bool, bool]
"""Seconds until a look, and what is true then: the trainer is idle, it made a version, the lent
engine holds work, and it has streamed since the last look."""
FLAGS = (st.booleans(), st.booleans(), st.booleans(), st.booleans())
TICKS = st.lists(st.tuples(st.sampled_from([1.0, 0.5, 7.0]), *FLAGS), min_size=4, max_size=24)
LONG: list[Tick] = [
    (1.0, True, False, False, False),
    (2.0, True, False, True, False),
    (4.0, True, False, True, True),
    (8.0, True, False, True, True),
    (16.0, False, False, True, False),
    (32.0, False, False, False, False),
    (1.0, False, True, False, False),
    (2.0, True, False, False, False),
    (4.0, False, False, False, False),
    (8.0, True, False, True, False),
    (16.0, True, True, True, False),
    (32.0, False, True, False, False),
]


@example(ticks=LONG, worth=True)
@example(ticks=LONG, worth=False)
@given(ticks=TICKS, worth=st.booleans())
def test_its_seconds_are_those_of_a_second_account(ticks: list[Tick], worth: bool) -> None:
    pool, streamed, drained = Pool(), dict[str, float](), Counter[str]()
    lending = LentEngines(
        pool,  # type: ignore[arg-type]
        SimpleNamespace(drain=lambda engine: drained.update([engine.name])),  # type: ignore[arg-type]
        SimpleNamespace(streamed=streamed),  # type: ignore[arg-type]
        CONFIG,
    )
    lending._choice = spy = Spy(worth)
    now, version, ended = 0.0, 0, list[float]()
    was_idle, idle_s, waits = False, 0.0, list[float]()
    began: float | None = None  # of a loan; its first token and its end
    first: float | None = None
    end: float | None = None
    loans, lent_s, begun = list[Loan](), 0.0, 0
    for seconds, idle, makes, holds, streams in ticks:
        before, now = now, now + seconds
        if streams:
            streamed[LENT] = now - seconds / 2
        version += makes
        pool.lent.held["train"] = {1} if holds else set()
        decisions = lending.pump(idle, version, now)
        ended += [decision.seconds for decision in decisions if isinstance(decision, LoanEnded)]
        # the second account
        idle_s += seconds if was_idle else 0.0
        was_idle = idle
        if makes:
            waits.append(idle_s)
            idle_s = 0.0
        if began is not None and end is None:
            if first is None and streams and now - seconds / 2 > began:
                first = now - seconds / 2
            lent_s += now - before
            if not idle:
                end = now
        elif began is not None and end is not None and not holds:
            used = first if first is not None else end
            loans.append(Loan(used - began, end - used, now - end))
            began = first = end = None
        if idle and worth and (began is None or end is not None):
            began, first, end, begun = now, None, None, begun + 1
        status = lending.status(now)
        assert status is not None
        assert status.lent == (began is not None and end is None) == (not pool.lent.closed)
        assert status.loans == begun and status.seconds == pytest.approx(lent_s)
        assert spy.waits == pytest.approx(waits)
        assert spy.loans == [pytest.approx(loan) for loan in loans]
        assert sum(ended) == pytest.approx(lent_s if not status.lent else lent_s - (now - began))  # type: ignore[operator]
    assert drained.total() == begun - (not pool.lent.closed)
