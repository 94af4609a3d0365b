"""`asyncrl rollouts`: each rollout of a journal once, as it ended, and its text harmless."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from look_support import HOSTILE, ids_of, kept, life, make_journal, make_run, rows
from pyarrow import parquet

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.cli import main
from asyncrl.experience import events as e
from asyncrl.experience.experience import fold
from asyncrl.experience.recovery import recovered
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views import record_files
from asyncrl.explain.views.rollout_records import Wanted, records, since
from asyncrl.explain.views.seen_rollouts import SeenRollout, seen_rollouts
from asyncrl.journal import SqliteHistory
from asyncrl.journal.disk import Compact
from asyncrl.messages import NoVerdict, Scored, Span
from asyncrl.runtime.run_dir import INITIAL, JOURNAL


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = make_run(tmp_path / "r")
    (found / INITIAL).mkdir()
    write_tokenizer(found / INITIAL)
    return found


def seen(run: Path) -> list[SeenRollout]:
    return list(reading(run))


def reading(run: Path) -> Iterator[SeenRollout]:
    with SqliteHistory(run / JOURNAL) as history:
        yield from seen_rollouts(history, history.forgotten)


def text(ids: bytes) -> str:
    return "".join(map(chr, memoryview(ids).cast("i").tolist()))


def test_every_end_of_a_rollout_is_told_apart(run: Path) -> None:
    ids = ids_of("abc")
    make_journal(
        run,
        [
            e.Published(0),
            e.Admitted(0, 0, 5, "train", 3, ids, 9),
            e.Leased(0, "rollout-0", 1),
            e.Extended(0, 1, 0, 0, ids, ids),
            e.Requeued(0, 1, "owner died"),
            e.Leased(0, "rollout-1", 2),
            e.Extended(0, 2, 2, 3, ids, ids),
            e.Sealed(0, 2, "length"),
            *[event for n in (1, 2) for event in (e.Leased(n, "r", 1), e.Sealed(n, 1, "stop"))],
            e.Judged(0, life(0)[4].verdict),  # type: ignore[union-attr]
            e.Judged(1, NoVerdict("timeout")),
            e.Buried(3, "attempts"),
            e.Taken(4, [0]),
            e.Trained(0, 5, {"icepop": 1}),
            e.Discarded(1, "no_verdict"),
            e.Admitted(1, 5, 1, "evaluation", 4, ids, 4, 0),
            e.Dropped(1, "evaluation"),
        ],
    )
    found = {one.rollout: one for one in seen(run)}
    assert {number: (one.status, one.reason) for number, one in found.items()} == {
        0: ("trained", ""),
        1: ("discarded", "no_verdict"),
        2: ("sealed", ""),
        3: ("buried", "attempts"),
        4: ("waiting", ""),
        5: ("discarded", "evaluation"),
    }
    first = found[0]
    assert (first.attempts, first.finish, first.reward, first.step, first.lag) == (
        2,
        "length",
        1.0,
        4,
        4,
    )
    assert text(first.ids) == "abcabc" and first.spans == [Span(0, 0, 3), Span(2, 3, 6)]
    assert found[1].no_verdict == "timeout" and found[1].reward is None and found[1].lag is None
    assert found[5].split == "evaluation" and found[5].prompt_index == 4


def test_what_a_step_left_out_is_given_with_its_reward(run: Path) -> None:
    ids = ids_of("abc")
    events: list[e.AnyEvent] = [e.Published(0), e.Admitted(0, 0, 2, "train", 3, ids, 3)]
    for number in (0, 1):
        events += [e.Leased(number, "r", 1), e.Extended(number, 1, 0, 0, ids, ids)]
        events += [e.Sealed(number, 1, "stop"), e.Judged(number, Scored(float(number)))]
    make_journal(run, [*events, e.Taken(0, [1], [0])])
    left, taken = seen(run)
    assert (left.rollout, left.status, left.reason) == (0, "discarded", "not_chosen")
    assert (left.reward, left.mean_reward, text(left.ids)) == (0.0, 0.5, "abc")
    assert (taken.status, taken.mean_reward) == ("taken", 1.0)


def test_an_episode_is_what_its_agent_was_answered(run: Path) -> None:
    ids = ids_of("abc")
    events = [
        e.Admitted(0, 0, 1, "train", 3, ids, 99, played=True),
        e.Begun(0, "agents-0", 1),
        e.Called(0, 1, 1, None, ids, 5, 9, 1.0),
        e.Leased(1, "rollout-0", 1),
        e.Extended(1, 1, 0, 0, ids, ids),
        e.Answered(1, 1, "stop"),
        e.Called(0, 1, 2, (1, 6), ids, 6, 9, 1.0, "critic"),
        e.Leased(2, "rollout-0", 1),
        e.Extended(2, 1, 1, 0, ids[:4], ids[:4]),
    ]
    make_journal(run, events)
    [one] = seen(run)
    assert [turn.role for turn in one.turns] == ["", "critic"]
    assert (text(one.ids), len(one.turns), one.status) == ("abca", 2, "begun")
    assert [turn.parent for turn in one.turns] == [None, 0]
    assert [(turn.given, turn.tokens) for turn in one.turns] == [(b"", 3), (ids, 1)]
    assert one.spans == [Span(0, 0, 3), Span(1, 3, 4)]


def test_hand_offs_are_written_as_orchestration_traces(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planner, a worker whose search fails, and the planner again, from what it had planned."""
    ids = ids_of("abc")
    events: list[e.AnyEvent] = [e.Admitted(0, 0, 1, "train", 3, ids, 99, played=True)]
    events.append(e.Begun(0, "agents-0", 1))
    contexts = [(None, ids, "planner"), (None, ids[4:], "worker"), ((1, 6), ids[:4], "planner")]
    for call, (after, given, role) in enumerate(contexts, 1):
        events += [
            e.Called(0, 1, call, after, given, call, 9, 1.0, role),
            e.Leased(call, "rollout-0", 1),
            e.Extended(call, 1, 0, 0, ids, ids),
            e.Answered(call, 1, "stop"),
        ]
    events += [e.ToolFailed(0, 1, 2, "search"), e.Rewarded(0, 1, 2, -0.5)]
    events += [e.Rewarded(0, 1, None, 1.0), e.Sealed(0, 1, "stop"), e.Judged(0, Scored(1.0))]
    make_journal(run, events)
    assert main(["rollouts", str(run), "--traces", str(tmp_path / "t.jsonl")]) == 0
    assert "1 traces are written" in capsys.readouterr().out
    trace = json.loads((tmp_path / "t.jsonl").read_text())
    said = [(one["type"], one["agent"], one["from"], one["to"]) for one in trace["events"]]
    assert said == [
        ("spawn", "planner", "environment", "planner"),
        ("message", "planner", "planner", "worker"),
        ("spawn", "worker", "planner", "worker"),
        ("message", "worker", "worker", "planner"),
        ("tool_call", "worker", "worker", "environment"),
        ("message", "planner", "planner", "environment"),
        ("return", "planner", "planner", "environment"),
    ]
    assert [(edge["src"], edge["dst"], edge["type"]) for edge in trace["edges"]] == [
        *((1, 2, "spawn"), (1, 3, "handoff"), (3, 5, "handoff"), (1, 5, "continue")),
        (5, 6, "continue"),
    ]
    assert trace["costs"] == {"planner": 6, "worker": 3} and trace["agents"][0] == "planner"
    assert [(one["event"], one["value"]) for one in trace["rewards"]] == [(3, -0.5), (None, 1.0)]


def test_a_step_that_a_crash_undid_is_told_once(run: Path) -> None:
    """The run had trained rollout 0 when it was killed; from the checkpoint it trains it again."""
    made: list[e.AnyEvent] = [e.Published(0), *life(0, end=False)]
    trained: list[e.AnyEvent] = [e.Taken(0, [0]), e.Trained(0, 2, {}), e.Published(1)]
    state = recovered(fold(made), trained)
    again: list[e.AnyEvent] = [e.Taken(0, [0]), e.Trained(0, 1, {"icepop": 1})]
    make_journal(run, made, trained, kept(state, len(made + trained)), again, life(1, text="x"))
    assert [(one.rollout, one.status, text(one.ids)) for one in seen(run)] == [
        (0, "trained", "42"),
        (1, "discarded", "x"),
    ]


def test_what_is_compacted_away_is_not_needed(run: Path) -> None:
    old: list[e.AnyEvent] = [e.Published(0), *life(0), *life(1, end=False)]
    new: list[e.AnyEvent] = [e.Discarded(1, "stale"), *life(2)]
    make_journal(run, old, kept(fold(old), len(old)), new, Compact(0))
    assert [(one.rollout, one.reason) for one in seen(run)] == [(1, "stale"), (2, "zero_variance")]


def test_what_ended_since_a_checkpoint_is_read_from_there(run: Path) -> None:
    """So that the newest rollouts do not cost the whole journal each time."""
    parts: list[list[e.AnyEvent]] = [
        [e.Published(0), *life(0)],
        [*life(1), *life(2)],
        [*life(3)],
    ]
    at = [parts[0], parts[0] + parts[1]]
    make_journal(
        run,
        parts[0],
        kept(fold(at[0]), len(at[0])),
        parts[1],
        kept(fold(at[1]), len(at[1])),
        parts[2],
    )
    told = [[one.rollout for one in since(RunFiles(run), checkpoints)] for checkpoints in (1, 2, 3)]
    assert told == [[3], [1, 2, 3], [0, 1, 2, 3]]


def test_a_journal_without_a_checkpoint_is_read_whole(run: Path) -> None:
    make_journal(run, [e.Published(0), *life(0), *life(1)])
    assert [one.rollout for one in since(RunFiles(run), 1)] == [0, 1]


def test_a_reader_keeps_nobody_from_writing(run: Path) -> None:
    make_journal(run, [e.Published(0), *life(0)])
    reader = reading(run)
    assert next(reader).rollout == 0
    make_journal(run, rows(life(1), 8))
    assert list(reader) == []  # it sees the moment at which it began
    assert [one.rollout for one in seen(run)] == [0, 1]


def test_a_large_journal_needs_the_memory_of_what_lives(run: Path) -> None:
    answer = "x" * 2000  # 16 kB with its log-probabilities
    make_journal(run, [e.Published(0)], *[life(n, text=answer) for n in range(500)])
    size = (run / JOURNAL).stat().st_size
    next(reading(run))  # imports and caches
    tracemalloc.start()
    found = records(RunFiles(run), Wanted(last=1), pytest.fail)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.rollout for one in found] == [499]
    assert size > 7e6 and peak < size / 8, (size, peak)


@pytest.mark.parametrize(
    ("wanted", "rollouts"),
    [
        (Wanted(), list(range(2, 12))),
        (Wanted(last=3), [9, 10, 11]),
        (Wanted(prompt=7), [1, 3, 5, 7, 9, 11]),
        (Wanted(prompt=7, last=2), [9, 11]),
        (Wanted(reward_below=0.25), [0, 1, 2, 3]),
        (Wanted(finish="length"), [0, 3, 6, 9]),
        (Wanted(split="evaluation"), []),
        (Wanted(split="train", finish="stop", reward_below=0.5), [1, 2, 4, 5, 7]),
    ],
)
def test_filters_and_the_newest(wanted: Wanted, rollouts: list[int], run: Path) -> None:
    lives = [
        life(n, reward=0.25 * (n // 4), prompt=6 + n % 2, finish="stop" if n % 3 else "length")
        for n in range(12)
    ]
    make_journal(run, [e.Published(0)], *lives)
    assert [one.rollout for one in records(RunFiles(run), wanted, pytest.fail)] == rollouts


def test_text_is_shown_escaped_and_written_whole(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "\x1b[2J\x07\r\n<script>\x7f & 42"
    make_journal(run, [e.Published(0), *life(0, text=said, version=3)])
    (run / INITIAL / "config.json").unlink(missing_ok=True)
    assert main(["rollouts", str(run)]) == 0
    out, err = capsys.readouterr()
    assert all(one.isprintable() for one in out.replace("\n", "")) and err == ""
    assert len(out.splitlines()) == 4 and "reward 1" in out and "version 3" in out
    assert main(["rollouts", str(run), "--json"]) == 0
    line = capsys.readouterr().out
    assert all(one.isprintable() for one in line[:-1]) and line.endswith("\n")
    to = tmp_path / "out.jsonl"
    assert main(["rollouts", str(run), "-o", str(to)]) == 0
    assert to.read_text() == line and json.loads(line)["tokens"] == len(said)
    assert main(["rollouts", str(run), "-o", str(to)]) == 2  # it is there already
    assert main(["rollouts", str(run), "-o", str(tmp_path / "none" / "out.jsonl")]) == 2
    assert capsys.readouterr().err.count("\n") == 2 and len(list(tmp_path.iterdir())) == 2


def test_parquet_has_what_the_lines_have(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_files, "ROWS", 3)
    make_journal(run, [e.Published(0)], *(life(n, text=f"a {n} é\x1b") for n in range(8)))
    lines, table = tmp_path / "out.jsonl", tmp_path / "out.parquet"
    for to in (lines, table):
        assert main(["rollouts", str(run), "-o", str(to)]) == 0
    found = parquet.ParquetFile(table)
    rows = found.read().to_pylist()
    for row in rows:
        row["spans"] = [[*span.values()] for span in row["spans"]]
    assert rows == [json.loads(line) for line in lines.read_text().splitlines()] and len(rows) == 8
    assert found.num_row_groups == 3
    assert main(["rollouts", str(run), "-o", str(table)]) == 2  # it is there already
    monkeypatch.setattr(record_files, "find_spec", lambda package: None)
    assert main(["rollouts", str(run), "-o", str(tmp_path / "more.parquet")]) == 2
    assert "pip install 'asyncrl[parquet]'" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 3


def test_without_its_model_a_run_has_ids_and_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / INITIAL / "tokenizer.json").unlink()
    make_journal(run, [e.Published(0), *life(0)])
    assert main(["rollouts", str(run)]) == 0
    out, err = capsys.readouterr()
    assert "response  52 50\n" in out and err.count("\n") == 1 and "tokenizer.json" in err


def test_a_name_that_others_gave_is_escaped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_journal(run, [e.Published(0), *life(0, end=False), e.Discarded(0, HOSTILE)])
    assert main(["rollouts", str(run)]) == 0
    assert "\\x1b[2J" in capsys.readouterr().out


def refused(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["rollouts", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_a_journal_that_cannot_be_read_is_refused_in_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no journal" in refused(run, capsys)
    assert "no such directory" in refused(run / "x", capsys)
    (run / JOURNAL).write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    assert "damaged" in refused(run, capsys)
    (run / JOURNAL).unlink()
    make_journal(run, [e.Published(0), e.Trained(9, 1, {})])
    assert "do not follow from one another" in refused(run, capsys)
    with closing(sqlite3.connect(run / JOURNAL)) as file, file:
        file.execute("UPDATE header SET format = 3")
    assert "has format 3" in refused(run, capsys)
