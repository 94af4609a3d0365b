"""Alarms about what a policy answers: raised by what a review met, and not by chance."""

from __future__ import annotations

import random

import pytest

from asyncrl.explain.conditions.condition import Finding, RunFacts
from asyncrl.explain.conditions.table import findings


def names(
    metrics: dict[str, float],
    rewards: dict[int, float],
    accuracy: dict[int, float],
    prompts: int = 128,
) -> list[str]:
    facts = RunFacts(metrics=metrics, rewards=rewards, accuracy=accuracy, prompts=prompts)
    return [alarm.name for alarm in findings(facts)]


def of_responses(**metrics: float) -> tuple[Finding, ...]:
    return findings(RunFacts(metrics=metrics))


def test_most_responses_never_end() -> None:
    (alarm,) = of_responses(responses=8, truncated=0.88)
    assert alarm.name == "never_ends" and alarm.sentence.startswith("88% of the responses")
    assert names({"responses": 8, "truncated": 0.5}, {}, {}) == [] == names({}, {}, {})
    assert names({"responses": 7, "truncated": 1.0}, {}, {}) == [], "a handful says nothing"


RISING = {version: 0.3 + 0.002 * version + 0.01 * (version % 3) for version in range(1, 121)}
"""Mean rewards of the run that learned never to stop: 0.31 at step 25, 0.56 at step 120."""


@pytest.mark.parametrize(
    ("accuracy", "raised"),
    [
        ({0: 0.3, 25: 0.0}, True),
        ({0: 0.3, 25: 0.0, 50: 0.0, 120: 0.0}, True),
        ({0: 0.3, 25: 0.6, 50: 0.9, 75: 0.7}, True),
        ({0: 0.3, 25: 0.28}, False),  # within two standard errors of 128 prompts
        ({0: 0.3, 25: 0.5, 50: 0.9}, False),
        ({0: 0.3}, False),
        ({}, False),
        ({0: 0.3, 4: 0.0}, False),  # too few steps to say that the reward rose
    ],
)
def test_reward_rises_while_accuracy_falls(accuracy: dict[int, float], raised: bool) -> None:
    assert names({}, RISING, accuracy) == ["reward_without_accuracy"] * raised


def test_a_reward_that_falls_with_accuracy_or_is_not_known_is_no_such_alarm() -> None:
    falling = {version: 1 - reward for version, reward in RISING.items()}
    assert names({}, falling, {0: 0.9, 50: 0.1}) == []
    assert names({}, {}, {0: 0.9, 50: 0.1}) == [], "as after a resume"
    assert names({}, RISING, {0: 0.9, 50: 0.1}, prompts=0) == []


def test_chance_alone_raises_it_seldom() -> None:
    """A policy that does not change: 128 prompts at 0.6, rewards of the same mean."""
    draw, raised = random.Random(0), 0
    for _ in range(200):
        rewards = {version: draw.gauss(0.6, 0.05) for version in range(1, 101)}
        accuracy = {
            version: sum(draw.random() < 0.6 for _ in range(128)) / 128
            for version in range(0, 101, 25)
        }
        raised += bool(names({}, rewards, accuracy))
    assert raised <= 4, raised


def test_the_steps_just_after_the_best_evaluation_are_compared_and_none_before() -> None:
    """Leave out what is before it, and the steps in the middle."""
    level = {version: 0.5 + 0.001 * (version % 3) for version in range(31, 41)}
    later = {version: 0.6 + 0.001 * (version % 3) for version in range(51, 61)}
    between = dict.fromkeys(range(41, 51), 0.0)
    accuracy = {30: 0.9, 60: 0.2}
    for before in ({}, {29: -9.0, 30: -9.0}, {29: 9.0, 30: 9.0}):
        rewards = before | level | between | later
        (alarm,) = findings(RunFacts(rewards=rewards, accuracy=accuracy, prompts=128))
        assert "went from 0.501 to 0.601" in alarm.sentence


@pytest.mark.parametrize(("share", "responses"), [(0.1, 64.0), (0.9, 7.0)])
def test_few_rewritten_calls_or_few_episodes_are_no_alarm(share: float, responses: float) -> None:
    assert of_responses(responses=responses, turns=3.0, rewritten=share) == ()
    (alarm,) = of_responses(responses=64.0, turns=3.0, rewritten=0.9)
    assert alarm.name == "rewritten" and "agent.history = 'as_sampled'" in alarm.sentence
    assert of_responses(responses=64.0) == (), "nobody plays"
