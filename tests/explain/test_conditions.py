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
from asyncrl.explain.conditions.agreement import agreeing, moves
from asyncrl.explain.conditions.answers import TRUNCATED
from asyncrl.explain.conditions.condition import Condition, RunFacts
from asyncrl.explain.conditions.sides import IDLE, slow_side
from asyncrl.explain.conditions.table import CONDITIONS, findings
from asyncrl.explain.curve import Curve
from asyncrl.explain.diagnosis import diagnose, facts_of
from asyncrl.explain.recent_outcomes import RecentOutcomes
from asyncrl.explain.run_figures import CurveSums, RunFigures, counted
from asyncrl.explain.run_status import EpisodeCounts, GroupCounts, RunStatus
from asyncrl.explain.summary import TokenTotals
from asyncrl.explain.views.flow_part import flow
from asyncrl.explain.why import answer
from asyncrl.messages import LastRank, StartCounts
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
    recent=st.builds(
        RecentOutcomes,
        rewards=st.just(100),
        zeros=st.sampled_from([0, 99, 100]),
        groups=st.just(40),
        too_easy=st.integers(0, 13),
        too_hard=st.integers(0, 13),
        equal=st.integers(0, 13),
        calls=st.just(100),
        failed_tools=st.dictionaries(st.sampled_from(["search", "run"]), st.integers(1, 50)),
        attempts=st.just(60),
        failed_attempts=st.dictionaries(st.sampled_from(["timeout", "raised"]), st.integers(1, 30)),
    ),
    judge_missed=SHARES,
    judge_why=st.just("judge rate limited"),
    answers=COUNTS,
    unjudged=COUNTS,
    unjudged_reason=st.just("timeout"),
    tool_replies=COUNTS,
    unread_calls=COUNTS,
    last_rank=st.none() | st.builds(LastRank, COUNTS, st.just("a"), SHARES, st.floats(1, 9)),
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


@given(FACTS, FACTS)
def test_no_advice_contradicts_another(one: RunFacts, other: RunFacts) -> None:
    """Nor do those of a step and those of the last seconds, which are said together."""
    for found in (findings(one), agreeing([*findings(one), *findings(other)])):
        turned: dict[str, int] = {}
        for name, sentence in found:
            for key, way in moves(sentence).items():
                assert turned.setdefault(key, way) == way, (name, key, [*found])


EXAMPLES: dict[str, dict[str, Any]] = {
    "checkpoint_unwritten": {"unwritten": 2, "unwritten_why": "no room"},
    "journal_waits": {"journal_why": "no room"},
    "failed_attempts": {"recent": {"attempts": 32, "failed_attempts": {"timeout": 20, "exit": 2}}},
    "failed_tools": {"recent": {"calls": 64, "failed_tools": {"search": 30}}},
    "staleness": {
        "metrics": {"k3": 0.5, at_lag("k3", 0): 0.01, at_lag("k3", 4): 0.9}
        | {at_lag("tokens", lag): 1e4 for lag in (0, 4)}
    },
    "masked_stale": {"trained": 10, "left_out": {"stale": 90}},
    "proximal_unknown": {"metrics": {"proximal_unknown_fraction": 0.5}},
    "no_verdict": {"answers": 100, "unjudged": 50, "unjudged_reason": "timeout"},
    "judge_away": {"judge_missed": 0.9, "judge_why": "judge unreachable"},
    "never_ends": {"metrics": {"truncated": 0.9, "responses": 64.0}},
    "unread_calls": {"tool_replies": 64, "unread_calls": 32},
    "all_zero": {"recent": {"rewards": 128, "zeros": 128}},
    "too_hard": {"recent": {"groups": 32, "too_hard": 20, "too_easy": 4}},
    "too_easy": {"recent": {"groups": 32, "too_hard": 4, "too_easy": 20}},
    "equal_rewards": {"recent": {"groups": 32, "equal": 20}},
    "filtered": {"generated": 100, "discarded": {"zero_variance": 60}},
    "filtered_in_a_row": {"filtered": 90, "patience": 512, "max_live": 8},
    "stale": {"generated": 100, "discarded": {"stale": 60}},
    "slow_starts": {"starts": StartCounts(waiting=64, starting=2, most=2, seconds=9.0)},
    "slow_rank": {"last_rank": LastRank(2, "node-7", 0.4, 3.0)},
    "trainer_idle": {"idle_trainer": 0.9, "idle_rollout": 0.0},
    "engines_idle": {"idle_trainer": 0.0, "idle_rollout": 0.9},
    "both_idle": {"idle_trainer": 0.9, "idle_rollout": 0.9},
}


def facts_for(*names: str) -> RunFacts:
    """Facts in which all of these conditions hold, as far as they can together."""
    merged: dict[str, Any] = {}
    for name in names:
        for key, value in EXAMPLES[name].items():
            merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
    return RunFacts(**merged | {"recent": RecentOutcomes(**merged.get("recent", {}))})


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_pair_of_conditions_gives_no_opposing_advice(name: str) -> None:
    assert name in [one.name for one in findings(facts_for(name))]
    for other in EXAMPLES:
        found = findings(facts_for(name, other))
        assert found, (name, other)
        ways = [(key, way) for one in found for key, way in moves(one.sentence).items()]
        assert len({key for key, _ in ways}) == len(set(ways)), (name, other, found)


def test_more_engines_are_not_advised_where_what_they_make_is_filtered() -> None:
    """Three runs were told to add engines while most of their groups taught nothing."""
    for name in ("too_easy", "too_hard", "all_zero", "filtered", "filtered_in_a_row"):
        [found] = findings(facts_for(name, "trainer_idle"))
        assert found.name == name
        waits = standing(0.9, 0.0, recent=facts_for(name).recent)
        if name in ("too_easy", "too_hard", "all_zero"):
            assert diagnose(waits) == found.sentence
            assert figures_of(waits).changes == [found.sentence]
    easy, hard = (findings(facts_for(name))[0].sentence for name in ("too_easy", "too_hard"))
    assert "choose harder" in easy and "choose easier" in hard


def test_an_agent_without_any_reward_is_told_how_to_ask() -> None:
    recent = RecentOutcomes(rewards=64, zeros=64, attempts=64)
    [found] = findings(RunFacts(recent=recent))
    assert found.name == "all_zero"
    assert "what the agent asks" in found.sentence and "model.path" in found.sentence


def test_few_outcomes_say_nothing_and_kinds_are_counted_by_name() -> None:
    few = {"rewards": 63, "zeros": 63, "groups": 15, "too_hard": 15}
    few |= {"calls": 31, "attempts": 15}
    failed = {"failed_tools": {"run": 15}, "failed_attempts": {"exit": 15}}
    assert findings(RunFacts(recent=RecentOutcomes(**few, **failed))) == ()
    for kind, words in (("image", "containers"), ("sandbox", "containers"), ("raised", "play")):
        recent = RecentOutcomes(attempts=32, failed_attempts={kind: 20})
        [found] = findings(RunFacts(recent=recent))
        assert words in found.sentence, "what it runs in is at fault, or its code"
    [attempts, tools] = findings(facts_for("failed_attempts", "failed_tools"))
    assert "69% of the last 32 attempts" in attempts.sentence
    assert "(20 timeout, 2 exit;" in attempts.sentence and "agent.sandbox" in attempts.sentence
    assert "47% of the last 64 calls" in tools.sentence and "(30 search)" in tools.sentence


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
