"""The outlook of a warm-up: what its learning curve against time says within a minute."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.bundled.outlook import ADVICE, AFTER_S, Lesson, ended, outlook, progress

STEPS, ENOUGH = 600, 0.3


def curve(
    nats: Callable[[int], float], accuracy: Callable[[int], float], pace_s: float, steps: int
) -> list[Lesson]:
    return [
        Lesson(step, step * pace_s, nats(step), accuracy(step), 1.0) for step in range(1, steps + 1)
    ]


def unlearnable(step: int) -> float:
    """Nats of an answer of four tokens of which the model learns the alphabet alone."""
    return 9.0 + 13.0 * math.exp(-step / 15)


def learned(step: int) -> float:
    """Nats of an answer that the model learns in a few hundred steps."""
    return 22.0 * math.exp(-step / 100)


def rising(step: int) -> float:
    return max(0.0, (step - 150) / 500)


def never(step: int) -> float:
    return 0.0


def test_a_warm_up_that_cannot_reach_its_accuracy_is_stuck_within_a_minute() -> None:
    """At the pace of a loaded laptop: a step in a fifth of a second."""
    for seconds in range(46, 60):
        lessons = curve(unlearnable, never, 0.2, seconds * 5)
        found = outlook(lessons, steps=STEPS, enough=ENOUGH)
        assert found is not None and found.verdict == "stuck"


@pytest.mark.parametrize("pace_s", [0.05, 0.2, 0.8])
def test_one_that_learns_is_never_stuck(pace_s: float) -> None:
    for steps in range(1, 300, 7):
        lessons = curve(learned, rising, pace_s, steps)
        found = outlook(lessons, steps=STEPS, enough=ENOUGH)
        assert found is None or found.verdict != "stuck", steps


def test_one_whose_answers_come_right_has_the_seconds_to_its_accuracy() -> None:
    """Accuracy rises by 1/500 a step, so that 0.3 comes 150 steps after the first right one."""
    lessons = curve(learned, rising, 0.5, 250)
    found = outlook(lessons, steps=STEPS, enough=ENOUGH)
    assert found is not None and found.verdict == "coming"
    assert found.left_s == pytest.approx(25.0, rel=0.3)


def test_one_that_takes_minutes_without_a_right_answer_is_slow_within_a_minute() -> None:
    """Long prompts: a step a second, so that 600 take ten minutes."""
    lessons = curve(learned, never, 1.0, 50)
    found = outlook(lessons, steps=STEPS, enough=ENOUGH)
    assert found is not None and (found.verdict, found.left_s) == ("slow", 550.0)


@pytest.mark.parametrize("pace_s", [0.01, 1.0])
def test_nothing_is_said_too_early(pace_s: float) -> None:
    for steps in range(1, 30 if pace_s == 1.0 else int(AFTER_S)):
        assert outlook(curve(unlearnable, never, pace_s, steps), steps=STEPS, enough=ENOUGH) is None


def test_noise_makes_no_trend_of_a_plateau() -> None:
    noise = [math.sin(7.3 * step) for step in range(STEPS + 1)]
    lessons = curve(
        lambda step: 9.0 + 0.4 * noise[step], lambda step: max(0.0, 0.01 * noise[step]), 0.2, 280
    )
    found = outlook(lessons, steps=STEPS, enough=ENOUGH)
    assert found is not None and found.verdict == "stuck"


def test_progress_has_an_estimate_and_says_what_to_do_where_it_is_stuck() -> None:
    early = progress(curve(unlearnable, never, 0.2, 10), steps=STEPS, enough=ENOUGH)
    assert (early.done, early.of, early.seconds) == (10, STEPS, 2.0)
    assert early.left_s == pytest.approx(118.0) and early.note == "0.00 of 0.3 right"
    stuck = progress(curve(unlearnable, never, 0.2, 250), steps=STEPS, enough=ENOUGH)
    assert "will not reach 0.3" in stuck.note and ADVICE in stuck.note
    slow = progress(curve(learned, never, 1.0, 50), steps=STEPS, enough=ENOUGH)
    assert "takes long" in slow.note and ADVICE in slow.note
    assert all(word in ADVICE for word in ("asyncrl tasks", "model.path", "fewer digits"))


def test_the_end_is_a_sentence_where_the_accuracy_was_missed() -> None:
    assert ended(0.3, 0.3) == "" and "0.05 right answers of 0.3" in ended(0.05, 0.3)


MEASURED = json.loads((Path(__file__).parent / "warmup_curves.json").read_text())
"""Warm-ups as they went: nats and accuracy of each step, until 0.3 or for 45 s of one core.
`rotate_matrix` is the main job's, the others have their own parameters."""


def measured(task: str, pace_s: float) -> list[Lesson]:
    rows = zip(MEASURED[task]["nats"], MEASURED[task]["accuracy"], strict=True)
    return [Lesson(step, step * pace_s, *row, 1.0) for step, row in enumerate(rows, 1)]


@pytest.mark.parametrize("task", ["spell_backward", "rotate_matrix"])
@pytest.mark.parametrize("pace_s", [0.1, 0.4, 1.5])
def test_a_measured_warm_up_that_comes_to_its_accuracy_is_never_stuck(
    task: str, pace_s: float
) -> None:
    lessons = measured(task, pace_s)
    for steps in range(1, len(lessons) + 1):
        found = outlook(lessons[:steps], steps=STEPS, enough=ENOUGH)
        assert found is None or found.verdict != "stuck", steps
    assert found is not None and found.verdict == "coming"


@pytest.mark.parametrize("pace_s", [0.25, 0.4, 0.6])
def test_a_measured_warm_up_that_comes_to_nothing_says_so_within_a_minute(pace_s: float) -> None:
    lessons = measured("chain_sum", pace_s)
    verdicts = [
        found.verdict
        for steps in range(1, len(lessons) + 1)
        if (found := outlook(lessons[:steps], steps=STEPS, enough=ENOUGH)) is not None
        and lessons[steps - 1].seconds >= 48
    ]
    assert verdicts and set(verdicts) == {"stuck"}
