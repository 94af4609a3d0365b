"""The one reader of a run's files: each is read once, within a bound, and what it cannot say is one
sentence, the same from whoever asks."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from look_support import evaluation, life, make_journal, make_run, status, step

import asyncrl as rl
from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.explain import json_files, run_status, summary
from asyncrl.explain.run_files import RunFiles
from asyncrl.runtime.run_dir import JOURNAL, LOCK, METRICS, STALL, STATUS, SUMMARY

POINTS = [evaluation(0, 0.25), step(1), step(2)]
TOTALS = summary.Summary(ok=True, reason="done", steps=2, seconds=9.0)


def sentence(read: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as refused:
        read()
    return str(refused.value)


@pytest.mark.parametrize("there", [False, True])
def test_what_is_no_run_has_one_sentence(
    there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path if there else tmp_path / "none"
    said = sentence(lambda: RunFiles(path))
    assert said == sentence(lambda: rl.Run(path))
    for verb in ("why", "compare", "rollouts", "top", "report", "calibrate"):
        assert main([verb, str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err == f"asyncrl: {said}\n", verb


def test_a_run_that_ended_keeps_its_status_without_its_directory(tmp_path: Path) -> None:
    """Whoever removed it made a failed run one of bad input."""
    run = rl.Run(tmp_path / "gone", 1)
    assert (run.status, run.ok) == (1, False)
    with pytest.raises(ConfigError, match="there is no such directory"):
        _ = run.config


def test_what_is_not_there_yet_is_none_and_what_is_there_is_read_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    (run / METRICS).unlink()
    files = RunFiles(run)
    assert files.summary is None and files.last_status is None
    assert not files.stalled and not files.lives
    assert list(files.points()) == []
    summary.write(TOTALS, run / SUMMARY)
    run_status.write(status(step=7), run / STATUS)
    assert files.summary is None and files.last_status is None, "it is of its moment"
    files = RunFiles(run)
    assert files.summary == TOTALS and files.status.step == 7
    (run / SUMMARY).unlink()
    assert files.summary == TOTALS


def test_the_status_of_a_stall_goes_before_the_last_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", status=status(step=7))
    run_status.write(status(step=6), run / STALL)
    assert RunFiles(run).stalled and RunFiles(run).status.step == 6


def test_a_run_that_has_not_said_how_it_stands_is_told_by_whether_it_lives(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    assert "it ended before it began" in sentence(lambda: RunFiles(run).status)
    (run / JOURNAL).touch()  # a copy may have come that far
    assert "status.json is not in it, as in a copy that" in sentence(lambda: RunFiles(run).status)
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert RunFiles(run).lives
        assert "it is starting" in sentence(lambda: RunFiles(run).status)


@pytest.mark.parametrize("name", [STATUS, STALL, SUMMARY])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b'{"ok": 3}'])
def test_a_damaged_file_is_one_sentence(name: str, content: bytes, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    (run / name).write_bytes(content)

    def read() -> object:
        files = RunFiles(run)
        return files.summary if name == SUMMARY else files.last_status

    assert sentence(read) == (
        f"{run / name}: this is damaged, or of another asyncrl: use the one that wrote it, or put "
        "back a copy of the file."
    )


@pytest.mark.parametrize("name", [STATUS, SUMMARY, METRICS])
def test_a_file_that_cannot_be_read_is_one_sentence(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    reads: dict[str, Callable[[RunFiles], object]] = {
        STATUS: lambda files: files.status,
        SUMMARY: lambda files: files.summary,
        METRICS: lambda files: list(files.points()),
    }
    said = sentence(lambda: reads[name](RunFiles(run)))
    todo = "put the file back, or move away what has its name"
    assert said == f"{run / name}: cannot be read (Is a directory); {todo}."


def test_no_more_is_read_than_a_run_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "r")
    summary.write(TOTALS, run / SUMMARY)
    monkeypatch.setattr(json_files, "BYTES", (run / SUMMARY).stat().st_size)
    assert RunFiles(run).summary == TOTALS
    monkeypatch.setattr(json_files, "BYTES", 100)
    assert "larger than 100 bytes" in sentence(lambda: RunFiles(run).summary)
    (run / "run.toml").write_text("#" * 2**21)
    assert "is no run.toml" in sentence(lambda: RunFiles(run).settings)


def test_settings_are_read_as_they_are_written(tmp_path: Path) -> None:
    toml = "[train]\nlr = 0.1\nunheard_of = 3\n[task.params]\nn = 2\n"
    files = RunFiles(make_run(tmp_path / "r", toml=toml))
    assert files.settings == {"train.lr": 0.1, "train.unheard_of": 3, "task.params": {"n": 2}}
    assert files.tables["train"] == {"lr": 0.1, "unheard_of": 3}
    assert "unheard_of" in sentence(lambda: files.config)


def test_the_journal_is_read_or_one_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    with pytest.raises(ConfigError, match="there is no journal"), RunFiles(run).journal():
        pass
    make_journal(run, life(0))
    with RunFiles(run).journal() as history:
        assert len([*history.events(0)]) == len(life(0))
    (run / JOURNAL).write_bytes(b"\xff" * 4096)
    with pytest.raises(ConfigError, match="damaged"), RunFiles(run).journal():
        pass
