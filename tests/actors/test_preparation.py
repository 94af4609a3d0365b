"""The preparation of the bundled model says through a pipe how far its warm-up is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import trio

from asyncrl import config
from asyncrl.bundled import prepare
from asyncrl.bundled.bundled_model import warmed_to
from asyncrl.bundled.outlook import WHAT
from asyncrl.messages import Progress
from asyncrl.runtime.progress import receive
from asyncrl.runtime.run_dir import INITIAL, PROGRESS


async def test_a_warm_up_is_heard_of_and_leaves_what_it_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["task.train_size=64", "task.eval_size=2", "model.warmup_steps=2"]
    config.write(config.load(None, sets, {}), tmp_path / "run.toml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["asyncrl.bundled.prepare", str(tmp_path)])
    monkeypatch.setattr(prepare, "become_child", lambda: None)
    monkeypatch.setattr(prepare.logs, "start", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    heard = list[Progress]()
    async with trio.open_nursery() as nursery:
        await nursery.start(receive, tmp_path / PROGRESS, heard.append)
        await trio.to_thread.run_sync(prepare.main)
        with trio.fail_after(60):
            while not heard:  # noqa: ASYNC110 (it is on its way through the kernel)
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert (heard[0].what, heard[0].done, heard[0].of) == (WHAT, 1, 2)
    assert heard[0].left_s is not None and "of 0.3 right" in heard[0].note
    assert warmed_to(tmp_path / INITIAL) is not None
    assert warmed_to(tmp_path) is None
