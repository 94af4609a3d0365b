"""Files of a directory that somebody else filled: nothing outside it is written, and no read waits
or is without a bound."""

from __future__ import annotations

import ast
import os
import re
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.config import Config, write
from asyncrl.explain import curve, run_status, summary
from asyncrl.explain.curve_file import CurveFile
from asyncrl.explain.summary import Summary
from asyncrl.explain.views.report import write_report
from asyncrl.files import (
    forget_partial,
    forget_partial_folders,
    open_growing,
    open_regular,
    read_regular,
    write_whole,
)
from asyncrl.runtime import logs
from asyncrl.sandbox.zygote import NOBODY

ROOT = Path(__file__).parents[1]
MINE = "what the user had\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user's, to which links of a stranger's directory lead."""
    (file := tmp_path / "mine").write_text(MINE)
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (run := tmp_path / "run").mkdir()
    write(Config(), run / "run.toml")
    return run


def linked(mine: Path, run: Path, *names: str) -> None:
    for name in names:
        (run / name).parent.mkdir(exist_ok=True)
        for path in (run / name, run / f"{name}.partial"):
            path.unlink(missing_ok=True)
            path.symlink_to(mine)


def test_what_is_written_whole_replaces_a_link_and_never_follows_one(mine: Path, run: Path) -> None:
    names = ("run.toml", "report.html", "summary.json", "a", "metrics.jsonl")
    linked(mine, run, *names)
    write_whole(run / "a", "new")
    write(Config(), run / "run.toml")
    summary.write(Summary(ok=True, reason="", steps=0, seconds=0.0), run / "summary.json")
    write_report(run, None, 0.0)
    curve.trim(run / "metrics.jsonl", 0, 0)
    assert mine.read_text() == MINE
    for name in names:
        assert not (run / name).is_symlink() and (run / f"{name}.partial").is_symlink()
    assert read_regular(run / "a", 3) == b"new"


@pytest.mark.parametrize("target", ["file", "nowhere"])
def test_what_grows_is_no_link(mine: Path, run: Path, target: str) -> None:
    to = mine if target == "file" else mine.with_name("made")
    for name in ("metrics.jsonl", "logs/trainer-0.log"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(to)
    with pytest.raises(OSError):
        CurveFile(run / "metrics.jsonl")
    with pytest.raises(OSError), logs.kept(run, "trainer", 0):
        pass
    assert mine.read_text() == MINE and not mine.with_name("made").exists()


READS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: read_regular(path, 2**20),
    "curve": lambda path: [*curve.read(path)],
    "status": run_status.read,
    "summary": summary.read,
    "opened": open_regular,
    "grown": open_growing,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_a_read_of_what_is_no_file_is_refused_at_once(tmp_path: Path, read: str, kind: str) -> None:
    path = tmp_path / "it"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")
    refused = list[OSError]()

    def look() -> None:
        try:
            READS[read](path)
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive() and refused


def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**37)
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        read_regular(tmp_path / "sparse", 1000)
    with pytest.raises(OSError, match="larger than"):
        run_status.read(tmp_path / "sparse")


def test_directories_that_were_being_written_are_removed_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    for folder in (elsewhere, run):
        (folder / ".partial-step" / "deep").mkdir(parents=True)
    (run / "step").mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    (run / ".partial-link").symlink_to(elsewhere)
    forget_partial_folders(run)
    forget_partial_folders(run / "checkpoints")
    forget_partial_folders(run / "missing")
    assert (elsewhere / ".partial-step" / "deep").is_dir()
    assert sorted(path.name for path in run.iterdir()) == [".partial-link", "checkpoints", "step"]


def test_a_small_file_takes_little_memory_whatever_the_bound(tmp_path: Path) -> None:
    write_whole(tmp_path / "small", b"x" * 3)
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "small", 2**28) == b"xxx"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    write_whole(tmp_path / "exact", b"x" * (2**20 + 5))
    assert len(read_regular(tmp_path / "exact", 2**20 + 5)) == 2**20 + 5
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "exact", 2**20 + 4)


@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_file_that_its_user_may_not_write_stays(mode: int) -> None:
    """Its folder would let it be replaced."""
    with tempfile.TemporaryDirectory() as made:
        folder, user = Path(made), os.geteuid()
        kept = folder / "kept"
        kept.write_text("mine")
        kept.chmod(mode)
        if user == 0:  # who may write all
            os.chown(folder, NOBODY, -1)
            os.chown(kept, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            with pytest.raises(PermissionError, match="kept"):
                write_whole(kept, "other")
            write_whole(folder / "new", "other")
        finally:
            os.seteuid(user)
        assert sorted(path.name for path in folder.iterdir()) == ["kept", "new"]
        assert kept.stat().st_mode & 0o777 == mode


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_whole(tmp_path / "a", 1)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    (tmp_path / ".a.0123.partial").touch()
    forget_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


EXEMPT = {
    "asyncrl/files.py": "opens files safely",
    "asyncrl/config/pages.py": "writes this project's own pages",
    "asyncrl/launch/first_run.py": "writes a file that must not be there, by open('x')",
    "asyncrl/launch/stored_copy.py": "writes into a directory that it has made",
    "asyncrl/launch/run_copy.py": "writes into the user's own copy",
    "asyncrl/launch/cluster/agent.py": "writes into a directory that is this user's alone",
    "asyncrl/launch/cluster/model_files.py": "writes into a directory that is this user's alone",
    "asyncrl/engines/servers/kept_servers.py": "writes into a directory that it has made",
    "asyncrl/bundled/bundled_model.py": "writes into a directory that it has made",
    "asyncrl/bundled/small_vision.py": "writes into a directory that it has made",
    "asyncrl/training/checkpoint_io.py": "writes into a directory that it has made",
    "asyncrl/training/model_writing.py": "writes into a directory that the checkpoint has made",
    "asyncrl/sandbox": "writes into the sandbox, and to the kernel",
    "asyncrl/runtime/processes/priority.py": "writes to the kernel",
    "asyncrl/simulation": "has a disk of its own",
}


def test_nothing_else_opens_a_file_to_write_it() -> None:
    found = list[str]()
    for folder in ("asyncrl", "actors", "staleness", "weightsync"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name in EXEMPT or any(name.startswith(f"{exempt}/") for exempt in EXEMPT):
                continue
            found += [f"{name}:{line}" for line in writes(path.read_text())]
    assert not found, "use asyncrl/files.py"


def writes(source: str) -> list[int]:
    """Lines in which a file is opened to be written.

    >>> writes("p.open('rb'); p.open('wb'); p.write_text(''); file.write('')")
    [1, 1]
    """
    lines = list[int]()
    if not re.search(r"\b(open|write_text|write_bytes)\b", source):
        return lines  # most files, which need not be parsed
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        modes = [one.value for one in node.args if isinstance(one, ast.Constant)]
        opens = node.func.attr == "open" and any(
            isinstance(mode, str) and {*mode} & {*"wax+"} and {*mode} <= {*"rwaxbt+"}
            for mode in modes
        )
        if opens or node.func.attr in ("write_text", "write_bytes"):
            lines.append(node.lineno)
    return lines
