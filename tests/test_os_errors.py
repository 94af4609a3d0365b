"""An error of the operating system is named by its number, wherever a run meets it: no disk is
blamed where a process may open no further file."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors import SafetensorError

from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.disks import DISKS
from asyncrl.journal import JournalError, SqliteHistory
from asyncrl.journal.disk import DiskFull, Unwritable
from asyncrl.os_errors import OTHER, number_of, remedy
from asyncrl.training import checkpoint_io
from asyncrl.training.checkpoint_index import CheckpointError
from asyncrl.training.ranks.rank import ALONE

NAMED = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "quota",
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "fs.file-max",
    errno.EACCES: "right to write",
    errno.EPERM: "right to write",
    errno.EROFS: "is writable",
    errno.EIO: "the disk fails",
    errno.ENOENT: "put back",
}
"""Words that the remedy of each has, and of no other kind."""


@contextmanager
def no_further_file() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def published(run: Path, parts: Callable[[Path], list[Path]]) -> None:
    """Write a checkpoint of these parts, on one rank."""
    path = run / "checkpoints" / "step-000004"
    checkpoint_io._publish(path, parts, lambda folder, digests: None, ALONE)


@pytest.mark.parametrize("number", NAMED)
@pytest.mark.parametrize(
    "error",
    [
        lambda number: OSError(number, os.strerror(number), "/run/file"),
        lambda number: SafetensorError(f"I/O error: {os.strerror(number)} (os error {number})"),
        lambda number: SafetensorError(
            f'IoError(Os {{ code: {number}, kind: Other, message: "{os.strerror(number)}" }})'
        ),
    ],
)
def test_a_checkpoint_says_what_its_error_asks_for(
    error: type[OSError], number: int, tmp_path: Path
) -> None:
    def fails(_: Path) -> list[Path]:
        raise error(number)

    with pytest.raises(CheckpointError) as caught:
        published(tmp_path, fails)
    said = str(caught.value)
    assert os.strerror(number) in said
    assert NAMED[number] in said
    for other, words in NAMED.items():
        if words != NAMED[number] and (number, other) != (errno.EDQUOT, errno.ENOSPC):
            assert words not in said
    for unwritten in (1, 2, 5):
        [finding] = DISKS[0].find(RunFacts(unwritten=unwritten, unwritten_why=said), 0.0)
        assert said in finding.sentence and ("make room" in finding.sentence) is (
            number in (errno.ENOSPC, errno.EDQUOT)
        )


def test_a_trainer_without_a_free_descriptor_blames_no_disk(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()

    def fills(folder: Path) -> list[Path]:
        (folder / "file").write_bytes(b"")
        return []

    with no_further_file(), pytest.raises(CheckpointError, match="ulimit -n") as caught:
        published(tmp_path, fills)
    assert "room" not in str(caught.value)
    assert not any((tmp_path / "checkpoints").glob("step*"))


def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """SQLite says only that it is unable to."""
    path = tmp_path / "journal.sqlite"
    with SqliteHistory(path)._path.open("wb"):
        pass
    with no_further_file(), pytest.raises(JournalError, match="ulimit -n") as caught:
        SqliteHistory(path).snapshots()
    assert "room" not in str(caught.value)


def test_the_wait_for_a_disk_says_what_its_error_asks_for() -> None:
    assert DiskFull("full").remedy == "make room"
    assert Unwritable("no").remedy == OTHER
    assert Unwritable("no", remedy(OSError(errno.EMFILE, "no"))).remedy == remedy("[Errno 24] no")


def test_a_cause_is_looked_for_behind_others() -> None:
    cause = OSError(errno.EIO, "Input/output error")
    error = ValueError("unreadable")
    error.__cause__ = ExceptionGroup("two", [KeyError(), cause])
    assert number_of(error) == errno.EIO
    assert number_of(ValueError("[Errno 28] No space left on device")) == errno.ENOSPC
    assert not number_of(ValueError("exit code: none"))
