"""Notes of what was opened outside, and its end by kind: nothing is left without a note, and
nothing but what a checked note names is ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.sandbox.enders import Enders
from asyncrl.sandbox.opened import NOTE_BYTES, NoteError, Opened, ended, left, note, notes_of

CONTAINER = Opened("container", "asyncrl-1", ("docker",))
ENGINE = """#!{python} -SE
import pathlib, sys
things = pathlib.Path({things!r})
(things / "asked").open("a").write(" ".join(sys.argv[1:]) + "\\n")
name = things / sys.argv[-1]
if name.name == "asyncrl-hangs":
    import time
    time.sleep(600)
if name.name == "asyncrl-fails":
    sys.exit("the daemon is away")
if not name.exists():
    sys.exit(f"Error response from daemon: No such container: {name.name}")
name.unlink()
"""


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are an engine's containers, and that engine, `docker`."""
    folder, path = tmp_path / "things", tmp_path / "bin"
    folder.mkdir()
    path.mkdir()
    text = ENGINE.replace("{python}", sys.executable).replace("{things!r}", repr(str(folder)))
    (path / "docker").write_text(text)
    (path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    return folder


def enders(run: Path, *command: str) -> Enders:
    return Enders(run, command, {"cloud": lambda _: True}, end_s=1.0, settle_s=0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(
            Opened,
            st.sampled_from(["container", "directory", "remote", "command"]),
            st.sampled_from(
                ["asyncrl-1", "asyncrl-b.c", "b", "-f", "../x", "", "a/b", "a\nb", "é"]
            ),
            st.sampled_from([(), ("docker",), ("podman",), ("/bin/sh",), ("cloud",), ("-x",)]),
        )
    )
)
def test_what_is_noted_is_left_until_it_is_ended(
    tmp_path_factory: pytest.TempPathFactory, all_of: list[Opened]
) -> None:
    """Whatever can be noted comes back as it was; nothing else can be noted."""
    run, noted = tmp_path_factory.mktemp("run"), set[Opened]()
    for opened in all_of:
        try:
            note(run, opened, "agents-0.r1-1")
        except NoteError:
            assert opened != CONTAINER
        else:
            noted.add(opened)
            assert not opened.name.startswith("-") and ".." not in opened.name
    assert {found.opened for found in left(run)} == noted
    assert not list(left(run, "agents-0.r1")) and not list(left(run, "agents-1"))
    assert {found.opened for found in left(run, "agents-0")} == noted
    for opened in noted:
        ended(run, opened, "agents-0.r1-1")
    assert not list(left(run)) and not list((run / "opened").iterdir() if noted else ())


def test_what_a_stranger_has_written_is_told_and_not_done(tmp_path: Path, things: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    folder = notes_of(run, "agents-0.r1-1")
    folder.mkdir(parents=True)
    for number, text in enumerate(
        [
            b"",
            b'{"kind": "container", "na',
            b'{"kind": "container", "name": "-f", "end": ["docker"]}',
            b'{"kind": "container", "name": "my-database", "end": ["docker"]}',
            b'{"kind": "container", "name": "asyncrl-1", "end": ["/bin/sh"]}',
            b'{"kind": "container", "name": "asyncrl-1", "end": ["docker", "rm"]}',
            b'{"kind": "directory", "name": "../../outside"}',
            b'{"kind": "command", "name": "x", "end": ["rm", "-rf", "/"]}',
            b'{"kind": "x", "name": "y"}',
            b"[" * 4000,
            b" " * (NOTE_BYTES + 1),
        ]
    ):
        (folder / f"{number}.json").write_bytes(text)
    (folder / "link.json").symlink_to(outside)
    os.mkfifo(folder / "pipe.json")
    (folder / ".half.partial").write_text("{")  # of a writer that was killed: nothing was opened
    (run / "opened" / "away").symlink_to(outside)
    (outside / "x.json").write_text('{"kind": "directory", "name": "x"}')
    done = enders(run).end_left()
    assert len(done) == 14 and all("no note of ours" in one.wrong for one in done)
    assert not (things / "asked").exists() and (outside / "x.json").exists()
    assert len(list(left(run))) == 14
    (run / "scratch").symlink_to(outside)
    one = Opened("directory", "x.json")
    note(run, one)
    assert "symbolic link" in enders(run).end_left("run")[0].wrong and (outside / "x.json").exists()
    with pytest.raises(NoteError, match="symbolic link"):
        enders(run).made(one)
    with pytest.raises(NoteError, match="symbolic link"):
        note(run, one, "away")


@pytest.mark.processes
def test_each_kind_is_ended_and_what_cannot_be_keeps_its_note(tmp_path: Path, things: Path) -> None:
    run, ends = tmp_path / "run", enders(tmp_path / "run", sys.executable, "-c", "import sys")
    (things / "asyncrl-1").touch()
    (run / "scratch" / "work" / "deep").mkdir(parents=True)
    gone = [CONTAINER, Opened("directory", "work"), Opened("remote", "i-7/a", ("cloud",))]
    gone += [Opened("container", "asyncrl-never", ("docker",)), Opened("command", "vm-3")]
    kept = [Opened("container", f"asyncrl-{word}", ("docker",)) for word in ("hangs", "fails")]
    kept += [Opened("remote", "i-8", ("nobody",))]
    for opened in [*gone, *kept]:
        note(run, opened, "agents-0.r1-1")
    done = {one.note.opened: one.wrong for one in ends.end_left()}
    assert {opened for opened, wrong in done.items() if not wrong} == set(gone)
    assert "did not end it within 1 s" in done[kept[0]]
    assert "docker rm ended with 1: the daemon is away" in done[kept[1]]
    assert "no adapter for the provider nobody" in done[kept[2]]
    assert {found.opened for found in left(run)} == set(kept)
    assert not (things / "asyncrl-1").exists() and not (run / "scratch" / "work").exists()
    asked = (things / "asked").read_text().splitlines()
    assert "rm --force --volumes asyncrl-1" in asked
    # the engine may have had the request of a client that was killed: it is asked once more
    assert asked.count("rm --force --volumes asyncrl-never") == 2
    # a second use ends nothing twice
    assert {one.note.opened for one in ends.end_left()} == set(kept)


def test_what_could_not_be_ended_is_not_opened(tmp_path: Path) -> None:
    for opened, why in [
        (Opened("command", "vm-3"), "agent.end is empty"),
        (Opened("remote", "i-8", ("nobody",)), "no adapter"),
        (Opened("container", "asyncrl-1", ("nerdctl",)), "docker or podman"),
    ]:
        with pytest.raises(NoteError, match=why):
            enders(tmp_path).refuse(opened)
