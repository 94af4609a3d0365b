"""An outage of a judge is an alarm within some answers, and is over within some."""

from __future__ import annotations

import pytest

from asyncrl.actors.coordinator.common_failure import ANSWERS, OUTSIDE_S, CommonFailure
from asyncrl.actors.coordinator.judge_watch import LAST, JudgeWatch
from asyncrl.actors.coordinator.outside_alarms import OutsideAlarms
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.table import findings


def test_an_outage_is_an_alarm_that_names_its_kind_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a thousand good answers, of which it is no share worth naming."""
    watch, alarms, raised = JudgeWatch(), OutsideAlarms(), list[int]()
    for number in range(1200):
        away = 1000 <= number < 1050
        watch.note("judge rate limited: 429" if away else ("timeout" if number % 2 else ""))
        alarms.look(RunFacts(judge_missed=watch.missed, judge_why=watch.why))
        if alarms.last:
            raised.append(number)
            [alarm] = alarms.last
            assert alarm.name == "judge_away" and "judge rate limited: 429" in alarm.sentence
            assert "judge.url" in alarm.sentence
    assert raised == list(range(raised[0], raised[-1] + 1))
    assert 1000 <= raised[0] < 1000 + LAST and 1050 <= raised[-1] < 1050 + LAST
    assert caplog.text.count("alarm judge_away: ") == 1
    assert caplog.text.count("alarm judge_away is over") == 1


def test_the_share_of_all_answers_names_the_judge_in_place_of_the_verifier() -> None:
    for reason, setting in (
        ("judge timeout: no answer", "judge.url"),
        ("raised: x", "task.verifier"),
    ):
        [found] = findings(RunFacts(answers=100, unjudged=50, unjudged_reason=reason))
        assert found.name == "no_verdict" and setting in found.sentence


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        ("judge rate limited: 429", True),
        ("judge unavailable: 520", True),
        ("judge unreachable: ReadError", True),
        ("judge timeout: no answer within 60 s", True),
        ("judge unreadable: it has no choice", False),
        ("judge refused: 400", False),
    ],
)
def test_a_judge_that_never_answered_is_waited_for_if_it_may_come(reason: str, waits: bool) -> None:
    failures = CommonFailure(ANSWERS)
    for number in range(ANSWERS.data):
        failures.failure(reason, number // 4, 0.0)
    assert (failures.hopeless(OUTSIDE_S / 2) is None) is waits
    assert failures.hopeless(OUTSIDE_S) is not None
