"""Languages, each by a program that is built and run; and a container, by a client that is none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from program_support import needs_programs

from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.docker import Container, arguments
from asyncrl.sandbox.programs.languages import LANGUAGES, build_of, no_tool, program_of, trial
from asyncrl.sandbox.programs.program import Program, ProgramError
from asyncrl.sandbox.programs.runner import run

TEMPLATE = Program(argv=(), seconds=300.0)


@needs_programs
@pytest.mark.processes
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_program_of_each_language_is_built_and_run(name: str) -> None:
    if problem := no_tool(name):
        pytest.skip(problem)
    problem = trial(name, Bubblewrap())
    if os.geteuid() == 0 and "Permission denied" in problem:
        pytest.skip(f"{problem}: programs are nobody's where asyncrl is root")
    assert problem == ""


def test_a_language_that_is_none_or_has_no_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert no_tool("cobol").startswith("no language is called 'cobol'; there are bash, c, cpp")
    monkeypatch.setitem(
        LANGUAGES, "odd", LANGUAGES["c"].__class__(tools=("oddc",), file="a", run=(), hello="")
    )
    assert no_tool("odd") == "odd needs `oddc`, which this machine does not have"
    assert trial("odd", Bubblewrap()) == no_tool("odd")


@needs_programs
@pytest.mark.processes
def test_a_language_whose_program_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    broken = msgspec.structs.replace(LANGUAGES["bash"], hello="echo no >&2; exit 4")
    monkeypatch.setitem(LANGUAGES, "bash", broken)
    assert trial("bash", Bubblewrap()) == "a program of bash that prints hello does not (no)"


@needs_programs
@pytest.mark.processes
def test_a_source_that_is_no_program_is_not_built() -> None:
    building = build_of("c", b"int main(", TEMPLATE)
    assert building is not None
    ran = run(building, Bubblewrap())
    assert not ran.well and b"main.c" in ran.stderr


def test_a_program_that_is_run_as_it_is_has_no_build() -> None:
    assert build_of("python", b"", TEMPLATE) is None
    program = program_of("python", b"1", TEMPLATE)
    assert program.files == {"main.py": b"1"} and program.argv[-1] == "main.py"


# --------------------------------------------------------------------- containers: a fake client

CLIENT = """#!{python} -I
import json, os, subprocess, sys
with open({log!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "rm":
    sys.exit()
words = sys.argv[2:]
if "{image}" not in words:
    sys.exit("docker: no such image", )
mount = next(word for word in words if word.startswith("type=bind"))
source = mount.split("src=")[1].split(",")[0]
command = words[words.index("{image}") + 1 :]
os.chdir({work!r})
command = [word.replace("/program/.", source + "/.") for word in command]
os.execv("/bin/sh", ["sh", *command])
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A command that runs what `docker run` would, in a directory and in no container."""
    (tmp_path / "work").mkdir()
    path = tmp_path / "docker"
    path.write_text(
        CLIENT.replace("{python}", sys.executable)
        .replace("{log!r}", repr(str(tmp_path / "log")))
        .replace("{work!r}", repr(str(tmp_path / "work")))
        .replace("{image}", "image")
    )
    path.chmod(0o755)
    return path


@pytest.mark.processes
def test_a_program_runs_in_a_container_that_is_removed(client: Path, tmp_path: Path) -> None:
    container = Container("image", str(client))
    assert container.missing() == ""
    given = Program(argv=("sh", "a.sh"), files={"a.sh": b"cat; exit 3"}, stdin=b"in", seconds=300.0)
    ran = run(given, container)
    assert (ran.stdout, ran.code) == (b"in", 3)
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    started = [call[call.index("--name") + 1] for call in calls if call[0] == "run"]
    assert [call[-1] for call in calls if call[0] == "rm"] == started and len(set(started)) == 2


@pytest.mark.processes
def test_a_container_is_removed_at_the_deadline(client: Path, tmp_path: Path) -> None:
    ran = run(Program(argv=("sleep", "1000"), seconds=1.0), Container("image", str(client)))
    assert ran.timed_out
    assert '"rm", "--force", "asyncrl-' in (tmp_path / "log").read_text()


@pytest.mark.processes
def test_a_container_that_cannot_be_had_is_said(client: Path, tmp_path: Path) -> None:
    assert "no command /not/docker" in Container("image", "/not/docker").missing()
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'docker: no daemon.' >&2\nexit 125\n")
    refusing.chmod(0o755)
    assert Container("x", str(refusing)).missing() == (
        "docker did not run the program: docker: no daemon."
    )
    with pytest.raises(ProgramError, match="only its image"):
        run(Program(argv=("a",), paths=("/opt",)), Container("image", str(client)))


def test_a_container_is_shut_in() -> None:
    limits = Limits(memory_bytes=7, processes=5, scratch_bytes=3)
    program = Program(argv=("a",), gateway="/run/g", environment={"X": "1"}, limits=limits)
    words = " ".join(arguments(program, "image", "name", "/files"))
    for part in (
        "--rm",
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--user 65534:65534",
        "--pids-limit 5",
        "--memory 7 --memory-swap 7",
        "size=3",
        "type=bind,src=/run/g,dst=/gateway.sock,readonly",
        "--env X=1",
        "type=bind,src=/files,dst=/program,readonly",
    ):
        assert part in words
    assert "--privileged" not in words and words.endswith("sh a")
