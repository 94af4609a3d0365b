"""The display: in place on a terminal, as plain lines elsewhere, and never more than there
is."""

from __future__ import annotations

import io
import math
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from asyncrl.config import load
from asyncrl.config.derived import derived
from asyncrl.explain.display import Display, line, panel, show_rows, show_summary
from asyncrl.explain.rows import summary_rows, update_rows
from asyncrl.explain.summary import (
    Accuracy,
    Publications,
    RolloutTotals,
    SlowestVerifier,
    Summary,
    TokenTotals,
)
from asyncrl.messages import StatusUpdate

STATUS = StatusUpdate(
    seconds=75.4,
    phase="training",
    step=5,
    steps=20,
    reward=0.5,
    accuracy=0.625,
    accuracy_version=4,
    generated_per_s=12345.6,
    trained_per_s=6789.0,
    lag_mean=0.75,
    lag_max=2,
    queue_items=12,
    queue_bytes=3 * 1024,
    idle_trainer=0.25,
    idle_rollout=0.031,
    pause_seconds=0.0123,
    note="",
    exact=0.25,
    truncated=0.75,
    response_tokens=19.5,
    entropy=0.62,
)


@pytest.fixture(autouse=True)
def a_capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def at(seconds: float, **changes: object) -> StatusUpdate:
    return msgspec.structs.replace(STATUS, seconds=seconds, **changes)


def plain() -> Console:
    return Console(file=io.StringIO(), width=40, force_terminal=False)


def terminal() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=120, height=40, legacy_windows=False
    )


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


FACTS = [
    "training",
    "5/20",
    "0.50",
    "0.625 (version 4)",
    "12,346",
    "6,789",
    "0.75 mean",
    "2 max",
    "3.0 KiB",
    "25% trainer",
    "3% rollout",
    "12.3 ms",
    "1:15",
    "25% exact",
    "75% cut",
    "19.5 tokens",
    "0.62",
]


@pytest.mark.parametrize("console", [plain(), terminal()])
def test_every_fact_is_shown(console: Console) -> None:
    with Display(console) as display:
        display.update(STATUS)
    for fact in FACTS:
        assert fact in output(console), fact


def test_what_does_not_exist_yet_is_a_dash() -> None:
    early = at(
        0.0,
        step=0,
        reward=math.nan,
        accuracy=math.nan,
        lag_mean=math.nan,
        idle_trainer=math.nan,
        pause_seconds=math.nan,
    )
    text = line(early)
    assert "nan" not in text and "reward –" in text and "accuracy –" in text and "pause –" in text
    with Display(console := terminal()) as display:
        display.update(early)
    assert "nan" not in output(console)


def test_a_plain_line_is_one_line_whatever_the_width() -> None:
    with Display(console := plain()) as display:
        display.update(STATUS)
        display.note("rollout-0 was killed by SIGKILL [restarting] " + "x" * 100)
    lines = output(console).splitlines()
    assert len(lines) == 2 and lines[0] == line(STATUS) and "[restarting]" in lines[1]


def test_plain_lines_come_with_news_and_not_more_often() -> None:
    with Display(console := plain()) as display:
        for tenth in range(
            400
        ):  # 40 s, a status each 0.1 s; a step each second for 20 s, then none
            seconds = tenth / 10
            display.update(at(seconds, step=min(int(seconds), 20), steps=30))
    times = [text.split()[0] for text in output(console).splitlines()]
    assert times == [f"0:{s:02}" for s in (*range(0, 21, 2), 30)]


def test_what_limits_the_run_is_said_once() -> None:
    starts = "16 attempts wait to start; a start takes 11 s, and 1 starts at a time"
    limit = f"The trainer waits for experience, and agents are the slow side: {starts}."
    waits = at(30, step=0, note=starts, limit=limit)
    assert line(waits).count(starts) == 1
    wide = Console(file=io.StringIO(), width=200)
    wide.print(panel(waits))
    assert output(wide).count(starts) == 1
    assert "agents-0 fails" in line(at(30, step=0, note="agents-0 fails", limit=limit))


def test_an_accuracy_of_the_average_says_so() -> None:
    averaged = msgspec.structs.replace(STATUS, accuracy_weights="ema")
    assert "accuracy 0.625 (version 4)  " in line(STATUS)
    assert "accuracy 0.625 (version 4), of the average of weights  " in line(averaged)


def test_an_accuracy_over_some_of_the_prompts_says_so() -> None:
    some = msgspec.structs.replace(STATUS, accuracy_asked=2, accuracy_prompts=12)
    assert "accuracy 0.625 (version 4), over 2 of 12 prompts  " in line(some)
    none = msgspec.structs.replace(some, accuracy=None, accuracy_asked=0)
    assert "accuracy –, over 0 of 12 prompts  " in line(none)
    accuracy = Accuracy(None, 0.5, asked=2, prompts=12)
    ended = Summary(ok=True, reason="done", steps=1, seconds=1.0, accuracy=accuracy)
    assert ("held-out accuracy", "– → 0.500, over 2 of 12 prompts") in summary_rows(ended)


def test_an_alarm_is_a_note_when_it_begins_and_each_time_that_it_says_more() -> None:
    said = [[], ["One failed."], ["One failed."], ["Two failed."], ["Two failed."], [], []]
    with Display(console := plain()) as display:
        for tenth, alarms in enumerate(said):
            display.update(at(STATUS.seconds + tenth / 10, alarms=alarms))
    assert output(console).splitlines()[1:] == [
        "One failed.",
        "Two failed.",
        "What raised the last alarm is over.",
    ]


def test_another_life_does_not_say_that_the_disk_is_well() -> None:
    with Display(console := plain()) as display:
        for phase, alarms in (("training", ["One failed."]), ("starting", []), ("training", [])):
            display.update(msgspec.structs.replace(STATUS, phase=phase, alarms=alarms))
    assert "is over" not in output(console)


LIMIT = "None of the last 128 rewards is above 0, so nothing can be learned."
FAILS = "92% of the last 60 attempts of agents failed (55 timeout)."


def test_failures_come_first_and_nothing_breaks_at_sixty_columns() -> None:
    found = msgspec.structs.replace(
        STATUS, step=0, reward=None, exact=None, judged=128, judged_reward=0.25, judged_exact=0.5,
        filtered=0.8, limit=LIMIT, alarms=[FAILS],
    )  # fmt: skip
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=60)
    console.print(panel(found, 3700.0))
    lines = [text.rstrip() for text in output(console).splitlines()]
    assert all(len(text) <= 60 for text in lines)
    assert lines[0] == FAILS and lines[1].split("  ")[0] == "training"
    assert "1:15 elapsed" in lines[1] and "1:01:40 left" in lines[1]
    assert " ".join(lines[3:5]) == LIMIT
    rows = dict(text.split("  ", 1) for text in lines[5:])
    assert {name: said.strip() for name, said in rows.items()} == dict(update_rows(found))
    assert rows["reward"].strip() == "0.25 of 128 judged", "before the first step"
    assert rows["filtered"].strip() == "80% of groups" and "50% exact" in rows["responses"]
    assert LIMIT in line(found) and LIMIT not in line(STATUS)


@pytest.mark.parametrize(
    ("changes", "colour"),
    [
        ({}, "32"),
        ({"limit": "The trainer waits."}, "33"),
        ({"limit": "The trainer waits.", "alarms": ["The disk is full."]}, "31"),
        ({"phase": "starting"}, "36"),
    ],
)
def test_the_state_has_a_colour(changes: dict[str, object], colour: str) -> None:
    with Display(console := terminal()) as display:
        display.update(at(1.0, **changes))
    assert f"\x1b[1;{colour}m{changes.get('phase', 'training')}" in output(console)


def test_the_time_that_is_left_follows_the_last_steps() -> None:
    """A run whose steps slow down tenfold: its end is not in 26 s for four minutes."""
    with Display(console := terminal()) as display:
        for step in range(1, 21):
            display.update(at(1000.0 + step, step=step, steps=40))
        assert "0:20 left" in output(console)
        for step in range(21, 31):
            display.update(at(1020.0 + 10 * (step - 20), step=step, steps=40))
    assert "1:40 left" in output(console).rpartition("step 30/40")[2]


@pytest.mark.parametrize("news", [{"phase": "evaluating"}, {"accuracy_version": 5}, {"step": 20}])
def test_news_is_told_at_once(news: dict[str, object]) -> None:
    with Display(console := plain()) as display:
        display.update(STATUS)
        display.update(at(STATUS.seconds + 0.1))
        display.update(at(STATUS.seconds + 0.2, **news))
        display.update(at(STATUS.seconds + 0.3, **news))
    assert len(output(console).splitlines()) == 2


def test_the_terminal_is_left_in_order_when_the_run_fails() -> None:
    console = terminal()
    with pytest.raises(RuntimeError), Display(console) as display:
        display.update(STATUS)
        raise RuntimeError
    assert output(console).rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Display(console := terminal()) as display:
        display.update(STATUS)
    assert "\x1b[?25l" not in output(console)


def test_the_summary_shows_where_everything_went() -> None:
    summary = Summary(
        ok=True,
        reason="All 20 steps were taken.",
        steps=20,
        seconds=3700.0,
        accuracy=Accuracy(0.4, None),
        tokens=TokenTotals(
            generated=1100, trained=1000, discarded={"filtered": 70, "evaluation": 20}, live=10
        ),
        rollouts=RolloutTotals(admitted=5, trained=5),
        publication=Publications(20, 4.0, 0.1),
        restarts={"rollout": 2},
        removed={"rollout-1": "was killed by SIGKILL"},
        slowest_verifier=SlowestVerifier(3, 0.5, "deadline [x]"),
    )
    show_summary(summary, Path("/runs/" + "long" * 30), console := plain())
    text = output(console)
    facts = [
        "All 20 steps",
        "1:01:40",
        "0.400 → –",
        "1,100 generated = 1,000 trained + 20 evaluation + 70 filtered + 10 live",
        "pause              5 ms",
        "2: rollout 2",
        "rollout-1 was killed by SIGKILL",
        "prompt 3: deadline [x]",
        "long" * 30,
    ]
    for fact in facts:
        assert fact in text, fact
    assert "BALANCE" not in text
    show_summary(msgspec.structs.replace(summary, tokens=TokenTotals(generated=1)), Path(), console)
    assert "DOES NOT BALANCE" in output(console)


@pytest.mark.parametrize("console", [plain(), terminal()])
def test_the_derived_table_shows_every_row(console: Console) -> None:
    rows = derived(load(None, ["task.params.a='[b]'"], {}), 2)
    show_rows(rows, console)
    for row in rows:
        assert row.name in output(console) and (row.value in output(console))
    assert "a=[b]" in output(console)


def test_figures_of_sampled_answers_are_shown_where_there_are_any() -> None:
    sampled = msgspec.structs.replace(STATUS, evaluated={"avg@4": 0.5, "pass@4": 0.75})
    assert "avg@4 0.500, pass@4 0.750" in line(sampled) and "avg@" not in line(STATUS)
