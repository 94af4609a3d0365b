"""A run's directory is its user's own: whoever else could write there could be the run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.launch.private import GROWING, private_files, refuse_foreign, refuse_shared
from asyncrl.runtime.ipc.keys import new_key, read_key, write_key

STRANGER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence by which a resume is refused; nothing is read of the directory."""
    (run / "run.toml").write_text("[train]\nsteps = 'what is read is refused otherwise'\n")
    assert main(["train", "--resume", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("asyncrl: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o702, 0o720])
def test_a_directory_that_others_may_write_to_is_refused(
    mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(mode)
    said = resumed(run, capsys)
    assert f"others may write to the run directory (mode {mode:o})" in said and "go-w" in said


@AS_ROOT
def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    os.chown(run, STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}, and this is user 0" in resumed(run, capsys)


def test_a_directory_behind_a_link_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    assert "is a symbolic link to" in resumed(tmp_path / "run", capsys)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    assert main(["train", "--set", f"run.dir={tmp_path / 'nowhere'}"]) == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder"])
@pytest.mark.parametrize("name", [*GROWING, "logs/trainer-0.log"])
def test_what_a_run_would_write_into_is_its_own(tmp_path: Path, name: str, kind: str) -> None:
    """A log behind a link was a traceback; a journal, or a file with a second name, was written."""
    run, mine = tmp_path / "run", tmp_path / ".profile"
    path = run / name
    path.parent.mkdir(parents=True)
    mine.write_text("mine")
    path.write_text("the run's own")
    refuse_shared(run)
    path.unlink()
    if kind == "link":
        path.symlink_to(mine)
    elif kind == "second name":
        path.hardlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match=f"{name}: this is .*, and the run would write into it"):
        refuse_shared(run)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_logs_are_no_directory_elsewhere(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    refuse_shared(run)
    if kind == "link":
        (run / "logs").symlink_to(tmp_path)
    else:
        (run / "logs").write_text("")
    with pytest.raises(ConfigError, match="logs: this is not a directory"):
        refuse_shared(run)


def test_a_link_of_ones_own_above_the_directory_is_how_disks_are_laid_out(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True, mode=0o700)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    refuse_foreign(tmp_path / "runs" / "run")
    refuse_foreign(tmp_path / "runs" / "new")


@AS_ROOT
def test_another_users_link_above_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True, mode=0o700)
    link = tmp_path / "runs"
    link.symlink_to(tmp_path / "disk")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    for run in ("run", "new"):
        with pytest.raises(ConfigError, match=f"is a symbolic link of user {STRANGER}"):
            refuse_foreign(link / run)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o711])
def test_a_directory_that_others_may_read_is_gone_on_with(mode: int, tmp_path: Path) -> None:
    """Runs of earlier versions made such ones where they were made by hand."""
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(mode)
    refuse_foreign(run)
    assert stat.S_IMODE(run.stat().st_mode) == mode, "it is not changed either"


def test_what_a_run_and_its_children_write_is_theirs_alone(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        code = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
        subprocess.run([sys.executable, "-c", code, tmp_path / "child"], check=True, timeout=300)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"file": 0o600, "folder": 0o700, "child": 0o600}
    (tmp_path / "after").touch()
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) == 0o644


# ------------------------------------------------------------------------------------------- keys


@AS_ROOT
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    """It has the right mode, and was put there by somebody else."""
    path = tmp_path / "key"
    write_key(path, new_key())
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(ValueError, match=f"belongs to user {STRANGER}"):
        read_key(path)


def test_a_key_behind_a_link_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "mine", new_key())
    (tmp_path / "key").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="is a symbolic link"):
        read_key(tmp_path / "key")


def test_a_key_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(ValueError, match="is not a file of this user"):
        read_key(tmp_path / "key")
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(ValueError, match="is not a file of this user"):
        read_key(tmp_path / "folder")


def test_a_key_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_key(tmp_path / "key")
