"""Alarms: their subject, their beginning and end, and the second one of a kind, against a recount
that has every step, every evaluation and every answer in lists."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, variance
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.collect_summary import judged_answers
from asyncrl.actors.coordinator.common_failure import ANSWERS, CommonFailure
from asyncrl.actors.coordinator.outside_alarms import OutsideAlarms
from asyncrl.actors.coordinator.step_alarms import StepAlarms
from asyncrl.config import load
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.curve import Curve, EvaluationPoint, StepPoint

CONFIG = load(None, ["staleness.correction=icepop,top_entropy"], {})
"""A run with a correction that leaves tokens out by design."""
REASONS = ("the verifier raised in row", "no verdict after", "the pool ended with")
"""Each is said with a number, which differs from one to the next."""


class Logged(logging.Handler):
    """Keeps the sentences that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    handler, logger = Logged(), logging.getLogger("asyncrl.actors.coordinator")
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


class Step(NamedTuple):
    """The facts of one step: its k3; responses and the share of them that was cut; tokens trained,
    stale and left out by design; answers judged before it, at several times, and the reasons of
    those without a verdict."""

    k3: float
    responses: int
    cut: float
    tokens: tuple[int, int, int]
    judged: list[tuple[int, list[str]]]


def around(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


STEPS = st.lists(
    st.builds(
        Step,
        k3=around(0.01, 0.1, 0.5),
        responses=st.sampled_from([7, 8, 64]),
        cut=around(0.0, 0.5, 0.9),
        tokens=st.sampled_from([(100, 0, 0), (100, 100, 0), (100, 101, 0), (100, 30, 500)]),
        judged=st.lists(
            st.tuples(
                st.sampled_from([1, 7, 8, 30]), st.lists(st.sampled_from(REASONS), max_size=4)
            ),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=12,
)
WELL = Step(0.01, 64, 0.0, (100, 0, 0), [])
BAD = Step(0.5, 64, 0.9, (100, 101, 0), [(30, [REASONS[0]] * 4)])


@example([BAD, WELL, WELL, BAD, BAD._replace(judged=[]), BAD._replace(judged=[(8, [REASONS[1]])])])
@given(STEPS)
def test_an_alarm_is_about_its_own_step_and_each_time_that_it_begins_is_said(
    steps: list[Step],
) -> None:
    alarms, known = StepAlarms(CONFIG), CommonFailure(ANSWERS)
    raised, expected_log = list[set[str]](), list[str]()
    with logged() as lines:
        for version, step in enumerate(steps, 1):
            for well, failed in step.judged:
                known.succeeded += well
                for at, reason in enumerate(failed):
                    known.failure(f"{reason} {version}{at}", 0, 0.0)
                alarms.judged(judged_answers(known))
            trained, stale, meant = step.tokens
            discarded = {"stale": stale, "top_entropy": meant}
            figures = {"responses": float(step.responses), "truncated": step.cut, "reward": 0.5}
            alarms.look(version, trained, discarded, {"k3": step.k3}, figures, Curve())

            failures = [reason for _, failed in step.judged for reason in failed]
            answers = sum(well for well, _ in step.judged) + len(failures)
            now = {
                "divergence": step.k3 > 0.1,
                "masked_stale": stale > trained,
                "no_verdict": answers >= 8 and len(failures) / answers > 0.1,
                "never_ends": step.responses >= 8 and step.cut > 0.5,
            }
            before = raised[-1] if raised else set[str]()
            raised.append({name for name, holds in now.items() if holds})
            found = {alarm.name: alarm.sentence for alarm in alarms.last}
            assert set(found) == raised[-1]
            if "no_verdict" in found:
                share = f"{len(failures) / answers:.0%} of the answers got no verdict"
                assert found["no_verdict"].startswith(share)
                [said] = [
                    one for one in REASONS if f"reason: {one} {version}" in found["no_verdict"]
                ]
                assert failures.count(said) == max(map(failures.count, REASONS))
            if "masked_stale" in found:
                assert f"{stale / (trained + stale):.0%} of the step's" in found["masked_stale"]
            times = Counter(name for names in raised for name in names)
            assert {name: one.steps for name, one in alarms.all.items()} == times
            assert all(alarms.all[name].last == sentence for name, sentence in found.items())
            expected_log += [
                f"alarm {name} in the step that made version {version}: {found[name]}"
                for name in now
                if name in raised[-1] - before
            ]
    assert sorted(lines) == sorted(expected_log)


class Run(NamedTuple):
    """A run of `steps`, evaluated each `every`, which is known `late` steps after: the rewards rise
    at some evaluations or fall, with a noise, and so do accuracies."""

    steps: int
    every: int
    late: int
    rises: list[float]
    noise: float
    accuracies: list[float]
    again: int


RUNS = st.builds(
    Run,
    steps=st.integers(20, 90),
    every=st.sampled_from([5, 6, 7, 16, 17, 40]),
    late=st.integers(0, 24),
    rises=st.lists(st.sampled_from([0.0, 0.2, 0.2, -0.1]), min_size=20, max_size=20),
    noise=st.sampled_from([0.01, 0.1]),
    accuracies=st.lists(st.sampled_from([0.1, 0.5, 0.52, 0.9]), min_size=20, max_size=20),
    again=st.integers(0, 5),
)


@example(Run(90, 40, 24, [0.2] * 20, 0.01, [0.9, 0.1, 0.1, 0.1] * 5, 3))
@example(Run(60, 7, 3, [0.2] * 20, 0.01, [0.9, 0.5, 0.1, 0.1] * 5, 5))
@example(Run(83, 16, 0, [0.2] * 20, 0.01, [0.9, 0.9, 0.9, 0.9, 0.9, 0.1] * 4, 5))
@example(Run(40, 16, 0, [0.2] * 20, 0.1, [0.5, 0.9, 0.1, 0.1] * 5, 0))
@given(RUNS)
def test_the_reward_is_compared_over_the_same_windows_whatever_is_forgotten(run: Run) -> None:
    """A long run holds few rewards, and a step that is made again knows of none after it."""
    rewards = {0: 0.0}
    for version in range(1, run.steps + 1):
        rise = run.rises[(version - 1) // run.every % 20] / run.every
        rewards[version] = rewards[version - 1] + rise
    del rewards[0]
    for version in rewards:  # one that no average over a window takes out
        rewards[version] += run.noise * math.sin(version * version)
    alarms, curve, accuracy = StepAlarms(CONFIG), Curve(), dict[int, float]()

    def look(version: int) -> None:
        figures = {"responses": 8.0, "reward": rewards[version]}
        alarms.look(version, 100, {}, {}, figures, curve)
        known = {at: share for at, share in accuracy.items() if at <= version}
        expected = compared({at: rewards[at] for at in range(1, version + 1)}, known, 256)
        found = [alarm.sentence for alarm in alarms.last]
        assert len(found) == (expected is not None), (version, expected, found)
        assert not expected or expected in found[0], (version, expected)
        curve.add(step_point(version, rewards[version]))

    for version in range(1, run.steps + 1):
        look(version)
        known_at = version - run.late
        if known_at >= 0 and known_at % run.every == 0:
            accuracy[known_at] = run.accuracies[known_at // run.every % 20]
            curve.add(evaluation_point(known_at, accuracy[known_at]))
    for version in range(run.steps + 1 - run.again, run.steps + 1):
        if all(at <= version for at in accuracy):
            look(version)
            continue
        alarms.look(version, 100, {}, {}, {"responses": 8.0, "reward": rewards[version]}, curve)
        later = [at for at in accuracy if at > version]
        assert not any(f" to {at} " in one.sentence for one in alarms.last for at in later)


def compared(rewards: dict[int, float], accuracy: dict[int, float], prompts: int) -> str | None:
    """The versions and means that the alarm names; None where it is not raised."""
    *earlier, last = sorted(accuracy) or [0]
    if not earlier:
        return None
    best = sorted(earlier, key=lambda at: (accuracy[at], at))[-1]
    size = 8 if last - best >= 16 else (last - best) // 2
    then, now = ([rewards[at + k] for k in range(1, size + 1)] for at in (best, last - size))
    if size < 3:
        return None
    fall, rise = accuracy[best] - accuracy[last], fmean(now) - fmean(then)
    chance = sum(p * (1 - p) / prompts for p in (accuracy[best], accuracy[last]))
    if fall <= 0 or rise <= 0 or fall**2 <= 4 * chance:
        return None
    if rise**2 <= 4 * (variance(then) + variance(now)) / size:
        return None
    return (
        f"from version {best} to {last} the mean reward went from {fmean(then):.3g} to "
        f"{fmean(now):.3g} and"
    )


def step_point(version: int, reward: float) -> StepPoint:
    numbers = ("at", "seconds", "step_seconds", "generated_per_s", "trained_per_s")
    counts = ("trained", "lag_max", "generated", "queue_rollouts", "queue_bytes")
    none = ("lag_mean", "idle_trainer", "idle_rollout", "pause_seconds")
    rest = dict.fromkeys(numbers, 0.0) | dict.fromkeys(counts, 0) | dict.fromkeys(none)
    return StepPoint(
        version=version,
        reward=reward,
        discarded={},
        metrics={},
        alarms=[],
        **rest,  # type: ignore[arg-type]
    )


def evaluation_point(version: int, accuracy: float) -> EvaluationPoint:
    return EvaluationPoint(
        version=version, at=0.0, seconds=0.0, accuracy=accuracy, asked=256, prompts=300
    )


DISK = st.tuples(
    st.integers(0, 3), st.sampled_from(["no room", "no right"]), st.sampled_from(["", "full"])
)


@example([(1, "no room", ""), (1, "no room", ""), (0, "", ""), (1, "no room", "full")])
@given(st.lists(DISK, max_size=12))
def test_a_disk_says_what_is_new_and_what_is_over(looks: list[tuple[int, str, str]]) -> None:
    alarms, before = OutsideAlarms(), dict[str, str]()
    news, expected_log = Counter[str](), list[str]()
    with logged() as lines:
        for unwritten, why, journal_why in looks:
            facts = RunFacts(unwritten=unwritten, unwritten_why=why, journal_why=journal_why)
            now = dict(findings(facts))
            assert set(now) == {
                name
                for name, holds in (
                    ("checkpoint_unwritten", unwritten > 0),
                    ("journal_waits", journal_why != ""),
                )
                if holds
            }
            assert alarms.look(facts) is (now != before)
            new = [name for name, sentence in now.items() if before.get(name) != sentence]
            news.update(new)
            expected_log += [f"alarm {name}: {now[name]}" for name in new]
            expected_log += [f"alarm {name} is over" for name in before if name not in now]
            assert dict(alarms.last) == now
            assert {name: one.steps for name, one in alarms.all.items()} == news
            assert all(alarms.all[name].last == sentence for name, sentence in now.items())
            before = now
    assert sorted(lines) == sorted(expected_log)
