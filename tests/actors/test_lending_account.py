"""The seconds of lending, against a second account of them: those that the trainer waited for each
step, those that were lent, and those of a loan that were used and that it cost. Several engines are
lent, each in a state of its own."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.decisions import LoanEnded
from asyncrl.actors.coordinator.lending_choice import MARGIN, RECENT, LendingChoice, Loan
from asyncrl.actors.coordinator.lent_engines import LentEngines
from asyncrl.config import Config, load

OWN = 2
LENT = _, CAME = "rollout-2", "rollout-3"
"""The second one has just come, and is open as any engine."""


def configured(own: int, lent: int) -> Config:
    actors = f"rollout.actors={own + lent}"
    return load(None, [actors, f"rollout.lent_actors={lent}", "rollout.lending=switch"], {})


class Spy(LendingChoice):
    """A choice that is always the same, and keeps what it was told."""

    def __init__(self, worth: bool) -> None:
        super().__init__(1.0)
        self.worth, self.waits, self.loans = worth, list[float](), list[Loan]()

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def lent(self, loan: Loan) -> None:
        self.loans.append(loan)


class Engine(NamedTuple):
    """A lent engine at a look. `holds` names the split of the work that it holds, `streamed` the
    seconds before the look at which it streamed; both may be missing."""

    connected: bool = True
    able: bool = True
    draining: bool = False
    holds: str = ""
    streamed: float | None = None


class Pool:
    """Engines, some of them lent, as far as lending knows them."""

    def __init__(self) -> None:
        self.own = OWN
        self.lent: dict[str, Any] = {}
        self._handles = {name: SimpleNamespace(name=name, closed=name != CAME) for name in LENT}

    def __len__(self) -> int:
        return self.own + len(self.lent)

    def get(self, name: str) -> Any:
        return self.lent.get(name)

    def open(self, engine: Any) -> None:
        assert engine.closed
        engine.closed = False

    def close(self, engine: Any) -> None:
        assert not engine.closed
        engine.closed = True

    def be(self, engines: tuple[Engine, ...], own: int) -> None:
        self.own = own
        self.lent = {}
        for (name, handle), one in zip(self._handles.items(), engines, strict=True):
            handle.version = 0 if one.able else None
            handle.draining = one.draining
            held: dict[str, set[int]] = {"train": set(), "evaluation": set()}
            if one.holds:
                held[one.holds] = {1}
            handle.held = held
            if one.connected:
                self.lent[name] = handle


class Tick(NamedTuple):
    """Seconds until a look, and what is true then: the trainer is idle, it made a version, and its
    own engines are connected."""

    seconds: float
    idle: bool
    makes: bool = False
    own: int = OWN
    engines: tuple[Engine, ...] = (Engine(), Engine())


MOSTLY = st.sampled_from([True, True, True, False])
ENGINES = st.builds(
    Engine,
    connected=MOSTLY,
    able=MOSTLY,
    draining=MOSTLY.map(lambda most: not most),
    holds=st.sampled_from(["", "", "train", "evaluation"]),
    streamed=st.sampled_from([None, 0.0, 0.25, 0.375]),
)
TICKS = st.lists(
    st.builds(
        Tick,
        seconds=st.sampled_from([1.0, 0.5, 7.0]),
        idle=st.booleans(),
        makes=st.booleans(),
        own=st.sampled_from([OWN, OWN, 1, 0]),
        engines=st.tuples(ENGINES, ENGINES),
    ),
    min_size=4,
    max_size=24,
)
BOTH = Engine(holds="train", streamed=0.25), Engine(holds="evaluation", streamed=0.375)
SECOND = Engine(), Engine(holds="evaluation", streamed=0.25)
FIRST_GONE = Engine(connected=False), Engine(holds="train")
LONG = [
    Tick(1.0, True),
    Tick(2.0, True, engines=(Engine(able=False, holds="train"), Engine(holds="train"))),
    Tick(4.0, True, engines=BOTH),
    Tick(8.0, True, engines=BOTH),
    Tick(16.0, False, engines=SECOND),
    Tick(32.0, False),
    Tick(1.0, False, True),
    Tick(2.0, True, own=0, engines=FIRST_GONE),
    Tick(4.0, False, own=0),
    Tick(8.0, True, engines=SECOND),
    Tick(16.0, True, True, engines=SECOND),
    Tick(4.0, True, engines=(Engine(draining=True), Engine(able=False))),
    Tick(32.0, False, True),
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
        configured(OWN, len(LENT)),
    )
    lending._choice = spy = Spy(worth)
    now, version, ended = 0.0, 0, list[float]()
    was_idle, idle_s, waits = False, 0.0, list[float]()
    began: float | None = None  # of a loan; its first token and its end
    first: float | None = None
    end: float | None = None
    loans, lent_s, begun = list[Loan](), 0.0, 0
    closed, drains = {name: name != CAME for name in LENT}, Counter[str]()
    for seconds, idle, makes, own, engines in ticks:
        before, now = now, now + seconds
        for name, one in zip(LENT, engines, strict=True):
            if one.connected and one.streamed is not None:
                streamed[name] = now - one.streamed
        version += makes
        pool.be(engines, own)
        decisions = lending.pump(idle, version, now)
        ended += [decision.seconds for decision in decisions if isinstance(decision, LoanEnded)]
        # the second account
        here = {name: one for name, one in zip(LENT, engines, strict=True) if one.connected}
        lendable = idle and any(one.able and not one.draining for one in here.values())
        idle_s += seconds if was_idle else 0.0
        was_idle = idle
        if makes:
            waits.append(idle_s)
            idle_s = 0.0
        if began is not None and end is None:
            since = [streamed[name] for name in here if streamed.get(name, 0.0) > began]
            if first is None and since:
                first = min(since)
            lent_s += now - before
            if not lendable:
                end = now
                assert ended[-1] == pytest.approx(end - began)
        elif began is not None and end is not None and not any(o.holds for o in here.values()):
            used = first if first is not None else end
            loans.append(Loan(used - began, end - used, now - end))
            began = first = end = None
        if lendable and (worth or not own) and (began is None or end is not None):
            began, first, end, begun = now, None, None, begun + 1
        is_open = began is not None and end is None
        for name in here:
            drains[name] += not is_open and not closed[name]
            closed[name] = not is_open
            assert pool.lent[name].closed == closed[name]
        status = lending.status(now)
        assert status is not None
        assert status.lent == is_open
        assert lending.whole_step == (
            is_open or (worth and any(one.able and not one.draining for one in here.values()))
        )
        assert status.loans == begun and status.seconds == pytest.approx(lent_s)
        assert spy.waits == pytest.approx(waits)
        assert spy.loans == [pytest.approx(loan) for loan in loans]
        assert sum(ended) == pytest.approx(lent_s if not is_open else lent_s - (now - began))  # type: ignore[operator]
        assert drained == drains


@pytest.mark.parametrize(("own", "lent"), [(1, 3), (4, 1), (2, 2)])
def test_waits_are_shortened_by_the_share_that_is_lent(own: int, lent: int) -> None:
    pool: Any = Pool()
    choice = LentEngines(pool, pool, pool, configured(own, lent))._choice
    for _ in range(RECENT):
        choice.lent(Loan(1.0, 0.0, 1.0))
    enough_s = MARGIN * 2.0 * (own + lent) / own
    for wait_s, worth in ((enough_s * 0.99, False), (enough_s * 1.01, True)):
        assert not choice.worth
        for _ in range(RECENT):
            choice.waited(wait_s)
        assert choice.worth == worth
