"""Progress of what takes long: as text, on a display, and through a pipe that nobody waits for."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import trio
from rich.console import Console

from asyncrl.explain.display import Display
from asyncrl.messages import Progress
from asyncrl.runtime.progress import LINE_BYTES, ProgressPipe, left_s, progress_line, receive


def test_what_is_left_follows_from_the_pace() -> None:
    assert left_s(0, 5, 20, 10.0) == 30.0 and left_s(10, 15, 20, 10.0) == 10.0
    assert left_s(5, 5, 20, 10.0) is None and left_s(0, 0, 0, 10.0) is None
    assert left_s(0, 25, 20, 10.0) == 0.0


def test_a_line_says_all_there_is() -> None:
    assert (
        progress_line(Progress("saving version 4", 0, 0, 3.0)) == "saving version 4  0:03 elapsed"
    )
    whole = progress_line(Progress("warming up", 120, 600, 65.0, 3700.0, "0.05 of 0.3 right"))
    assert whole == "warming up  120/600  1:05 elapsed, 1:01:40 left  | 0.05 of 0.3 right"


def test_plain_lines_come_after_two_seconds_and_every_ten() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console) as display:
        for tenth in range(300):
            display.progress(Progress("loading", 0, 0, tenth / 10))
        for tenth in range(30):
            display.progress(Progress("warming up", tenth, 600, tenth / 10))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split(" elapsed")[0] for line in lines] == [
        "loading  0:02",
        "loading  0:12",
        "loading  0:22",
        "warming up  20/600  0:02",
    ]


@pytest.mark.parametrize(
    "progress",
    [
        Progress("warming up", 120, 600, 65.0, 260.0, "0.05 of 0.3 right"),
        Progress("saving version 4", 0, 0, 3.0),
        Progress("saving version 4", 0, 0, 3.0, 5.0),
    ],
)
def test_a_terminal_has_a_bar_with_the_estimate(progress: Progress) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with Display(console) as display:
        display.progress(progress)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert progress.what in shown and "━" in shown and progress.note in shown
    assert ("left" in shown) == (progress.left_s is not None)


async def test_what_is_sent_through_the_pipe_is_heard(tmp_path: Path) -> None:
    path, found = tmp_path / "progress.pipe", list[Progress]()
    path.write_text("of another life")
    heard = trio.Event()

    def hear(progress: Progress) -> None:
        found.append(progress)
        heard.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(receive, path, hear)
        pipe = ProgressPipe(path)
        assert pipe.due
        with path.open("wb") as other:
            other.write(b"no json\n[1]\n")
        sent = Progress("warming up", 1, 600, 0.2, 120.0, "no \n line")
        pipe.send(sent)
        assert not pipe.due, "it was said just now"
        with trio.fail_after(60):
            await heard.wait()
        nursery.cancel_scope.cancel()
    assert found == [sent]


def test_a_writer_waits_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "progress.pipe"
    ProgressPipe(path).send(Progress("no pipe", 0, 0, 0.0))
    path.write_text("a file")
    ProgressPipe(path).send(Progress("no pipe either", 0, 0, 0.0))
    assert path.read_text() == "a file" and not ProgressPipe(path).due
    path.unlink()
    os.mkfifo(path)
    assert not ProgressPipe(path).due
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    pipe = ProgressPipe(path)
    for _ in range(2000):
        pipe.send(Progress("x" * 100, 0, 0, 0.0))
    pipe.send(Progress("x" * LINE_BYTES, 0, 0, 0.0))
    assert len(os.read(reader, 2**20)) <= 2**16
    os.close(reader)
    pipe.send(Progress("nobody reads any more", 0, 0, 0.0))


def test_nothing_is_known_of_what_is_not_counted() -> None:
    assert left_s(0, 5, 0, 1.0) is None and left_s(0, 5, -1, 1.0) is None
    assert left_s(0, 5, 10, 1.0) == 1.0
