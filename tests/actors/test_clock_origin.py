"""Parts that are told the time: what they say follows from the seconds that pass, and not from when
a clock began. A run's clock begins at 0, and so an absolute time looks like seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.agent_failures import AgentFailures
from asyncrl.actors.coordinator.common_failure import (
    ANSWERS,
    EPISODES,
    OUTSIDE_S,
    CommonFailure,
    FailureLimits,
)
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.lifecycle import Lifecycle
from asyncrl.actors.coordinator.underway import Found, Underway
from asyncrl.config.schema import SupervisionConfig

Look = tuple[str, float]
"""An act, and the seconds that pass with it."""
OUTSIDE = "raised: ConnectionRefusedError: [Errno 111] Connection refused"
DATA = "raised: AttributeError: 'NoneType' object has no attribute 'group'"


def failures(limits: FailureLimits) -> Callable[[list[Look], float], Iterator[object]]:
    def run(looks: list[Look], now: float) -> Iterator[object]:
        counted = CommonFailure(limits)
        for number in range(limits.program):  # enough to be common
            counted.failure(OUTSIDE, number, now)
        for number, (what, seconds) in enumerate(looks):
            now += seconds
            if what in "ab":
                yield counted.failure(DATA if what == "b" else OUTSIDE, number, now)
            yield counted.hopeless(now), counted.may_pass(now)
            for groups in (-1, 0, 3):
                started = counted.paced(groups, now, 8)
                assert started <= groups or not started, "no more than there is room for"
                yield started

    return run


def agents(looks: list[Look], now: float) -> Iterator[object]:
    counted = AgentFailures()
    for what, seconds in looks:
        now += seconds
        counted.begins(now) if what == "b" else counted.failed("it raised", now)
        yield counted.delays(now), counted.until - now, counted.since - now


def leases(looks: list[Look], now: float) -> Iterator[object]:
    table = LeaseTable(30.0)
    for number, (what, seconds) in enumerate(looks):
        if what == "a":
            table.give(number, 1, 0, now)
        elif what == "b":
            table.back(number - 1)
            table.times.took(seconds)
        now += seconds
        oldest = [(rollout, now - lease.since) for rollout, lease in table.oldest(9)]
        yield table.over(now), oldest, table.times.deadline_s


def life(looks: list[Look], now: float) -> Iterator[object]:
    lifecycle = Lifecycle(["rollout-0", "trainer-0"], SupervisionConfig(), now)
    came, last = iter(lifecycle.expected), now
    for what, seconds in looks:
        now += seconds
        if what == "a":
            lifecycle.came(next(came, "rollout-0"), now)
        elif what == "b":
            lifecycle.published(now)
        else:
            last = now
        yield lifecycle.phase, lifecycle.deadline(last) - now, lifecycle.late(last, now)


def underway(looks: list[Look], now: float) -> Iterator[object]:
    seen = Underway()
    for number, (what, seconds) in enumerate(looks):
        now += seconds
        of = 10 * (what == "b")
        seen.look([] if what == "c" else [Found("saving", "saving", min(number, of), of)], now)
        yield [*seen.shown]


@example(looks=[("c", OUTSIDE_S / 2), ("a", OUTSIDE_S / 2)])
@example(looks=[("a", 8.0), ("c", 8.0), ("a", 8.0), ("a", 8.0)])
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0, 8.0, 64.0, 512.0])),
        max_size=12,
    )
)
@pytest.mark.parametrize(
    "part", [failures(ANSWERS), failures(EPISODES), agents, leases, life, underway]
)
def test_what_it_says_is_the_same_whenever_the_clock_began(
    part: Callable[[list[Look], float], Iterator[object]], looks: list[Look]
) -> None:
    said = list(part(looks, 0.0))
    for origin in (1.0, 4096.0):
        assert list(part(looks, origin)) == said
