"""Text that somebody else wrote does nothing to whoever reads it, whatever command shows it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import unicodedata
from ast import literal_eval
from pathlib import Path

import msgspec
import pytest
from hostile import HOSTILE, HOSTILE_SUMMARY, hostile_status
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from asyncrl.cli import main
from asyncrl.config import Config
from asyncrl.config.derived import Row
from asyncrl.escape import CUT, escaped, escaped_lines, quoted
from asyncrl.explain import run_status, summary
from asyncrl.explain.display import Display, show_rows, show_summary
from asyncrl.journal import SqliteHistory
from asyncrl.launch.launcher import _Launch
from asyncrl.messages import StatusUpdate
from asyncrl.runtime import logs
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd
from asyncrl.runtime.processes.supervisor import ActorFailed
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer

CONTROLS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of what is no character to look at: controls, marks of direction, ends of lines."""
ANY = st.text(st.characters(codec=None, exclude_categories=()))


def harmless(text: str) -> None:
    """Each line of ours is printable, and none begins as the hostile one does."""
    assert "mine" in text, "it is shown at all"
    for line in text.split("\n"):
        assert not [one for one in line if unicodedata.category(one) in CONTROLS], ascii(line)
        assert not line.startswith("asyncrl: mine")


# ---------------------------------------------------------------------------------- the function


@given(ANY, st.integers(1, 60))
def test_an_escaped_text_is_one_printable_line_of_bounded_length(text: str, limit: int) -> None:
    shown = escaped(text, limit)
    assert len(shown) <= limit
    assert not [one for one in shown if unicodedata.category(one) in CONTROLS]
    shown.encode()
    assert escaped(shown, limit) == shown, "twice is once"
    if len(shown) < limit:
        assert (shown.isprintable() and not shown.endswith(CUT)) or text.endswith(CUT)


@given(ANY)
def test_printable_text_is_left_as_it_is_and_nothing_is_lost(text: str) -> None:
    shown = escaped(text, 10**6)
    if text.isprintable():
        assert shown == text
    if "\\" not in text:
        parts = [
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
        ]
        assert shown == "".join(parts)


@given(ANY)
def test_a_quoted_text_is_escaped_once(text: str) -> None:
    assert escaped(quoted(text), 10**6) == quoted(text), "it is printable"
    assert literal_eval(quoted(text, 10**6)) == text


@given(st.lists(ANY.filter(lambda text: "\n" not in text)))
def test_lines_stay_lines(lines: list[str]) -> None:
    assert escaped_lines("\n".join(lines)).split("\n") == [escaped(one) for one in lines or [""]]


def test_a_huge_text_is_not_looked_at_as_a_whole() -> None:
    assert escaped("\x1b" * 10**8, 20) == "\\x1b" * 4 + "\\x1" + CUT


# --------------------------------------------------------------------------------- the commands


@pytest.mark.parametrize(
    "changes",
    [{}, {"ok": False, "reason": HOSTILE}, {"ok": True, "reason": HOSTILE}],
    ids=["killed", "failed", "ended"],
)
@pytest.mark.parametrize("name", ["status.json", "stall.json"])
def test_why(
    changes: dict[str, object], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = msgspec.structs.replace(hostile_status(), **changes)
    (tmp_path / "run.toml").touch()
    run_status.write(status, tmp_path / name)
    assert main(["why", str(tmp_path)]) == 0
    harmless(capsys.readouterr().out)


def test_why_of_a_directory_with_such_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", f"/nowhere/{HOSTILE.replace(chr(0), '')}"]) == 2
    harmless(capsys.readouterr().err)


UPDATE = StatusUpdate(
    seconds=1.0,
    phase=HOSTILE,
    step=1,
    steps=2,
    reward=None,
    accuracy=None,
    accuracy_version=0,
    generated_per_s=0.0,
    trained_per_s=0.0,
    lag_mean=None,
    lag_max=0,
    queue_items=0,
    queue_bytes=0,
    idle_trainer=None,
    idle_rollout=None,
    pause_seconds=None,
    note=HOSTILE,
)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal what rich itself writes is taken out first: its own marks are no one else's."""
    monkeypatch.setenv("TERM", "dumb")
    console = Console(
        file=io.StringIO(), width=200, force_terminal=terminal, color_system=None, no_color=True
    )
    with Display(console) as display:
        display.note(HOSTILE)
        display.update(UPDATE)
    show_summary(HOSTILE_SUMMARY, Path(HOSTILE), console)
    show_rows([Row("mine", HOSTILE, HOSTILE)], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for ours in ("\x1b[1m", "\x1b[2m", "\x1b[0m", "\x1b[3m"):
        text = text.replace(ours, "")
    harmless(text)


def test_the_block_of_a_terminal() -> None:
    from asyncrl.explain.display import panel

    console = Console(file=io.StringIO(), width=400, color_system=None)
    console.print(panel(UPDATE))
    assert isinstance(console.file, io.StringIO)
    harmless(console.file.getvalue())


def test_the_words_that_a_run_ends_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of an actor's log, which may quote anybody."""
    launch = _Launch(msgspec.convert({"run": {"dir": str(tmp_path)}}, Config), True, Console())
    failure = ActorFailed("rollout-0", 1, f"Traceback of mine\nOSError: {HOSTILE}")
    assert launch._report(SupervisedEnd(None, failure)) == 1
    harmless(capsys.readouterr().err.replace("\nasyncrl: mine", ""))
    summary.write(HOSTILE_SUMMARY, tmp_path / "summary.json")
    launch._report(SupervisedEnd(None, failure))
    harmless(capsys.readouterr().out)


SAYS = """
import logging, sys
from pathlib import Path
from asyncrl.runtime import logs
logs.start(Path(sys.argv[1]), "rollout", 0, "info")
logging.warning("it said %s", sys.argv[2])
raise ValueError(sys.argv[2])
"""


def test_the_logs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", SAYS, tmp_path, HOSTILE.replace("\0", "")], check=False, timeout=300
    )
    text = logs.path(tmp_path, "rollout", 0).read_text()
    said, _, trace = text.partition("ended by an uncaught exception")
    harmless(said)
    assert len(said.splitlines()) == 3, "what follows a line's end is set in"
    assert "Traceback" in trace and not [
        one
        for one in trace
        if unicodedata.category(one) in CONTROLS - {"Cc"} or one in "\x1b\r\x9b"
    ]
    assert logging.getLogger().handlers is not None


# -------------------------------------------------------------------------------- files of others

SAID = HOSTILE.replace("\0", "").replace("\r", "").replace("\n", "")
BAD_INPUT = {
    "a setting": ["--set", f"task.name={SAID}"],
    "a plug-in's name": ["--set", f"task.curriculum=mine:{SAID}"],
    "a plug-in that fails": ["--set", "task.curriculum=hostile_plugin:Order"],
    "a file": [f"{SAID}.toml"],
    "a line of prompts": ["--set", "task.name=jsonl", "--set", "task.path=prompts.jsonl"],
}


@pytest.mark.parametrize("argv", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile_plugin.py").write_text(f"raise RuntimeError({HOSTILE!r})")
    line = json.dumps({"prompt": "a", "answer": 1, "verifier": HOSTILE}, ensure_ascii=False)
    (tmp_path / "prompts.jsonl").write_text(f"{line}\n")
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("asyncrl: ") and err.count("\n") == 1
    harmless(err)


def test_a_configuration_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory's name is the one text of a run.toml that the table repeats as it is."""
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--set", f"run.dir={SAID}", "--set", "task.train_size=20"]) == 0
    harmless(capsys.readouterr().out)


@pytest.mark.parametrize(
    "config", [{"model_type": HOSTILE}, {"model_type": "qwen3", "auto_map": {"AutoModel": HOSTILE}}]
)
def test_a_models_directory(config: dict[str, object], tmp_path: Path) -> None:
    import torch

    from asyncrl.training.models import ModelError, load_model

    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [HOSTILE]}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path, torch.float32)
    assert str(caught.value).isprintable()


def test_a_chat_template_that_raises(tmp_path: Path) -> None:
    from asyncrl.bundled.bundled_model import write_tokenizer

    write_tokenizer(tmp_path)
    template = "{{ raise_exception('mine \x1b[2J\u202e') }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(TaskError) as caught:
        Tokenizer(tmp_path, chat=True).render([{"role": "user", "content": "a"}])
    harmless(str(caught.value))


def test_a_journal_of_another_run(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    from asyncrl.journal import JournalError

    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
        file.execute("INSERT INTO header VALUES (?, ?)", (HOSTILE, HOSTILE))
        file.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB)")
    with pytest.raises(JournalError) as caught:
        SqliteHistory(path).snapshots()
    harmless(escaped(str(caught.value)))
