"""A run ends early by the one reason for which nothing ever succeeded, where that cannot pass."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.common_failure import (
    ANSWERS,
    BURST,
    EPISODES,
    GROUPS,
    KINDS,
    LOG_S,
    MOST,
    OUTSIDE_S,
    CommonFailure,
    FailureLimits,
)
from asyncrl.messages import NoVerdict, Scored, Split, Verdict
from asyncrl.runtime.reasons import cause_of, same

PROGRAM = "raised: TypeError: judge() takes 3 positional arguments but 2 were given"
DATA = "raised: AttributeError: 'NoneType' object has no attribute 'group'"
OUTSIDE = "raised: ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (PROGRAM, "program"),
        ("not a number: coroutine", "program"),
        ("not a number: dict", "program"),
        ("raised: ModuleNotFoundError: No module named 'grader'", "program"),
        ("exit: exit code 1: ModuleNotFoundError: No module named 'tool'", "program"),
        ("not a number: NoneType", "data"),
        ("raised: TypeError: int() argument must be a string, not 'NoneType'", "data"),
        (DATA, "data"),
        ("raised: ValueError: could not convert string to float: 'x'", "data"),
        (OUTSIDE, "outside"),
        ("raised: APIConnectionError: Connection error.", "outside"),
        ("raised: ReadTimeout: ", "outside"),
        ("raised: InternalServerError: Error code: 502", "outside"),
        ("timeout", "outside"),
        ("crashed", "outside"),
        ("http://h:1 refused request 7: 503", "outside"),
        ("asyncrl.weightsync.buckets.PlanMismatch: tensor 24 is lm_head", "program"),
        ("torch.OutOfMemoryError: CUDA out of memory", "outside"),
        ("RuntimeError: can't start new thread", "outside"),
    ],
)
def test_what_a_reason_speaks_of(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_what_differs_by_chance_is_the_same_reason() -> None:
    a = "raised: E: http://127.0.0.1:4123/sessions/ab12cd34 gave 500 at 0x7f (/tmp/tmpq1/x.py)"
    b = "raised: E: http://127.0.0.1:5555/sessions/99ffee00 gave 502 at 0x1b (/tmp/tmpz9/x.py)"
    assert same(a) == same(b)
    assert same("raised: KeyError: 'a'") != same("raised: KeyError: 'b'")


def after(limits: FailureLimits, text: str, failures: int, now: float) -> bool:
    """True if this many failures of many groups end a run at `now`."""
    counted = CommonFailure(limits)
    for number in range(failures):
        counted.failure(text, number, 0.0)
    return counted.hopeless(now) is not None


@pytest.mark.parametrize("limits", [ANSWERS, EPISODES])
def test_a_reason_ends_a_run_exactly_when_it_cannot_pass(limits: FailureLimits) -> None:
    assert not after(limits, PROGRAM, limits.program - 1, 1e9)
    assert after(limits, PROGRAM, limits.program, 0.0)
    assert not after(limits, DATA, limits.data - 1, 1e9)
    assert after(limits, DATA, limits.data, limits.data_s)
    assert not limits.data_s or not after(limits, DATA, 10**4, limits.data_s - 1)
    assert not after(limits, OUTSIDE, 10**4, OUTSIDE_S - 1)
    assert after(limits, OUTSIDE, limits.program, OUTSIDE_S)


@given(st.lists(st.sampled_from([PROGRAM, DATA, OUTSIDE, ""]), max_size=300), st.booleans())
def test_no_success_and_one_reason_of_several_groups(said: list[str], before: bool) -> None:
    """The empty text stands for a success."""
    counted = CommonFailure(ANSWERS, succeeded_before=before)
    for number, text in enumerate(said):
        if text:
            counted.failure(text, number // 4, float(number))
        else:
            counted.success()
    failures = [text for text in said if text]
    assert counted.attempts == len(said) and sum(counted.counts.values()) == len(failures)
    if (reason := counted.hopeless(float(len(said)))) is not None:
        assert not before and "" not in said
        assert failures.count(reason.text) == reason.times >= MOST * len(failures)
        assert len({number // 4 for number in range(len(said))}) >= GROUPS


def test_a_reason_is_common_if_nearly_all_failures_have_it() -> None:
    counted = CommonFailure(ANSWERS)
    for number in range(1000):
        counted.failure(PROGRAM if number % 2 else DATA, number, 0.0)
    assert counted.common() is None and counted.hopeless(1e9) is None
    for number in range(10_000):
        counted.failure(PROGRAM, number, 0.0)
    assert (reason := counted.hopeless(0.0)) is not None and reason.times == 10_500
    assert counted.common() == reason


def test_what_a_reason_quotes_of_the_data_makes_no_other_one() -> None:
    """Each attempt fails at a word of its own, and all are told."""
    counted = CommonFailure(EPISODES)
    for number in range(EPISODES.data):
        word = chr(97 + number)
        counted.failure(f"raised: ValueError: invalid literal for int(): '{word}'", number, 0.0)
    assert len(counted.counts) == EPISODES.data
    assert (reason := counted.hopeless(EPISODES.data_s)) is not None
    assert reason == (f"raised: ValueError: invalid literal for int(): '{word}'", EPISODES.data)


def test_one_prompt_alone_ends_nothing() -> None:
    counted = CommonFailure(ANSWERS)
    for _ in range(1000):
        counted.failure(PROGRAM, 7, 0.0)
    assert counted.hopeless(1e9) is None


def test_logs_and_memory_are_bounded() -> None:
    counted, logged = CommonFailure(ANSWERS), 0
    for number in range(20_000):
        text = f"raised: ValueError: {'x' * (number % 500)}"
        logged += counted.failure(text, number, number / 1000)
    assert len(counted.counts) <= KINDS + 1 and sum(counted.counts.values()) == 20_000
    assert BURST <= logged <= BURST + 20 / LOG_S + 1


def failing(reason: str, until_s: float = 1e9) -> ScriptedWorld:
    """A run whose verifier gives no verdict in its first seconds."""

    def judge(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        if trio.current_time() < until_s:
            return NoVerdict(reason)
        return Scored(float(len(ids) // 4 % 3))

    world = ScriptedWorld(configured(train={"steps": 6, "eval_every": 0}))
    world.verifiers = ScriptedVerifiers(judge, 0.05)
    return world


@pytest.mark.parametrize(
    ("reason", "most"), [(PROGRAM, 16 + 64), (DATA, 128 + 64), ("not a number: coroutine", 80)]
)
async def test_a_verifier_that_always_fails_ends_the_run_by_its_own_sentence(
    reason: str, most: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = failing(reason)
    outcome = await world.run()
    world.check()
    assert not outcome.ok
    assert outcome.reason.startswith(reason.removeprefix("raised: ") + " (all of the first ")
    assert "task.verifier" in outcome.reason and "task.curriculum" not in outcome.reason
    assert world.store.experience.ledger.rollouts.total <= most
    summary = world.coordinator_summary(outcome)
    assert summary.verdicts.without == summary.verdicts.answers > 0
    assert list(summary.verdicts.reasons) == [reason]


@pytest.mark.explore
async def test_a_server_of_the_verifier_may_be_away_for_minutes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = failing(OUTSIDE, OUTSIDE_S - 10)
    outcome = await world.run()
    assert outcome.ok, outcome.reason
    assert world.store.experience.ledger.rollouts.discarded["k_min"] < 1000, "one at a time"
    world = failing(OUTSIDE)
    began = trio.current_time()
    outcome = await world.run()
    assert not outcome.ok and "Connection refused" in outcome.reason
    assert OUTSIDE_S <= trio.current_time() - began < 2 * OUTSIDE_S
