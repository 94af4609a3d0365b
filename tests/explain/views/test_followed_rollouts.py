"""`asyncrl rollouts --follow`: each rollout once, as it ends, and no longer than the run."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from look_support import ids_of, life, make_journal, make_run, rows, write_journal
from test_top import alive, now, say

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.experience import events as e
from asyncrl.explain.views.followed_rollouts import followed
from asyncrl.explain.views.rollout_records import Wanted
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.runtime.run_dir import INITIAL


@contextmanager
def standing_still(clock: trio.testing.MockClock) -> Iterator[None]:
    """A block in which no virtual time goes by, as threads write to the disk."""
    clock.autojump_threshold, before = math.inf, clock.autojump_threshold
    try:
        yield
    finally:
        clock.autojump_threshold = before


async def test_it_shows_the_newest_and_then_each_that_ends_until_the_run_does(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    run, told = make_run(tmp_path / "r"), list[int]()

    more: list[e.AnyEvent] = [e.Discarded(2, "stale"), *life(3, prompt=8), *life(4)]

    async def live(task_status: trio.TaskStatus[None]) -> None:
        with alive(run):
            say(run, step=0)
            task_status.started()
            await trio.sleep(3.5)  # there is no journal yet
            with standing_still(autojump_clock):
                await write_journal(run, [e.Published(0), *life(0), *life(1), *life(2, end=False)])
            await trio.sleep(5)
            say(run)
            with standing_still(autojump_clock):
                await write_journal(run, rows(more, 19))
            await trio.sleep(5)
            say(run, ok=True, reason="done")
            await trio.sleep(1000)  # its launcher does not end

    def show(seen: SeenRollout) -> None:
        told.append(seen.rollout)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            await followed(run, Wanted(prompt=7), show, now)
            nursery.cancel_scope.cancel()
    assert told == [0, 1, 2, 4]


async def test_a_run_that_vanishes_is_said_in_a_sentence(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    run, told = make_run(tmp_path / "r"), list[SeenRollout]()
    with standing_still(autojump_clock):
        await write_journal(run, [e.Published(0), *life(0)])

    def show(seen: SeenRollout) -> None:
        told.append(seen)
        shutil.rmtree(run)

    with trio.fail_after(60), alive(run):
        say(run)
        with pytest.raises(ConfigError, match="no such directory"):
            await followed(run, Wanted(), show, now)
    assert len(told) == 1


def test_without_a_name_it_is_the_newest_run_and_ends_as_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rollouts"]) == 2
    assert "runs: there is no run in it" in capsys.readouterr().err
    run = make_run(tmp_path / "runs" / "r", toml='task.name = "mine:Sums"')
    (run / INITIAL).mkdir()
    make_journal(run, [e.Published(0), *life(0, text="no"), *life(1)])
    assert main(["rollouts", "--follow", "--reward-above", "0", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and out.index('"rollout": 0') < out.index('"rollout": 1')
    assert err.startswith("asyncrl: runs/r\n") and "tokenizer.json" in err
    assert str(list(memoryview(ids_of("no")).cast("i"))).strip("[]").replace(",", "") in out
    for option in (["--living"], ["-o", "x.jsonl"]):
        assert main(["rollouts", "--follow", *option]) == 2
        assert "leave out" in capsys.readouterr().err
