"""A run goes on whatever becomes of where its display is written."""

from __future__ import annotations

import fcntl
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from asyncrl.cli import main
from asyncrl.explain.display import Display
from asyncrl.messages import StatusUpdate
from asyncrl.runtime.output import Output

STATUS = StatusUpdate(1.0, "training", 1, 2, *[0.0] * 2, 0, *[0.0] * 3, 0, 0, 0, *[0.0] * 3, "")


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    """The end that is written, and the end that is read."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as writer:
        yield writer, reader


@pytest.mark.parametrize("terminal", [False, True])
def test_a_pipe_that_nobody_reads_makes_the_display_quiet(
    terminal: bool, pipe: tuple[TextIO, TextIO], caplog: pytest.LogCaptureFixture
) -> None:
    writer, reader = pipe
    output = Output(writer)
    console = Console(file=output, force_terminal=terminal, legacy_windows=False)
    with Display(console) as display:
        display.update(STATUS)
        assert not output.quiet
        reader.close()
        for _ in range(3):
            display.update(STATUS)
            display.note("a note")
    assert output.quiet
    assert [record.message for record in caplog.records] == ["nothing more is shown: Broken pipe"]
    writer.write("what the interpreter writes as it ends")
    writer.flush()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_full_disk_makes_the_display_quiet(
    terminal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Path("/dev/full").open("w") as full:
        output = Output(full)
        console = Console(file=output, force_terminal=terminal, legacy_windows=False)
        with Display(console) as display:
            display.update(STATUS)
            display.note("a note")
        full.write("what the interpreter writes as it ends")
    assert output.quiet
    assert [record.message for record in caplog.records] == [
        "nothing more is shown: No space left on device"
    ]


def test_a_reader_who_takes_nothing_holds_nobody_up_and_hears_the_notes_later(
    pipe: tuple[TextIO, TextIO],
) -> None:
    writer, reader = pipe
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    console = Console(file=Output(writer), force_terminal=False)
    with Display(console) as display:
        for number in range(90):
            display.note(f"note {number} {'x' * 80}")
        assert "note 0 " in reader.readline()
        said = ""
        while "note 89 " not in said:
            display.update(STATUS)
            said = reader.readline()


def test_what_is_shown_is_what_was_written() -> None:
    stream = io.StringIO()
    output = Output(stream)
    assert output.write("text") == 4 and not output.isatty()
    output.flush()
    assert stream.getvalue() == "text"


def test_what_holds_no_descriptor_falls_quiet_too(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    output = Output(Gone())
    with caplog.at_level(logging.WARNING):
        assert output.write("text") == 4 and output.write("text") == 4
    assert output.quiet and len(caplog.records) == 1


@pytest.mark.parametrize("verb", ["tasks", "settings", "--help", "runs"])
def test_a_command_outlives_the_reader_of_its_output(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stdout that was closed before the start, and a disk that is full."""
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        for stdout in (None, full):
            monkeypatch.setattr("sys.stdout", stdout)
            monkeypatch.setattr("sys.stderr", None)
            try:
                status = main([verb])
            except SystemExit as ended:
                status = ended.code or 0
            assert status == (2 if verb == "runs" else 0)
            monkeypatch.undo()
            monkeypatch.chdir(tmp_path)
