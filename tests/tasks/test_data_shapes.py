"""Ordinary files of other tools and projects: each is read as it is, and what is no data set is
refused with what to do."""

from __future__ import annotations

import bz2
import csv
import gc
import gzip
import io
import json
import lzma
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.data import kept_files
from asyncrl.tasks.data.data_rows import open_rows
from asyncrl.tasks.data.data_set import DataSet
from asyncrl.tasks.data.data_task import DataTask
from asyncrl.tasks.data.taught_rows import taught_rows
from asyncrl.tasks.prompt import ChatPrompt, text_of

SUMS = [(n, n + 1) for n in range(6)]
Row = dict[str, Any]


def lines(rows: Sequence[object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def said(text: str) -> Row:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
CHOICES = {"text": ["1", "3"], "label": ["A", "B"]}
# name of a form: a row of the sum, what it is read as, the answer's last token
FORMS: dict[str, tuple[Callable[[str, str], Row], str, str]] = {
    "own": (lambda q, a: {"prompt": q, "answer": int(a)}, "", "{}"),
    "gsm8k": (
        lambda q, a: {"question": q, "answer": f"It is <<{a}>>{a}.\n#### {a}"},
        "read as gsm8k: question, answer; the answer is what stands behind its `####`",
        "{}",
    ),
    "math": (
        lambda q, a: {"problem": q, "level": 1, "solution": f"It is $\\boxed{{{a}}}$."},
        "read as math: problem, solution; the answer is what stands in its last",
        "{}",
    ),
    "openr1": (
        lambda q, a: {"problem": q, "solution": "So.", "answer": a, "messages": [user(q)]},
        "read as openr1: problem, answer",
        "{}",
    ),
    "chat": (
        lambda q, a: {"messages": [SYSTEM, user(q), said(a)]},
        "read as chat: messages, the last message",
        "{}",
    ),
    "sharegpt": (
        lambda q, a: {
            "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]
        },
        "read as sharegpt: conversations, the last message",
        "{}",
    ),
    "verl": (
        lambda q, a: {"prompt": [user(q)], "reward_model": {"style": "rule", "ground_truth": a}},
        "read as verl: prompt, reward_model.ground_truth",
        "{}",
    ),
    "verifiers": (
        lambda q, a: {"prompt": [SYSTEM, user(q)], "answer": a, "info": {"n": 1}},
        "read as verifiers: prompt, answer",
        "{}",
    ),
    "rlvr": (
        lambda q, a: {"messages": [user(q), said("Hm.")], "ground_truth": a},
        "read as rlvr: messages, ground_truth",
        "{}",
    ),
    "slime": (lambda q, a: {"prompt": q, "label": a}, "read as slime: prompt, label", "{}"),
    "alpaca": (
        lambda q, a: {"instruction": "Add.", "input": q, "output": a},
        "read as alpaca: instruction, input, output",
        "{}",
    ),
    "squad": (
        lambda q, a: {"context": "Sums.", "question": q, "answers": {"text": [a], "start": [0]}},
        "read as squad: context, question, answers.text",
        "{}",
    ),
    "arc": (
        lambda q, a: {"question": q, "choices": CHOICES, "answerKey": "B"},
        "read as arc: question, choices, answerKey",
        "B",
    ),
    "mmlu": (
        lambda q, a: {"question": q, "choices": ["1", a], "answer": 1},
        "read as mmlu: question, choices, answer",
        "B",
    ),
    "completions": (
        lambda q, a: {"prompt": [user(q)], "completion": [said(a)]},
        "read as completions: prompt, completion",
        "{}",
    ),
    "strange case": (
        lambda q, a: {"ID": 1, "Problem": q, "Final Answer": a},
        "read by their keys Problem, Final Answer",
        "{}",
    ),
}


def opened(path: Path, **more: Any) -> Task:
    return open_task(TaskConfig(**{"name": "data", "path": str(path), "eval_size": 2, **more}), 0)


def holds_the_sums(task: Task, answer: str = "{}") -> None:
    """True of a task whose prompts are all the sums, in their order, used twice."""
    assert (task.size("train"), task.size("evaluation")) == (4, 2)
    for _ in range(2):
        for place, (a, b) in enumerate(SUMS):
            split, index = ("train", place) if place < 4 else ("evaluation", place - 4)
            right = answer.format(a + b)
            assert f"{a} + {b} =" in text_of(task.prompt(split, index))  # type: ignore[arg-type]
            assert task.answer(split, index) == right  # type: ignore[arg-type]
            assert task.verify(split, index, right) == 1.0  # type: ignore[arg-type]
            assert task.verify(split, index, "no") == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_a_known_form_are_read_without_a_setting(name: str, tmp_path: Path) -> None:
    row, says, answer = FORMS[name]
    (path := tmp_path / "data.jsonl").write_bytes(
        lines([row(f"{a} + {b} =", str(a + b)) for a, b in SUMS])
    )
    task = opened(path)
    holds_the_sums(task, answer)
    assert says in "".join(task.notes) and bool(says) == bool(task.notes)


ROWS: list[Row] = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a, b in SUMS]


def table(mark: str) -> bytes:
    writer = csv.DictWriter(text := io.StringIO(), ["question", "answer"], delimiter=mark)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def arrow(kind: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    content, out = pyarrow.Table.from_pylist(ROWS), io.BytesIO()
    if kind == "parquet":
        parquet.write_table(content, out, row_group_size=4)
        return out.getvalue()
    make = pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream
    with make(out, content.schema) as writer:
        writer.write_table(content, max_chunksize=4)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as packed:
        packed.write(data)
    return bytes(out.getvalue())


FORMATS: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: lines(ROWS),
    "lines.jsonl": lambda: b"\n \n" + lines(ROWS).replace(b"\n", b"\r\n\r\n  \n"),
    "mark.jsonl": lambda: b"\xef\xbb\xbf" + lines(ROWS),
    "wide.jsonl": lambda: lines(ROWS).decode().encode("utf-16"),
    "nan.jsonl": lambda: lines([{**row, "hard": float("nan")} for row in ROWS]),
    "a.json": lambda: json.dumps(ROWS).encode(),
    "over_lines.json": lambda: b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2).encode(),
    "nan.json": lambda: json.dumps([{**row, "x": float("inf")} for row in ROWS]).encode(),
    "a.csv": lambda: table(","),
    "marked.csv": lambda: b"\xef\xbb\xbf" + table(";"),
    "a.tsv": lambda: table("\t"),
    "unnamed": lambda: table(","),
    "a.jsonl.gz": lambda: gzip.compress(lines(ROWS)),
    "a.csv.gz": lambda: gzip.compress(table(",")),
    "a.json.bz2": lambda: bz2.compress(json.dumps(ROWS).encode()),
    "a.jsonl.xz": lambda: lzma.compress(lines(ROWS)),
    "a.jsonl.zst": lambda: zstd(lines(ROWS)),
    "a.parquet": lambda: arrow("parquet"),
    "a.arrow": lambda: arrow("stream"),
    "a.feather": lambda: arrow("file"),
}


@pytest.mark.parametrize("kept", ["in memory", "in the cache"])
@pytest.mark.parametrize("name", FORMATS)
def test_files_of_any_format_are_read_as_they_are(
    name: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept == "in the cache":
        monkeypatch.setattr(kept_files, "SMALL", 0)
        monkeypatch.setattr("asyncrl.tasks.data.line_rows.SMALL", 0)
        monkeypatch.setattr("asyncrl.tasks.data.arrow_rows.SMALL", 0)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (path := tmp_path / name).write_bytes(FORMATS[name]())
    for _ in range(2):
        holds_the_sums(opened(path))
    if kept == "in the cache":
        found = set((tmp_path / "cache/asyncrl/data").iterdir())
        assert found
        path.touch()  # another state of the file
        holds_the_sums(opened(path))
        assert len(list((tmp_path / "cache/asyncrl/data").iterdir())) == len(found)


def test_a_data_set_that_is_over_closes_its_file(tmp_path: Path) -> None:
    (path := tmp_path / "rows.jsonl").write_bytes(lines(ROWS))
    rows = open_rows(str(path))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del rows
        gc.collect()
    assert not said


def test_a_folder_and_a_pattern_are_their_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b-train.jsonl").write_bytes(lines(ROWS[3:]))
    first_rows = b"".join(table(",").splitlines(keepends=True)[:4])
    (tmp_path / "data" / "a-train.csv.gz").write_bytes(gzip.compress(first_rows))
    (tmp_path / "data" / "README.md").write_text("# sums")
    (tmp_path / "data" / "dataset_info.json").write_text("{}")
    (tmp_path / "data" / ".hidden.jsonl").write_text("{")
    first = opened(tmp_path / "data", eval_size=0)
    prompts = [text_of(first.prompt("train", n)) for n in range(first.size("train"))]
    assert prompts == [f"{row['question']}\n" for row in ROWS]
    by_pattern = opened(tmp_path / "data" / "*-train.*", eval_size=0)
    assert [text_of(by_pattern.prompt("train", n)) for n in range(len(prompts))] == prompts
    (tmp_path / "data" / "test.jsonl").write_bytes(lines([{"question": "held", "answer": "out"}]))
    split = opened(tmp_path / "data", eval_size=0)
    assert split.size("train") == len(prompts)
    assert any("test.jsonl" in note for note in split.notes)


WHOLE = lines(ROWS)
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "has no rows"),
    "no rows.json": (b"[]", "has no rows"),
    "only a header.csv": (b"question,answer\n", "has no rows"),
    "cut.jsonl.gz": (gzip.compress(WHOLE * 9)[:-30], "a file of gzip that cannot be unpacked"),
    "damaged.gz": (gzip.compress(WHOLE)[:20] + b"\0" * 40, "cannot be unpacked"),
    "cut.json": (json.dumps(ROWS).encode()[:-40], "is cut off"),
    "cut between.json": (b'[{"prompt": "1", "answer": 1},', "is cut off"),
    "more.json": (b'[{"prompt": "1", "answer": 1}] [1]', "goes on behind the end of its array"),
    "zip": (b"PK\x03\x04" + b"0" * 30, "a zip archive or a workbook"),
    "lies.parquet": (b"PAR1" + b"\0" * 40 + b"\xff\xff\xff\x7fPAR1", "a damaged file of Parquet"),
    "no object.jsonl": (lines([*ROWS, 7]), "line 7: it is a number, and each row is an object"),
    "texts.json": (b'["1 + 1"]', "row 1: it is a text, and each row is an object"),
    "cells.csv": (b"question,answer\n1 + 1,2\n1, 2,3\n", "row 2: it has 3 cells"),
    "one name twice.csv": (b"question,question\n1,2\n", "several columns with the name question"),
    "no name.csv": (b"question,\n1,2\n", "does not name each column"),
    "several lines.jsonl": (
        b'{\n "data": [\n',
        "begins one JSON object",
    ),
    "tool first.jsonl": (
        lines([{"messages": [{"role": "tool", "content": "1"}, user("1"), said("1")]}]),
        "its first message is a tool's",
    ),
    "latin.csv": (b"question,answer\n\xe4,2\n", "is no UTF-8 text"),
    "keys.jsonl": (lines([{"qestion": "1", "x": {"y": 2}}]), "the rows have qestion, x.y"),
    "many.jsonl": (lines([{f"k{n}": 1 for n in range(99)}]), "k7, 91 more"),
    "type.jsonl": (lines([*ROWS, {"question": 3, "answer": 3}]), "line 7: its question is a num"),
    "null.jsonl": (lines([*ROWS, {"question": "3", "answer": None}]), "line 7: its answer is null"),
    "gone.jsonl": (lines([*ROWS, {"question": "3", "anwser": 1}]), "line 7: answer is missing: it"),
    "lists.jsonl": (lines([{"prompt": "1", "answer": [1, None]}]), "no text, number or list of"),
    "none.jsonl": (lines([{"prompt": "1", "answer": []}]), "its answer is no text, number or list"),
    "object.jsonl": (lines([{"prompt": "1", "answer": {"of": 1}}]), "name a key of it in task.an"),
    "parts.jsonl": (
        lines([{"prompt": [{"role": "user", "content": [{"type": "audio"}]}], "answer": "1"}]),
        "line 1: its message 1 has a part that is neither text nor image",
    ),
    "no user.jsonl": (lines([{"messages": [SYSTEM, said("1")]}]), "have no user's among them"),
    "late system.jsonl": (
        lines([{"messages": [user("1"), SYSTEM, said("1")]}]),
        "its message 2 is the system's, behind one of the user",
    ),
    "no answer.jsonl": (lines([{"messages": [user("1")]}]), "so there is no answer to take"),
    "answered.jsonl": (
        lines([{"prompt": [user("1"), said("2")], "answer": "2"}]),
        "its last message is the assistant's",
    ),
    "role.jsonl": (lines([{"messages": [{"role": "boss", "content": "1"}]}]), "the role 'boss'"),
    "unmarked.jsonl": (
        lines([{"question": "1", "answer": "#### 1"}] * 70 + [{"question": "2", "answer": "2"}]),
        "line 71: its answer has no ####",
    ),
    **{
        f"calls {number}.jsonl": (
            lines([{"messages": [user("1"), {**said("1"), "tool_calls": calls}]}]),
            "the tool_calls of its message 2 are no list of objects with a function's name",
        )
        for number, calls in enumerate(
            ("f", 1, {"function": {"name": "f"}}, [1], [{}], [{"function": "f"}], [{"name": 1}])
        )
    },
    "tools.jsonl": (
        lines([{"prompt": [user("1")], "answer": "2", "tools": "search"}]),
        "its tools are no JSON",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_data_set_is_one_sentence(name: str, tmp_path: Path) -> None:
    data, says = REFUSED[name]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (path := tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError) as caught:
        opened(path, eval_size=0)
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_a_file_of_holes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """As a download leaves it that makes room first; a terabyte of zeros took minutes."""
    with (path := tmp_path / "a.jsonl").open("wb") as file:
        file.write(WHOLE)
        file.truncate(2**40)
    with pytest.raises(TaskError, match=r"a\.jsonl has holes: [\d,]+ of its 1,099,511,627,776"):
        opened(path)


def test_keys_that_settings_name_are_used_or_refused_with_those_that_are(tmp_path: Path) -> None:
    rows = [{"body": {"ask": f"{a} + {b} ="}, "gold": str(a + b), "answer": "?"} for a, b in SUMS]
    (path := tmp_path / "a.jsonl").write_bytes(lines(rows))
    holds_the_sums(opened(path, prompt_key="body.ask", answer_key="gold"))
    with pytest.raises(TaskError, match=r"'body.aks', and the rows have body.ask, gold.*body\.ask"):
        opened(path, prompt_key="body.aks")
    one = [{"body": row["body"], "gold": row["gold"]} for row in rows]
    path.write_bytes(lines(one))
    holds_the_sums(opened(path, prompt_key="body.ask"))
    inner = [{"body": {**row["body"], "Answer": row["gold"]}} for row in rows]
    path.write_bytes(lines(inner))
    holds_the_sums(opened(path, prompt_key="body.ask"))
    path.write_bytes(lines([{"prompt": row["body"]["ask"], "mine": row["gold"]} for row in rows]))
    holds_the_sums(opened(path, answer_key="mine"))


def test_ids_are_a_prompt_and_a_conversation_keeps_its_turns_and_tools(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    turns = [SYSTEM, user("Hello"), said("Hello."), user("1 + 1 =")]
    rows: list[Row] = [
        {"prompt": [5, 6, 7], "answer": "8"},
        {"prompt": turns, "answer": "2", "tools": json.dumps(tools)},
    ]
    (path := tmp_path / "a.jsonl").write_bytes(lines(rows))
    task = opened(path, eval_size=0, template="Q: {question}\n")
    assert task.prompt("train", 0) == [5, 6, 7]
    chat = task.prompt("train", 1)
    assert isinstance(chat, ChatPrompt) and (chat.messages, chat.tools) == (turns, tools)
    assert chat.text.startswith("Q: System: Be brief.\nUser: Hello\nAssistant: Hello.\nUser: 1")
    entry = task.entry("train", 1)  # type: ignore[attr-defined]
    assert (entry["prompt"], entry["tools"], entry["answer"]) == (turns, tools, "2")


def test_a_system_message_of_its_own_key_begins_the_conversation(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"system": "Be brief.", "prompt": "1 + 1 =", "answer": "2"},
        {"system": "", "prompt": "1 + 2 =", "answer": "3"},
        {"system_prompt": "Be brief.", "prompt": [SYSTEM, user("1 + 3 =")], "answer": "4"},
    ]
    (path := tmp_path / "a.jsonl").write_bytes(lines(rows))
    task = opened(path, eval_size=0)
    chats = [task.prompt("train", n) for n in range(3)]
    assert isinstance(chats[0], ChatPrompt) and chats[0].messages == [SYSTEM, user("1 + 1 =")]
    assert chats[1] == "1 + 2 =\n"
    assert isinstance(chats[2], ChatPrompt) and chats[2].messages == [SYSTEM, user("1 + 3 =")]
    assert "each begins with its system message" in "".join(task.notes)


def test_a_function_of_the_users_judges_prompts_without_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"brief_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("def f(answer, line): return float(len(answer) < 9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (path := tmp_path / "a.jsonl").write_bytes(lines([{"prompt": f"say {n}"} for n in range(3)]))
    task = opened(path, verifier=f"{name}:f", eval_size=1)
    assert [task.verify("train", 0, "x" * n) for n in (1, 9)] == [1.0, 0.0]
    assert task.answer("train", 0) is None
    with pytest.raises(TaskError, match="and none of these is known as an answer"):
        opened(path, eval_size=1)


def test_a_verifier_is_given_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"asked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "def f(answer, line): return float(answer.messages[-1]['content'] == line['id'])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [{"messages": [user(f"{n}"), said("1")], "id": f"{n}"} for n in range(3)]
    (path := tmp_path / "a.jsonl").write_bytes(lines(rows))
    task = opened(path, verifier=f"{name}:f", eval_size=1)
    assert [task.verify("train", n, "x") for n in (0, 1, 0)] == [1.0] * 3


def test_whole_solutions_are_taught(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_bytes(
        lines([{"question": "1 + 1?", "answer": "It is 2.\n#### 2"}])
    )
    config = TaskConfig(name="data", path=str(path))
    for _ in range(2):
        ((prompt, response),) = taught_rows(config)
        assert (prompt, response) == ("1 + 1?\n", "It is 2.\n#### 2")


def test_a_large_data_set_is_sampled_and_what_is_bad_later_costs_its_own_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.tasks.data.line_rows.SMALL", 0)
    monkeypatch.setattr("asyncrl.tasks.data.data_set.LOOKED_AT", 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"prompt": str(n), "answer": n} for n in range(40)]
    good = DataTask(TaskConfig(name="data", path=str(_file(tmp_path, rows)), eval_size=2))
    assert good.size("train") == 38 and "8 of 40 rows were checked" in "".join(good.notes)
    checked = set(good._sets["train"].sample())
    bad, repeated = [n for n in range(37, 3, -1) if n not in checked][:2]
    rows[bad] = {"prompt": 5, "answer": 1}
    rows[repeated] = {"prompt": "39", "answer": 39}
    task = DataTask(TaskConfig(name="data", path=str(_file(tmp_path, rows)), eval_size=2))
    assert task.size("train") == 38
    with pytest.raises(TaskError, match="its prompt is a number"):
        task.prompt("train", bad)
    with pytest.raises(TaskError, match="its prompt is held out"):
        task.prompt("train", repeated)
    assert task.prompt("train", 4) == "4\n" and task.prompt("evaluation", 1) == "39\n"
    rows[0] = {"prompt": 5, "answer": 1}
    with pytest.raises(TaskError, match="the line at byte 0: its prompt is a number"):
        DataTask(TaskConfig(name="data", path=str(_file(tmp_path, rows)), eval_size=2))


def _file(folder: Path, rows: Sequence[Row]) -> Path:
    (path := folder / "large.jsonl").write_bytes(lines(rows))
    return path


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), st.booleans())
def test_every_format_gives_the_rows_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], indented: bool
) -> None:
    from asyncrl.tasks.data.data_rows import open_rows

    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    folder = tmp_path_factory.mktemp("rows")
    writer = csv.DictWriter(text := io.StringIO(newline=""), ["question", "answer"])
    writer.writeheader()
    writer.writerows(rows)
    for name, data in {
        "a.jsonl": lines(rows),
        "a.json": json.dumps(rows, indent=1 if indented else None, ensure_ascii=indented).encode(),
        "a.csv": text.getvalue().encode(),
        "a.jsonl.gz": gzip.compress(lines(rows)),
    }.items():
        (path := folder / name).write_bytes(data)
        found = open_rows(str(path))
        for _ in range(2):
            assert [found.row(index) for index in range(len(found))] == rows


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300), st.sampled_from([b"", b"[", b"PAR1", b"\x1f\x8b\x08", b"ARROW1", b"{"])
)
def test_any_bytes_are_rows_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, begin: bytes
) -> None:
    (path := tmp_path_factory.mktemp("bytes") / "data").write_bytes(begin + data)
    with pytest.raises(TaskError):
        opened(path, eval_size=0, prompt_key="none there")


def test_a_table_of_arrow_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["1"])] * 2, names=["prompt", "prompt"])
    parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(TaskError, match="several columns with the name prompt"):
        DataSet(str(tmp_path / "twice.parquet"))


@pytest.mark.parametrize("answers", [{"text": ["4"], "answer_start": [0]}, ["4"], "4"])
def test_answers_in_the_plural_are_found(answers: object, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines([{"question": "2 + 2?", "answers": answers}]))
    assert DataSet(str(tmp_path / "rows.jsonl")).read(0).answer == "4"
