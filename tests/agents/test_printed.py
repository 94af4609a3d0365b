"""Output of agents, kept for whoever looks at a run."""

from pathlib import Path

import pytest

from asyncrl.agents.printed import BYTES, AttemptOutput, PrintedFile, printed
from asyncrl.runtime.run_dir import PRINTED


def test_the_newest_is_kept_and_its_bytes_are_bounded(tmp_path: Path) -> None:
    """Also over two lives of an actor, and beside another actor."""
    text = "é" * 9_000
    for life in range(2):
        kept, other = PrintedFile(tmp_path, 0), PrintedFile(tmp_path, 1)
        for number in range(500):
            kept.keep(AttemptOutput(number, 1 + life, f"{text}{number}"))
            kept.keep(AttemptOutput(number, 7, " \n"))
        other.keep(AttemptOutput(3, 9, "elsewhere"))
    assert sum(path.stat().st_size for path in (tmp_path / PRINTED).iterdir()) <= 2 * BYTES + 200
    assert printed(tmp_path, 499) == {2: f"{text}499"}
    assert printed(tmp_path, 450)[2].endswith("450")
    assert printed(tmp_path, 3) == {9: "elsewhere"}
    assert printed(tmp_path, 49) == {}


def test_what_is_damaged_or_no_file_is_left_out(tmp_path: Path) -> None:
    assert printed(tmp_path, 1) == {}
    kept = PrintedFile(tmp_path, 0)
    kept.keep(AttemptOutput(1, 1, "first"))
    file = tmp_path / PRINTED / "agents-0.jsonl"
    with file.open("ab") as appended:
        appended.write(b'[1,2,"to\n[1,"x","y"]\n\xff\n[1,3,"third"]\n')
    (file.parent / "agents-2.jsonl").mkdir()
    (file.parent / "agents-4.jsonl").symlink_to("/dev/zero")
    assert printed(tmp_path, 1) == {1: "first", 3: "third"}


def test_a_disk_that_takes_nothing_ends_no_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / PRINTED).write_text("a file")
    kept = PrintedFile(tmp_path, 0)
    kept.keep(AttemptOutput(1, 1, "first"))
    kept.keep(AttemptOutput(1, 2, "second"))
    [said] = caplog.messages
    assert "no output of agents is kept any more" in said
