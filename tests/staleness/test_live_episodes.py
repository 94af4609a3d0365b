"""As many episodes may be live as engines can use, whatever the unit of time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from asyncrl.staleness.live_episodes import HEADROOM, LEAST, MEMORY, LiveEpisodes

SECONDS = st.floats(1e-3, 1e4)
Interval = tuple[float, int, int, bool]
"""Seconds, agents with the ball, slots that decode, and whether a call ends after them."""
INTERVALS = st.lists(
    st.tuples(SECONDS, st.integers(0, 500), st.integers(0, 32), st.booleans()), max_size=60
)


def lived(intervals: Sequence[Interval], slots: int = 16, unit: float = 1.0) -> LiveEpisodes:
    live, now = LiveEpisodes(), 0.0
    for seconds, thinking, decoding, ends in intervals:
        live.observe(now, thinking, decoding)
        now += seconds * unit
        live.observe(now, 0, 0)
        if ends:
            live.ended(slots)
    return live


def test_before_a_call_has_ended_each_slot_has_an_episode() -> None:
    assert LiveEpisodes().most(32) == 32 and LiveEpisodes().most(0) == 0
    assert lived([(100.0, 32, 0, False), (5.0, 31, 1, False)]).most(32) == 32


def test_where_agents_are_as_quick_as_can_be_there_is_the_headroom() -> None:
    quick = lived([(10.0, 0, 16, True)] * 16)
    assert (quick.ratio, quick.most(16)) == (0.0, HEADROOM * 16)


@given(st.integers(0, 400), st.integers(1, 64), SECONDS, st.integers(1, 64))
def test_a_steady_ratio_is_found_to_the_bit_of_the_formula(
    thinking: int, decoding: int, seconds: float, slots: int
) -> None:
    live = lived([(seconds, thinking, decoding, True)] * slots, slots)
    needed = HEADROOM * slots * (1 + thinking / decoding)
    assert abs(live.most(slots) - needed) <= 1 + 1e-9 * needed


@given(INTERVALS, st.integers(1, 32))
def test_the_ratio_is_that_of_the_decayed_seconds(intervals: list[Interval], slots: int) -> None:
    kept = 1 - 1 / max(LEAST, MEMORY * slots)
    calls = [sum(ends for *_, ends in intervals[n:]) for n in range(len(intervals))]
    weights = [math.exp(number * math.log(kept)) for number in calls]
    thought = math.fsum(w * s * a for w, (s, a, _, _) in zip(weights, intervals, strict=True))
    decoded = math.fsum(w * s * d for w, (s, _, d, _) in zip(weights, intervals, strict=True))
    live = lived(intervals, slots)
    if not (decoded and any(ends for *_, ends in intervals)):
        assert live.ratio == 0
    else:
        assert math.isclose(live.ratio, thought / decoded, rel_tol=1e-9, abs_tol=1e-12)


@given(INTERVALS, st.sampled_from([2.0**-10, 2.0**10]))
def test_it_is_the_same_in_any_unit_of_time(intervals: list[Interval], unit: float) -> None:
    # powers of two, and times that are sums of the same seconds
    one, other = lived(intervals), lived(intervals, unit=unit)
    assert one.most(16) == other.most(16)


@given(INTERVALS, st.integers(0, 59))
def test_an_agent_that_hangs_is_one_episode_more_and_not_its_seconds(
    intervals: list[Interval], place: int
) -> None:
    """One tool that hangs through all of a run, with every slot at work, takes one episode's place,
    and as much of the headroom."""
    busy = [(seconds, thinking, 16, ends) for seconds, thinking, _, ends in intervals]
    hung = [(seconds, thinking + 1, 16, ends) for seconds, thinking, _, ends in busy]
    assert 0 <= lived(hung).most(16) - lived(busy).most(16) <= math.ceil(HEADROOM)


@given(INTERVALS, st.data())
def test_slower_agents_never_have_fewer_episodes(
    intervals: list[Interval], data: st.DataObject
) -> None:
    assume(intervals)
    place = data.draw(st.integers(0, len(intervals) - 1))
    slower = list(intervals)
    seconds, thinking, decoding, ends = slower[place]
    slower[place] = seconds, thinking + 1, decoding, ends
    assert lived(slower).ratio >= lived(intervals).ratio


def test_what_was_slow_is_forgotten_after_some_calls_of_each_slot() -> None:
    slow, quick = [(10.0, 320, 16, True)] * 500, [(10.0, 16, 16, True)]
    assert lived(slow).most(16) > 400
    assert lived(slow + 10 * MEMORY * 16 * quick).most(16) <= 41
