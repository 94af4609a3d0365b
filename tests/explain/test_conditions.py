"""One table judges a run: alarms, `why`, report and page agree, whatever the facts are, and each
sentence names a setting that exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from look_support import status

from asyncrl.actors.coordinator.step_alarms import StepAlarms
from asyncrl.config import Config
from asyncrl.config.advice import advice
from asyncrl.config.fields import FIELDS
from asyncrl.explain.conditions.answers import TRUNCATED
from asyncrl.explain.conditions.condition import Condition, RunFacts
from asyncrl.explain.conditions.sides import IDLE, slow_side
from asyncrl.explain.conditions.table import CONDITIONS, findings
from asyncrl.explain.curve import Curve
from asyncrl.explain.diagnosis import diagnose, facts_of
from asyncrl.explain.run_figures import CurveSums, RunFigures, counted
from asyncrl.explain.run_status import EpisodeCounts, GroupCounts, RunStatus
from asyncrl.explain.summary import TokenTotals
from asyncrl.explain.views.flow_part import flow
from asyncrl.explain.why import answer
from asyncrl.messages import StartCounts
from asyncrl.staleness.bins import at_lag

ROOT = Path(__file__).parents[2]
SETTINGS = set(FIELDS)
SECTIONS = {key.partition(".")[0] for key in SETTINGS}
SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 1000)
REASONS = st.dictionaries(
    st.sampled_from(["stale", "nonfinite", "truncated", "median", "icepop", "zero_variance"]),
    COUNTS,
)


@st.composite
def metrics(draw: st.DrawFn) -> dict[str, float]:
    """Figures of a step, by lag too."""
    found = {"k3": draw(st.floats(0, 2)), "ess": draw(st.floats(0.001, 1))}
    found |= {"proximal_unknown_fraction": draw(SHARES)}
    for lag in draw(st.sets(st.integers(0, 9), max_size=4)):
        of_lag = {"k3": draw(st.floats(0, 2)), "ess": draw(st.floats(0.001, 1))}
        of_lag |= {"kept_fraction": draw(SHARES), "tokens": 1e3, "rollouts": 32.0}
        found |= {at_lag(name, lag): value for name, value in of_lag.items()}
    return found


@st.composite
def responses(draw: st.DrawFn) -> dict[str, float]:
    """Figures of a step's responses; none where no episode or no response was looked at."""
    if not (count := draw(st.integers(0, 64))):
        return {}
    found = {"responses": float(count), "reward": draw(SHARES), "truncated": draw(SHARES)}
    return found | draw(st.sampled_from([{}, {"turns": 3.0, "rewritten": draw(SHARES)}]))


FACTS = st.builds(
    RunFacts,
    metrics=st.builds(lambda one, other: one | other, metrics(), responses()),
    trained=COUNTS,
    left_out=REASONS,
    rewards=st.dictionaries(st.integers(1, 40), SHARES, max_size=40),
    accuracy=st.dictionaries(st.sampled_from([0, 10, 20, 30, 40]), SHARES),
    prompts=COUNTS,
    idle_trainer=st.none() | SHARES,
    idle_rollout=st.none() | SHARES,
    generated=st.integers(1000, 9000),
    discarded=REASONS,
    filtered=COUNTS,
    patience=st.just(512),
    max_live=st.integers(0, 99),
    unwritten=st.integers(0, 3),
    unwritten_why=st.just("there is no room"),
    journal_why=st.sampled_from(["", "the disk is full"]),
    starts=st.none() | st.builds(StartCounts, COUNTS, COUNTS, COUNTS, st.floats(0, 1e4)),
)


def named(sentence: str) -> set[str]:
    """The words of a sentence that look like settings: `section.name` of a section that exists."""
    words = re.findall(r"\b([a-z_]+(?:\.[a-z_0-9]+)+)", sentence)
    return {word for word in words if word.partition(".")[0] in SECTIONS}


def of_cause(name: str) -> Condition:
    """The only condition that a cause belongs to."""
    [found] = [
        one
        for one in CONDITIONS
        if any(re.fullmatch(each.replace("*", ".+"), name) for each in one.names)
    ]
    return found


@given(FACTS)
def test_each_sentence_names_a_setting_that_exists(facts: RunFacts) -> None:
    found = findings(facts)
    assert len({one.name for one in found}) == len(found)
    for name, sentence in found:
        settings = of_cause(name).settings
        assert named(sentence) & set(settings), (name, sentence)
        assert named(sentence) <= set(settings) | SETTINGS, (name, sentence)
        assert sentence[0].isalnum() and sentence.endswith(".") and "\n" not in sentence


def test_the_table_names_settings_and_causes_once() -> None:
    names = [name for one in CONDITIONS for name in one.names]
    assert len(set(names)) == len(names)
    for one in CONDITIONS:
        assert set(one.settings) <= SETTINGS, one.names


@pytest.mark.parametrize("one", CONDITIONS, ids=lambda one: one.names[0])
def test_what_is_not_known_is_well(one: Condition) -> None:
    assert [*one.find(RunFacts(), one.bound)] == []


def standing(idle_trainer: float, idle_rollout: float, **changes: Any) -> RunStatus:
    idle = {"trainer": {"command": idle_trainer}, "rollout": {"requests": idle_rollout}}
    return status(idle=idle, **changes)


def figures_of(found: RunStatus, tokens: TokenTotals | None = None) -> RunFigures:
    """The figures of a run whose whole life was as its last seconds."""
    found = msgspec.structs.replace(found, tokens=tokens or found.tokens)
    figures, facts = counted("r", "goes on", CurveSums(), found, None), facts_of(found)
    shares = {"idle_trainer": facts.idle_trainer, "idle_rollout": facts.idle_rollout}
    return msgspec.structs.replace(figures, **shares)


@given(
    trainer=SHARES | st.just(IDLE),
    rollout=SHARES | st.just(IDLE),
    leased=st.integers(0, 20),
    taken=st.integers(0, 20),
    live=st.integers(0, 8),
    still=st.booleans(),
)
def test_why_and_the_changes_name_the_same_slow_side(
    trainer: float, rollout: float, leased: int, taken: int, live: int, still: bool
) -> None:
    found = standing(
        trainer,
        rollout,
        rollouts={"leased": leased, "taken": taken},
        groups=GroupCounts(live=live, max_live=8, patience=512),
        **(dict.fromkeys(("token_s", "verdict_s", "step_s"), 60.0) if still else {}),
    )
    facts, said = facts_of(found), diagnose(found)
    side, changes = slow_side(facts.idle_trainer, facts.idle_rollout), figures_of(found).changes
    if side is None:
        assert changes == []
        assert still or "Both sides work" in said
        return
    [change] = changes
    assert "Both sides work" not in said
    for name, words in (
        ("generation", "generation is the slow side"),
        ("trainer", "the trainer is the slow side"),
    ):
        if words in said and not still:  # a run that stands still has no shares to speak of
            assert side == name and f"{words.partition(' is')[0]}" in change
    if side == "neither" and "waits for the other" in said:
        assert said == change


@given(SHARES, SHARES)
def test_the_flow_colours_what_the_table_finds(trainer: float, rollout: float) -> None:
    drawn = re.findall(r'<li class="(\w+)"><b>(\w+)</b>', flow(standing(trainer, rollout)))
    found = [one.name for one in findings(facts_of(standing(trainer, rollout)))]
    waits = {"trainer_idle": {"Trainer"}, "engines_idle": {"Engines"}}
    expected = set().union(*(waits.get(name, {"Trainer", "Engines"}) for name in found))
    assert {name for state, name in drawn if state == "waits"} & {"Trainer", "Engines"} == expected


@given(metrics(), responses(), COUNTS, REASONS)
def test_an_alarm_is_said_alike_by_why_and_by_the_report(
    of_step: dict[str, float], answers: dict[str, float], trained: int, left_out: dict[str, int]
) -> None:
    alarms = StepAlarms(Config())
    alarms.look(1, trained, left_out, of_step, answers, Curve())
    raised = [alarm.sentence for alarm in alarms.last]
    found = standing(0.1, 0.1, alarms=raised)
    said = answer(found, lives=True, age_s=0.0, stalled=False, run=Path("r"))
    assert said[len(said) - len(raised) :] == raised
    assert figures_of(found).changes == raised
    share, names = answers.get("truncated", 0.0), {alarm.name for alarm in alarms.last}
    cut = share > TRUNCATED and answers["responses"] >= 8
    assert ("never_ends" in names) is cut


def test_alert_rules_have_the_bounds_of_the_table() -> None:
    rules = yaml.safe_load((ROOT / "docker" / "alerts.yaml").read_text())["groups"][0]["rules"]
    of_idle = [rule["expr"] for rule in rules if rule["alert"].endswith("Idle")]
    assert len(of_idle) == 2
    assert all(float(expr.rpartition("> ")[2]) == IDLE for expr in of_idle)


def test_slow_starts_are_judged_by_when_the_last_one_has_started_and_why_says_so() -> None:
    many = StartCounts(waiting=64, starting=2, most=2, seconds=9.0)
    [found] = findings(RunFacts(starts=many))
    assert found.name == "slow_starts"
    assert found.sentence.startswith("64 attempts wait to start; a start takes 9 s, and 2 start at")
    for few in (
        StartCounts(waiting=1, starting=2, most=2, seconds=9.0),
        StartCounts(waiting=64, starting=16, most=16, seconds=0.5),
        StartCounts(waiting=0, starting=2, most=2, seconds=100.0),
    ):
        assert findings(RunFacts(starts=few)) == ()
    waits = standing(0.9, 0.9, episodes=EpisodeCounts(live=66, thinking=66, most=99, starts=many))
    assert "64 attempts wait to start; a start takes 9 s" in diagnose(waits)


def test_calls_that_cannot_be_read_are_an_alarm_and_why_says_so() -> None:
    [found] = findings(RunFacts(tool_replies=40, unread_calls=10))
    assert found.name == "unread_calls" and found.sentence.startswith("25% of the 40 replies")
    assert findings(RunFacts(tool_replies=31, unread_calls=31)) == (), "too few to say"
    assert findings(RunFacts(tool_replies=40, unread_calls=4)) == ()
    assert found.sentence in diagnose(standing(0.9, 0.9, tool_replies=40, unread_calls=10))


def test_the_page_lists_the_table() -> None:
    page = (ROOT / "docs" / "looking.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = [row_of(one) for one in CONDITIONS]
    assert [row for row in rows if row in expected] == expected, "\n".join(expected)


def row_of(one: Condition) -> str:
    """A condition as a row of the page."""
    names, settings = (
        ", ".join(f"`{word}`" for word in each) for each in (one.names, one.settings)
    )
    return f"| {names} | {one.measures} | {one.bound:g} | {settings} |"


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"dual_clip": 9.0, "prior_visits": 7.0}},
        {"staleness": {"depth": 0, "max_lag": 0, "proximal": "snapshot"}},
        {"train": {"objective": "gspo"}},
    ],
)
def test_advice_is_about_settings_that_exist(settings: dict[str, Any]) -> None:
    found = [*advice(msgspec.convert(settings, Config))]
    assert found and all(one.key in SETTINGS for one in found)
