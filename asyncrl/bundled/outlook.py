"""The outlook of a warm-up, from its learning curve against time. It is pure.

A warm-up must reach an accuracy by its last step. Until then it shows two numbers: the share of
right answers, which on many tasks stays at zero for most of the time and then rises fast, and the
nats of an answer, which fall long before. An answer of `n` nats is right about as often as
`exp(-n)`. The curve of nats is straight over the logarithm of the steps, or bends down as the model
finds the rule. If neither number, at the rate of the last half of the time, comes near that by the
last step, the warm-up is stuck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from asyncrl.messages import Progress

AFTER_S = 45.0
"""Seconds of a warm-up before its outlook is shown."""
LEAST = 30
"""Steps before a trend counts."""
NEAR = 8.0
"""Factor by which the share of right answers that nats predict may be off: greedy decoding is right
more often than a sample."""
BEGUN = 0.125
"""Part of the required accuracy that is no longer chance."""
LONG_S = 300.0
"""Remaining seconds from which on a warm-up without right answers is slow."""


WHAT = "warming the bundled model up"
ADVICE = (
    "another task (`asyncrl tasks`), smaller parameters of this one (task.params: fewer digits, "
    "shorter words), or a model of your own (model.path) learns more"
)


class Lesson(NamedTuple):
    """One step of a warm-up, `seconds` after its begin: the nats of an answer, all its tokens
    together, the share of right greedy answers, 0 to 1, and the accuracy for which enough sampled
    ones are right."""

    step: int
    seconds: float
    nats: float
    accuracy: float
    sampled: float


class Outlook(NamedTuple):
    """`stuck`: it will not reach its accuracy; `slow`: it may, without a sign of it yet; else
    `coming`. `left_s` are the seconds to its accuracy, or to its last step."""

    verdict: Literal["coming", "slow", "stuck"]
    left_s: float


def outlook(lessons: Sequence[Lesson], *, steps: int, enough: float) -> Outlook | None:
    """The outlook after these lessons, of at most `steps`, for the share `enough`; None if it is
    too early to tell.

    >>> rising = [Lesson(n, n * 1.0, 1.0, n / 400, 1.0) for n in range(1, 51)]
    >>> outlook(rising, steps=600, enough=0.3)
    Outlook(verdict='coming', left_s=70.0)
    >>> flat = [Lesson(n, n * 0.2, 9.0, 0.0, 0.0) for n in range(1, 401)]
    >>> outlook(flat, steps=600, enough=0.3)
    Outlook(verdict='stuck', left_s=40.0)
    """
    if len(lessons) < LEAST:
        return None
    last = lessons[-1]
    recent = lessons[len(lessons) // 2 :]
    left = steps - last.step
    pace_s = (last.seconds - recent[0].seconds) / (last.step - recent[0].step)
    rise = _slope(recent, lambda lesson: lesson.step, lambda lesson: lesson.accuracy)
    end = recent[len(recent) // 2 :]
    accuracy = _mean(end, lambda lesson: lesson.accuracy)
    begun = accuracy > enough * BEGUN and rise > 0
    if begun and (needed := max(0.0, enough - last.accuracy) / rise) <= left:
        return Outlook("coming", round(needed * pace_s, 3))
    left_s = round(left * pace_s, 3)
    if last.seconds < AFTER_S:
        return None
    fall = -_slope(recent, lambda lesson: math.log(lesson.step), lambda lesson: lesson.nats)
    nats = _mean(end, lambda lesson: lesson.nats) - max(0.0, fall) * math.log(steps / last.step)
    promised = math.exp(-max(0.0, nats)) * NEAR
    if promised < enough and not begun:
        return Outlook("stuck", left_s)
    return Outlook("coming" if begun or left_s <= LONG_S else "slow", left_s)


def progress(lessons: Sequence[Lesson], *, steps: int, enough: float) -> Progress:
    """Progress of a warm-up after these lessons, at least one."""
    last, expected = lessons[-1], outlook(lessons, steps=steps, enough=enough)
    left_s = last.seconds / last.step * (steps - last.step) if expected is None else expected.left_s
    note = f"{last.accuracy:.2f} of {enough:g} right"
    if last.accuracy >= enough > last.sampled:
        note += f", sampled as for {last.sampled:.2f}"
    if expected is not None and expected.verdict == "stuck":
        note = f"It will not reach {enough:g} right at this pace ({note}): {ADVICE}."
    elif expected is not None and expected.verdict == "slow":
        note = f"It takes long, and may not succeed ({note}): {ADVICE}."
    return Progress(WHAT, last.step, steps, last.seconds, left_s, note)


def ended(accuracy: float, enough: float) -> str:
    """A sentence about a warm-up that has ended without its accuracy; empty for one that has it."""
    if accuracy >= enough:
        return ""
    return (
        f"The bundled model's warm-up reached {accuracy:.2f} right answers of {enough:g} "
        f"(model.warmup_accuracy), so the run may find little to reinforce: {ADVICE}."
    )


def _mean(lessons: Sequence[Lesson], of: Callable[[Lesson], float]) -> float:
    return sum(map(of, lessons)) / len(lessons)


def _slope(
    lessons: Sequence[Lesson], over: Callable[[Lesson], float], of: Callable[[Lesson], float]
) -> float:
    """The rise of `of` for each unit of `over`, by least squares."""
    position, value = _mean(lessons, over), _mean(lessons, of)
    square = sum((over(lesson) - position) ** 2 for lesson in lessons)
    rise = sum((over(lesson) - position) * (of(lesson) - value) for lesson in lessons)
    return rise / square
