"""Tests of what the bench of faults judges: what a run leaves and says, and which faults it has."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from faults import (
    Fault,
    chosen,
    every,
    files_left,
    last_line,
    lowest_free,
    marked,
    notes,
    untold,
)

TRACE = "Traceback (most recent call last):\n  File …\nOSError: full\n"


def test_a_run_leaves_no_meeting_place_and_no_part(tmp_path: Path) -> None:
    for name in ("summary.json", "logs/trainer-0.log", "checkpoints/step-000004/model"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert not files_left(tmp_path)
    (tmp_path / "checkpoints" / ".partial-step-000008").mkdir()
    (tmp_path / ".status.json.01.partial").touch()
    (tmp_path / "weights.store").touch()
    os.mkfifo(tmp_path / "progress.pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "a.sock"))
    assert files_left(tmp_path) == [
        ".status.json.01.partial",
        "a.sock",
        "checkpoints/.partial-step-000008",
        "progress.pipe",
        "weights.store",
    ]


@pytest.mark.parametrize(
    ("terminal", "traceback", "sentence"),
    [
        ("0:01  training\nasyncrl: it failed.\n", False, "asyncrl: it failed."),
        (f"0:01  training\n{TRACE}", True, "OSError: full"),
        (
            f"0:01  training\nasyncrl: reward-0 ended; its last output:\n{TRACE}",
            False,
            "asyncrl: reward-0 ended",
        ),
        (f"a ended; its last output:\nx\n0:02  training\n{TRACE}", True, "a ended"),
    ],
)
def test_a_traceback_is_told_by_the_end_of_an_actor(
    terminal: str, traceback: bool, sentence: str
) -> None:
    assert untold(terminal) == traceback
    assert last_line(terminal) == sentence


def test_faults_are_chosen_by_their_parts() -> None:
    assert chosen("") == every() and len(set(every())) == len(every())
    assert {fault.role for fault in chosen("trainer:")} == {"trainer"}
    assert {fault.name for fault in chosen(":stop")} == {"stop"}
    assert chosen("machine:back") == [Fault("machine", "back")]
    assert not chosen("machine:kill")


def test_a_process_has_its_limits_and_its_life() -> None:
    argv = [sys.executable, "-c", "print(flush=True); input(); open('/dev/null')"]
    pipe = subprocess.PIPE
    environment = {"FAULTS_LIFE": "a life"}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [pid for pid, _ in marked(set(), "a life")] == [process.pid]
        assert not list(marked(set(), "a lif"))
        most = lowest_free(process.pid)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        _, said = process.communicate(b"\n")
    assert b"Too many open files" in said


def test_notes_are_what_happened_to_actors() -> None:
    assert notes("0:01  training\nrollout-0 was killed by SIGKILL.\n") == (
        "rollout-0 was killed by SIGKILL."
    )
