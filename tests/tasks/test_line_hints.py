"""Ordinary files of other tools: the refusal says what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError
from asyncrl.tasks.jsonl import JsonlTask
from asyncrl.tasks.line_hints import hint

FILES = {
    "gsm8k": (
        b'{"question": "1 + 1?", "answer": "#### 2"}',
        "has question, answer: prompt is miss",
    ),
    "messages": (
        b'{"messages": [], "\\u001b[2J": 1}',
        r"messages, \x1b[2J: write the text of the question as prompt, and the right answer as ans",
    ),
    "table": (b"prompt,answer\n1 + 1,2", "a table of comma-separated values: write its rows as l"),
    "quoted table": (b'"prompt";"answer"\n"1";"2"', "a table of semicolon-separated values: write"),
    "tab-separated table": (
        b"question\tanswer\n1 + 1\t2",
        "a table of tab-separated values: write",
    ),
    "verl": (
        b'{"prompt": [{"role": "user", "content": "1"}], "reward_model": {}}',
        "and no list of messages: write that text",
    ),
    "label": (b'{"prompt": "1", "label": "2"}', "has prompt, label: answer is missing"),
    "nothing": (b"{}", "has nothing"),
    "many names": (
        b"{%s}" % b",".join(b'"k%d":1' % n for n in range(99)),
        "k5, 93 more: prompt and answer",
    ),
    "array": (b'[{"prompt": "1", "answer": "2"}]', "one array: write each of its objects on"),
    "array over lines": (b'[\n{"prompt": "1", "answer": "2"}\n]', "the file is one array"),
    "NaN": (b'{"prompt": "1", "answer": "2", "x": NaN}', "NaN and Infinity are no JSON"),
    "mark": (b'\xef\xbb\xbf{"prompt": "1", "answer": "2"}', "save it as UTF-8 without one"),
    "UTF-16": ('{"prompt": "1", "answer": "2"}'.encode("utf-16"), "the file is UTF-16"),
    "Parquet": (b"PAR1\x15\x04", "a Parquet file: write its rows as lines of JSON"),
    "gzip": (gzip.compress(b"{}"), "a file of gzip: unpack it"),
    "text": (b'"1 + 1"', "each line is an object with prompt and answer"),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_to_do_follows_what_is_wrong(kind: str, tmp_path: Path) -> None:
    data, says = FILES[kind]
    (file := tmp_path / "data.jsonl").write_bytes(data + b"\n")
    with pytest.raises(TaskError) as caught:
        JsonlTask(TaskConfig(name="jsonl", path=str(file), eval_size=0))
    assert f"{file}, line 1: " in str(caught.value) and says in str(caught.value)


def test_nothing_is_said_where_nothing_is_known() -> None:
    for text in (b"{", b"", b"nonsense", b'{"prompt": "", "answer": "x"}', b"[" * 10**6):
        assert hint(text, 2) == ""
