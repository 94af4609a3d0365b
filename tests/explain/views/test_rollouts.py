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

from asyncrl.agents.printed import AttemptOutput, PrintedFile
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.cli import main
from asyncrl.experience import events as e
from asyncrl.experience.experience import fold
from asyncrl.experience.recovery import recovered
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views import record_files
from asyncrl.explain.views.newest_rollouts import living, newest_ended
from asyncrl.explain.views.rollout_records import Wanted, facts, records
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.journal import SqliteHistory
from asyncrl.journal.disk import Compact
from asyncrl.messages import NoVerdict, Scored, Span
from asyncrl.runtime.run_dir import INITIAL, JOURNAL, RUN_TOML


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = make_run(tmp_path / "r", toml='task.name = "mine:Sums"')
    (found / INITIAL).mkdir()
    write_tokenizer(found / INITIAL)
    return found


def seen(run: Path) -> list[SeenRollout]:
    """Those that ended, the first first, and those that live."""
    with SqliteHistory(run / JOURNAL) as history:
        live = list(living(history))
    return [*reversed([*reading(run)]), *live]


def reading(run: Path) -> Iterator[SeenRollout]:
    with SqliteHistory(run / JOURNAL) as history:
        yield from (one for _, one in newest_ended(history, history.forgotten))


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
            e.Trained(0, 5, {"icepop": 1}, {"icepop": [(2, 3)]}),
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
    assert (first.left_out, first.places) == ({"icepop": 1}, {"icepop": [(2, 3)]})
    assert not found[1].left_out
    assert facts(first)[-2:] == ["trained", "tokens left out of the loss: 1 icepop"]
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


def played() -> list[e.AnyEvent]:
    """The life of an episode, rollout 8 of group 8, whose first attempt fails, and whose second one
    calls a tool: a call that fails."""
    asked = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 3?<|im_end|>\n"
    opens = "<|im_start|>assistant\n"
    call = '<think>\nsum\x1b\n</think><tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    back = "<|im_start|>user\n<tool_response>\nno b\n</tool_response><|im_end|>\n"
    said, result, last = (ids_of(text) for text in (call, f"<|im_end|>\n{back}{opens}", "5"))
    whole = len(asked + opens) + len(call)
    return [
        e.Admitted(8, 8, 1, "train", 3, ids_of("2 + 3?"), 999, played=True),
        e.Begun(8, "agents-0", 1),
        e.Left(8, 1, "raised: KeyError: 'b' (line 3 of shop.py)", failed=True),
        e.Begun(8, "agents-0", 2),
        e.Called(8, 2, 9, None, ids_of(asked + opens), 5, 200, 1.0),
        e.Leased(9, "rollout-0", 1),
        e.Extended(9, 1, 0, 0, said, said),
        e.Answered(9, 1, "stop"),
        e.ToolFailed(8, 2, 9, "add"),
        e.Called(8, 2, 10, (9, whole), result, 6, 200, 1.0),
        e.Leased(10, "rollout-0", 1),
        e.Extended(10, 1, 1, 0, last, last),
        e.Answered(10, 1, "stop"),
        e.Sealed(8, 2, "stop"),
        e.Judged(8, Scored(0.5)),
        e.Discarded(8, "zero_variance"),
    ]


def test_an_episode_is_shown_as_messages_with_calls_and_results(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_journal(run, [e.Published(0), *(event for n in range(8) for event in life(n)), *played()])
    [one] = records(RunFiles(run), Wanted(failed=True), pytest.fail)
    assert one.failed_calls == {"add": 1} and one.failures == [
        "raised: KeyError: 'b' (line 3 of shop.py)"
    ]
    assert [(m.role, m.text, m.sampled) for m in one.messages] == [
        ("system", "Be brief.", None),
        ("user", "2 + 3?", None),
        ("assistant", "", 0),
        ("tool", "no b", None),
        ("assistant", "5", 1),
    ]
    assert (one.messages[2].thoughts, one.messages[2].failed) == ("sum\x1b", "add")
    assert [(call.name, call.arguments) for call in one.messages[2].calls] == [("add", '{"a": 2}')]
    assert main(["rollouts", str(run), "--last", "1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "2 attempts" in head and "reward 0.5" in head
    assert [line.split(None, 1) for line in lines if line] == [
        ["failed", "raised: KeyError: 'b' (line 3 of shop.py)"],
        ["failed", "1 calls of add"],
        ["system", "Be brief."],
        ["user", "2 + 3?"],
        ["thinks", "sum\\x1b"],
        ["calls", 'add {"a": 2}'],
        ["failed", "this call of add failed"],
        ["tool", "no b"],
        ["assistant", "5"],
    ]


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
    events.append(e.Discarded(0, "zero_variance"))
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


def test_what_ended_since_an_event_is_read_from_there(run: Path) -> None:
    """So that the newest rollouts do not cost the whole journal, and are not given twice."""
    parts: list[list[e.AnyEvent]] = [
        [e.Published(0), *life(0)],
        [*life(1), *life(2, end=False)],
        [e.Discarded(2, "stale"), *life(3)],
    ]
    made = parts[0] + parts[1]
    make_journal(run, parts[0], parts[1], kept(fold(made), len(made)), parts[2])
    with SqliteHistory(run / JOURNAL) as history:
        told = {
            after: [one.rollout for _, one in newest_ended(history, 0, after)]
            for after in (0, len(parts[0]), len(made), len(made) + 1)
        }
        found = [number for number, _ in history.backward(9, 12)]
    assert [*told.values()] == [[3, 2, 1, 0], [3, 2, 1], [3, 2], [3]]
    assert found == [12, 11, 10]


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
    found = list(records(RunFiles(run), Wanted(last=1), pytest.fail))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.rollout for one in found] == [499]
    assert size > 7e6 and peak < size / 8, (size, peak)


@pytest.mark.parametrize(
    ("wanted", "rollouts"),
    [
        (Wanted(), list(range(11, 1, -1))),
        (Wanted(last=3), [11, 10, 9]),
        (Wanted(prompt=7), [11, 9, 7, 5, 3, 1]),
        (Wanted(prompt=7, last=2), [11, 9]),
        (Wanted(reward_below=0.25), [3, 2, 1, 0]),
        (Wanted(reward_above=0.25, last=5), [11, 10, 9, 8]),
        (Wanted(finish="length"), [9, 6, 3, 0]),
        (Wanted(split="evaluation"), []),
        (Wanted(step=3), []),
        (Wanted(failed=True), []),
        (Wanted(living=True), []),
        (Wanted(split="train", finish="stop", reward_below=0.5), [7, 5, 4, 2, 1]),
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
    make_journal(run, [e.Published(0)], *(life(n, text=f"a {n} é\x1b") for n in range(8)), played())
    PrintedFile(run, 0).keep(AttemptOutput(3, 2, "no such tool\n"))
    lines, table = tmp_path / "out.jsonl", tmp_path / "out.parquet"
    for to in (lines, table):
        assert main(["rollouts", str(run), "-o", str(to)]) == 0
    found = parquet.ParquetFile(table)
    rows = found.read().to_pylist()
    for row in rows:
        row["spans"] = [[*span.values()] for span in row["spans"]]
        row["failed_calls"] = dict(row["failed_calls"])
        row["left_out"], row["places"] = dict(row["left_out"]), dict(row["places"])
        row["printed"] = {str(attempt): text for attempt, text in row["printed"]}
    assert rows == [json.loads(line) for line in lines.read_text().splitlines()] and len(rows) == 9
    assert found.num_row_groups == 3 and len(rows[0]["messages"]) == 5
    assert [row["printed"] for row in rows if row["rollout"] == 3] == [{"2": "no such tool\n"}]
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


def test_the_expected_answer_is_that_of_the_prompt_that_was_read(run: Path) -> None:
    rows = [{"prompt": f"{n} * 7", "answer": str(7 * n)} for n in range(12)]
    (run / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_journal(run, [e.Published(0), *life(0, prompt=6), *life(1, prompt=5)])
    of_code = list(records(RunFiles(run), Wanted(), pytest.fail))
    path = run / "sums.jsonl"
    (run / RUN_TOML).write_text(f'task.name = "data"\ntask.path = "{path}"\ntask.eval_size = 2')
    told = list(records(RunFiles(run), Wanted(), pytest.fail))
    path.unlink()
    gone = list(records(RunFiles(run), Wanted(), pytest.fail))
    assert [[one.expected for one in found] for found in (of_code, told, gone)] == [
        ["", ""],  # a class of the user's is not imported
        ["", "42"],  # the other one read 6 * 7, and not 5 * 7
        ["", ""],
    ]


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
    (run / JOURNAL).unlink()
    answered_twice = [*played()[:9], e.Called(8, 2, 9, None, ids_of("x"), 7, 9, 1.0)]
    lives = [event for n in range(8) for event in life(n)]
    made = [e.Published(0), *lives, *answered_twice, *played()[-3:]]
    make_journal(run, made)
    assert "do not follow from one another" in refused(run, capsys)
    (run / JOURNAL).unlink()
    make_journal(run, [e.Published(0), *life(0)], life(1), life(2, end=False))
    with closing(sqlite3.connect(run / JOURNAL)) as file, file:
        file.execute("DELETE FROM events WHERE first = 8")
    assert "has no events from 8 to 13" in refused(run, capsys)
    with closing(sqlite3.connect(run / JOURNAL)) as file, file:
        file.execute("UPDATE header SET format = 3")
    assert "has format 3" in refused(run, capsys)
