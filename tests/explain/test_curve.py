"""The curve on disk: one line for each version and each evaluation, whatever was killed at whatever
byte."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.explain.curve import (
    Curve,
    EvaluationPoint,
    Point,
    StepPoint,
    finite,
    kept,
    line_of,
    point_of,
    read,
    trim,
)
from asyncrl.explain.curve_file import CurveFile, open_curve
from asyncrl.explain.sinks.sink_figures import figures_of
from asyncrl.explain.summary import Accuracy
from asyncrl.journal import Journal

CLOCK = ("at", "seconds")
"""Fields that say when a point was made, and so differ between two lives."""


def step(version: int, life: int = 0) -> StepPoint:
    """The point of a step: its figures are the version's, its clock the life's."""
    return StepPoint(
        version=version,
        at=1e9 + 1000.0 * life + version,
        seconds=100.0 * life + version,
        step_seconds=0.5,
        reward=version / 8,
        trained=100 + version,
        discarded={"stale": version},
        lag_mean=0.5,
        lag_max=version % 3,
        metrics=finite({"loss": -0.25 * version, "grad_norm": float("inf")}),
        alarms=[],
        generated=1000 * version,
        generated_per_s=10.0,
        trained_per_s=9.0,
        queue_rollouts=3,
        queue_bytes=999,
        idle_trainer=0.25,
        idle_rollout=None,
        pause_seconds=0.001,
    )


def evaluation(version: int, life: int = 0) -> EvaluationPoint:
    return EvaluationPoint(
        version=version, at=1e9 + life, seconds=100.0 * life + version, accuracy=version / 16
    )


def test_a_line_is_json_that_says_what_it_is_and_comes_back() -> None:
    for point, kind in ((step(3), "step"), (evaluation(3), "evaluation")):
        line = line_of(point)
        assert line.count(b"\n") == 1 and line.endswith(b"\n") and point_of(line) == point
        said = json.loads(line)
        assert said["kind"] == kind and said["version"] == 3
    assert json.loads(line_of(step(3)))["metrics"] == {"loss": -0.75, "grad_norm": None}


@given(st.binary(max_size=200) | st.just(b"[" * 5000 + b"\n"))
def test_what_nobody_wrote_is_no_point(data: bytes) -> None:
    assert point_of(data) is None and point_of(data + b"\n") is None


class Machine:
    """A run by its rules alone: `file` is what the kernel has of the curve, whole lines or not. A
    line is written before its version is published, and before its checkpoint counts."""

    def __init__(self, steps: int, checkpoint_every: int, eval_every: int) -> None:
        self.steps, self.every, self.eval_every = steps, checkpoint_every, eval_every
        self.file = b""
        self.checkpoint = self.published = self.lives = 0

    def live(self, publish: bool, steps: int) -> None:
        """Go on from the checkpoint, and make so many steps more; the last is published or not."""
        lines: list[bytes] = []
        old = kept(self.file.splitlines(keepends=True), self.checkpoint, self.published)
        self.file = b"".join(old)
        curve = Curve(filter(None, map(point_of, self.file.splitlines(keepends=True))))
        curve._keep = lines.append
        redone, last = self.published, min(self.steps, max(self.published, self.checkpoint) + steps)
        for version in range(self.checkpoint + 1, last + 1):
            curve.add(step(version, self.lives))
            if version >= redone and (publish or version < last):
                self.published = max(self.published, version)
                if version % self.eval_every == 0:
                    curve.add(evaluation(version, self.lives))
            if version % self.every == 0:
                self.checkpoint = max(self.checkpoint, version)
        self.file += b"".join(lines)
        self.lives += 1

    def kill(self, bytes_lost: int) -> None:
        """Lose the end of the file, but nothing that a checkpoint or a publication relies on."""
        sure = 0
        for line in self.file.splitlines(keepends=True):
            point = point_of(line)
            if point is None or point.version > max(self.checkpoint, self.published):
                break
            sure += len(line)
        self.file = self.file[: max(sure, len(self.file) - bytes_lost)]


@given(
    every=st.integers(1, 5),
    eval_every=st.integers(1, 3),
    lives=st.lists(
        st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 900)), min_size=1, max_size=6
    ),
)
def test_a_run_killed_at_any_byte_leaves_the_lines_of_one_that_nobody_killed(
    every: int, eval_every: int, lives: list[tuple[bool, int, int]]
) -> None:
    whole, killed = Machine(9, every, eval_every), Machine(9, every, eval_every)
    whole.live(True, 9)
    for publish, steps, lost in lives:
        killed.live(publish, steps)
        killed.kill(lost)
    killed.live(True, 9)
    assert figures(killed.file, StepPoint) == figures(whole.file, StepPoint)
    mine, theirs = (figures(run.file, EvaluationPoint) for run in (killed, whole))
    assert len({point["version"] for point in mine}) == len(mine)
    assert all(point in theirs for point in mine)


def points(file: bytes) -> list[Point]:
    """The points of a file, each of whose lines is whole."""
    found = [point_of(line) for line in file.splitlines(keepends=True)]
    assert None not in found
    return [point for point in found if point is not None]


def figures(file: bytes, kind: type) -> list[dict[str, object]]:
    """The lines of a kind without their clock."""
    found = [json.loads(line_of(point)) for point in points(file) if isinstance(point, kind)]
    return [{name: one for name, one in said.items() if name not in CLOCK} for said in found]


def test_steps_after_a_missing_one_are_made_again() -> None:
    lines = [line_of(step(version)) for version in (1, 2, 4, 5)]
    assert list(kept(lines, 1, 5)) == lines[:2]
    assert list(kept(lines, 4, 5)) == lines, "before the checkpoint there is nothing to make again"


def test_a_version_made_again_is_no_second_line() -> None:
    lines: list[bytes] = []
    curve = Curve([step(1), step(2), evaluation(2)], lines.append)
    assert curve.before_s == 2.0 and curve.last == step(2) and curve.accuracy == {2: 0.125}
    for point in (step(1, 1), step(2, 1), evaluation(2, 1), step(3, 1)):
        curve.add(point)
    assert lines == [line_of(step(3, 1))] and curve.last == step(3, 1)


def test_an_evaluation_without_a_verdict_has_no_accuracy_and_is_one() -> None:
    lines: list[bytes] = []
    none = msgspec.structs.replace(evaluation(2), accuracy=None, asked=3, prompts=12)
    curve = Curve([evaluation(1)], lines.append)
    curve.add(none)
    curve.add(none)
    assert [point_of(line) for line in lines] == [none]
    assert (curve.accuracy, curve.asked, curve.prompts) == ({1: 1 / 16}, 3, 12)
    assert curve.evaluated == {1: 1 / 16, 2: None}
    assert Accuracy.of(curve) == Accuracy(1 / 16, None, asked=3, prompts=12)
    assert "evaluation/accuracy" not in figures_of(none)


def test_a_file_is_trimmed_at_any_byte_and_left_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    trim(path, 3, 3)
    assert not path.exists()
    lines = [line_of(step(1)), line_of(evaluation(1)), line_of(step(2)), line_of(step(3))]
    whole = b"".join(lines)
    for cut in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:cut])
        assert list(read(path)) == points(b"".join(list(kept(whole[:cut].splitlines(True), 9, 9))))
        trim(path, 1, 2)
        assert points(path.read_bytes()) == [
            point for point in (step(1), evaluation(1), step(2)) if line_of(point) in whole[:cut]
        ]
        assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CurveFile]:
    made = CurveFile(tmp_path / "metrics.jsonl")
    yield made
    os.close(made._descriptor)


@pytest.mark.parametrize("room", [0, 1, 50, 450, 900, 5000])
def test_a_full_disk_tears_no_line_and_loses_none(
    room: int, file: CurveFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, [room]

    def full(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = min(left[0], len(data), 100)
        left[0] -= taken
        return write(descriptor, data[:taken])

    lines = [line_of(step(version)) for version in (1, 2, 3)]
    for line in lines:
        file.append(line)
    path = tmp_path / "metrics.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        if room < len(b"".join(lines)):
            with pytest.raises(OSError, match="no space"):
                file.write(forced=True)
    assert b"".join(lines).startswith(path.read_bytes()) and len(points(path.read_bytes())) < 4
    file.write(forced=True)
    assert path.read_bytes() == b"".join(lines)


async def test_the_journal_knows_no_checkpoint_whose_lines_are_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each commit: lines first, forced where a state is kept."""
    forced: list[int] = []
    monkeypatch.setattr("asyncrl.explain.curve_file.os.fsync", forced.append)
    path, written = tmp_path / "metrics.jsonl", list[int]()
    async with (
        open_curve(path, 0, 0) as (curve, before_commit),
        Journal.open(tmp_path / "j.sqlite", commit_ms=0, before_commit=before_commit) as journal,
    ):
        for version in range(1, 5):
            curve.add(step(version))
            journal.append(e.Published(version))
            if version % 2 == 0:
                journal.keep(version, Experience())
            await journal.flush()
            written.append(len(points(path.read_bytes())))
            assert len(forced) == version // 2
        curve.add(evaluation(4))
    assert written == [1, 2, 3, 4] and list(read(path))[-1] == evaluation(4)


async def test_a_curve_that_finds_no_room_is_waited_for_as_the_journal_is(tmp_path: Path) -> None:
    tries = 0

    async def full(forced: bool) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    async with Journal.open(tmp_path / "j.sqlite", commit_ms=0, before_commit=full) as journal:
        journal.append(e.LateTokens(1))
        while not journal.trouble:  # noqa: ASYNC110 (nobody says that there is trouble)
            await trio.sleep(0.01)
        assert "beside the journal" in journal.trouble and journal.durable == 0
        with trio.fail_after(60):
            await journal.flush()
        assert (journal.trouble, journal.durable, tries) == ("", 1, 2)
