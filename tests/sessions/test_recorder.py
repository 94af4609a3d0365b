"""Sessions: what is sampled leaves in exactly one finished session, in whatever way it ends; bounds
are refusals by name."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sessions_world import Samples, check, ids, tokens

from asyncrl.experience.call_tree import Sampled
from asyncrl.sessions.finished import FinishedSession
from asyncrl.sessions.recorder import (
    Bounds,
    Recorder,
    RunningCall,
    SessionEnded,
    SessionFull,
    TooManySessions,
    UnknownSession,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
NOTHING = Sampled(b"", b"", (), "interrupted")
BOUNDS = Bounds(sessions=3, calls=6, tokens=60, idle_s=10.0)


class Sessions(RuleBasedStateMachine):
    """Agents that open, go on, run several calls at a time, end, vanish, and come back too late."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder, self.now = Recorder(BOUNDS), 0.0
        self.samples: dict[str, Samples] = {}
        self.unused: dict[str, int] = {}
        self.paths: dict[str, list[list[int]]] = {}
        self.running: list[tuple[str, RunningCall, list[int]]] = []
        self.fetched: list[FinishedSession] = []

    @rule(
        name=NAMES,
        new=st.lists(st.integers(0, 2), min_size=1, max_size=4),
        on=st.booleans(),
        cut=st.integers(0, 20),
    )
    def begin(self, name: str, new: list[int], on: bool, cut: int) -> None:
        context = [*(self.paths[name][-1][:cut] if on and self.paths.get(name) else []), *new]
        try:
            call = self.recorder.begin(name, ids(context), 4)
        except (SessionEnded, SessionFull, TooManySessions):
            return
        self.samples.setdefault(name, Samples())
        self.unused.setdefault(name, 0)
        self.paths.setdefault(name, [])
        self.running.append((name, call, context))

    @rule(
        which=st.integers(0, 20),
        sampled=st.lists(st.integers(0, 2), max_size=4),
        unused=st.integers(0, 3),
    )
    def finish(self, which: int, sampled: list[int], unused: int) -> None:
        if self.running:
            name, call, context = self.running.pop(which % len(self.running))
            sample = self.samples[name](context, sampled, 0)
            self.recorder.finish(call, msgspec.structs.replace(sample, unused=unused), self.now)
            self.unused[name] += unused
            self.paths[name].append([*context, *sampled])

    @rule(name=NAMES, reward=st.floats(allow_nan=False, allow_infinity=False) | st.none())
    def end(self, name: str, reward: float | None) -> None:
        open_before = self.recorder.open
        try:
            self.recorder.end(name, "given_up" if reward is None else "rewarded", reward)
        except (UnknownSession, SessionEnded):
            assert self.recorder.open == open_before

    @rule(seconds=st.floats(0, 15))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.recorder.expire(self.now)
        assert self.recorder.due is None or self.recorder.due > self.now

    @rule()
    def fetch(self) -> None:
        while self.recorder.finished:
            finished = self.recorder.finished.popleft()
            self.fetched.append(finished)
            made = self.samples.pop(finished.session).made
            check(list(finished.leaves), made)
            assert finished.sampled == len(made) == sum(leaf.trained for leaf in finished.leaves)
            assert finished.unused == self.unused.pop(finished.session)
            assert (
                sum(finished.meetings.values())
                == finished.calls
                == len(self.paths.pop(finished.session))
            )
            assert (finished.reward is not None) == (finished.end == "rewarded")
            assert (
                msgspec.msgpack.decode(msgspec.msgpack.encode(finished), type=FinishedSession)
                == finished
            )

    @invariant()
    def bounded(self) -> None:
        assert self.recorder.open + len(self.recorder.finished) <= BOUNDS.sessions

    def teardown(self) -> None:
        self.recorder.drain()
        while self.running:
            self.finish(0, [1], 1)
        assert self.recorder.open == 0 and self.recorder.due is None
        self.fetch()
        assert not self.samples


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


def once(
    recorder: Recorder, name: str, context: list[int], sampled: list[int], now: float = 0.0
) -> None:
    recorder.finish(
        recorder.begin(name, ids(context), len(sampled)), Samples()(context, sampled, 0), now
    )


def test_bounds_are_refusals_by_name() -> None:
    recorder = Recorder(Bounds(sessions=2, calls=2, tokens=10))
    with pytest.raises(SessionFull, match="lower max_tokens"):
        recorder.begin("a", ids([1, 2]), 9)
    assert recorder.open == 0
    once(recorder, "a", [1, 2], [3, 4])
    once(recorder, "a", [1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    with pytest.raises(SessionFull, match="has had 2 calls"):
        recorder.begin("a", ids([1]), 1)
    once(recorder, "b", [1], [2])
    with pytest.raises(TooManySessions):
        recorder.begin("c", ids([1]), 1)
    recorder.end("b", "rewarded", 1.0)
    with pytest.raises(TooManySessions):
        recorder.begin("c", ids([1]), 1)  # nobody has fetched b
    recorder.finished.popleft()
    once(recorder, "c", [1], [2])


def test_sequences_are_bounded() -> None:
    """Count what calls share for each sequence: so it is in memory and on disk."""
    recorder = Recorder(Bounds(sequence_tokens=30, all_tokens=40))
    shared = [*range(9)]
    once(recorder, "a", [*shared, 10], [1])
    once(recorder, "a", [*shared, 10, 1, 2], [3])
    once(recorder, "a", [*shared, 11], [1])
    with pytest.raises(SessionFull, match="have 24 tokens, and 11 more"):
        recorder.begin("a", ids([*shared, 12]), 1)
    once(recorder, "b", shared, [1])
    with pytest.raises(TooManySessions, match="have 34 tokens, and 11 more"):
        recorder.begin("c", ids([*shared, 1]), 1)
    recorder.end("a", "rewarded", 1.0)
    assert sum(len(leaf.mask) for leaf in recorder.finished[0].leaves) == 24
    with pytest.raises(TooManySessions):
        recorder.begin("c", ids([*shared, 1]), 1)  # nobody has fetched a
    recorder.finished.popleft()
    once(recorder, "c", [*shared, 1], [1])


def test_running_calls_hold_their_room() -> None:
    recorder = Recorder(Bounds(tokens=10))
    call = recorder.begin("a", ids([1]), 6)
    with pytest.raises(SessionFull):
        recorder.begin("a", ids([2]), 3)
    recorder.finish(call, NOTHING, 0.0)
    recorder.begin("a", ids([2]), 8)


def test_an_idle_session_expires_and_a_late_call_is_told() -> None:
    recorder = Recorder(Bounds(idle_s=10.0))
    once(recorder, "a", [1], [2], now=0.0)
    once(recorder, "b", [1], [2], now=5.0)
    running = recorder.begin("c", ids([1]), 1)
    recorder.expire(10.0)
    assert [(f.session, f.end, f.reward) for f in recorder.finished] == [("a", "expired", None)]
    assert recorder.due == 15.0
    with pytest.raises(SessionEnded, match="idle for 10 s"):
        recorder.begin("a", ids([1]), 1)
    recorder.expire(1000.0)
    assert [f.session for f in recorder.finished] == ["a", "b"], (
        "one with a running call is not idle"
    )
    recorder.finish(running, NOTHING, 1000.0)
    assert recorder.due == 1010.0


def test_a_reward_waits_for_running_calls_and_is_given_once() -> None:
    recorder = Recorder(Bounds())
    with pytest.raises(UnknownSession):
        recorder.end("a", "rewarded", 1.0)
    call = recorder.begin("a", ids([1]), 2)
    recorder.end("a", "rewarded", 0.5)
    assert not recorder.finished
    with pytest.raises(SessionEnded, match="it was rewarded"):
        recorder.end("a", "rewarded", 1.0)
    with pytest.raises(SessionEnded):
        recorder.begin("a", ids([1]), 2)
    recorder.finish(call, Samples()([1], [7, 8], 3), 0.0)
    (finished,) = recorder.finished
    assert (finished.reward, finished.sampled, tokens(finished.leaves[0].ids)) == (
        0.5,
        2,
        [1, 7, 8],
    )
    with pytest.raises(SessionEnded):
        recorder.end("a", "given_up")


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None])
def test_a_reward_is_finite(reward: float | None) -> None:
    recorder = Recorder(Bounds())
    once(recorder, "a", [1], [2])
    with pytest.raises(ValueError, match="finite"):
        recorder.end("a", "rewarded", reward)
    assert recorder.open == 1


def test_known_text_has_the_tokens_that_were_sampled() -> None:
    recorder = Recorder(Bounds())
    assert recorder.known("a", b"hi") == (0, b"")
    context = [1, 2]
    call = recorder.begin("a", ids(context), 2)
    texts = [(b"hi:", 2), (b"hi:yo$", 4), (b"hi:yo", 3)]
    recorder.finish(call, Samples()(context, [77, 9], 0), 0.0, texts)
    assert recorder.known("a", b"hi:yo$more") == (6, ids([1, 2, 77, 9]))
    assert recorder.known("a", b"hi:yo, and more") == (5, ids([1, 2, 77]))
    assert recorder.known("a", b"hi:no") == (3, ids([1, 2]))
    assert recorder.known("a", b"hi") == (0, b"")
    assert recorder.known("b", b"hi:yo$") == (0, b"")
    again = recorder.begin("a", ids(context), 2)
    recorder.finish(again, Samples()(context, [7, 8, 9], 0), 0.0, [(b"hi:", 2), (b"hi:yo$", 5)])
    assert recorder.known("a", b"hi:yo$") == (6, ids([1, 2, 7, 8, 9])), "the latest of one text"
