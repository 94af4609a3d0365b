"""The notebooks of docs/examples run as they are, and a real kernel trains, is interrupted, and
trains again."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_process
from cells import code_cells

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "examples" / "notebooks").glob("*.ipynb"))
OF_KERNEL = "first_run"
IN_PYTHON = [path for path in NOTEBOOKS if path.stem != OF_KERNEL or not find_spec("ipykernel")]
"""Those that no kernel runs."""
DEADLINE_S = 300.0

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def environment(folder: Path) -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'tests/support'}"
    more = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    return os.environ | more | {"OMP_NUM_THREADS": "1"}


def test_they_are_plain_and_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["agent", "first_run", "own_estimator"]
    for path in NOTEBOOKS:
        book = json.loads(path.read_text())
        assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
        for cell in book["cells"]:
            assert cell["cell_type"] in ("code", "markdown") and cell["source"]
            assert not cell.get("outputs") and cell.get("execution_count") is None


SHOWS = {
    "first_run": ("all 16 steps are done", "\n 16 0.", "\nended "),
    "own_estimator": ("grpo   step 8 0.", "ranks  step 8 0."),
    "agent": ("all 8 steps are done", " turns: ", "reward "),
}


@pytest.mark.explore
@pytest.mark.parametrize("path", IN_PYTHON, ids=lambda path: path.stem)
def test_each_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """Cell by cell; a kernel, below, is a new Python."""
    done = warm_process.run(
        [sys.executable, "-m", "cells", str(path)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for words in SHOWS[path.stem]:
        assert words in done.stdout, done.stdout[-3000:]
    if path.stem == "own_estimator" and "matplotlib" not in sys.modules:
        last = {line.split()[0]: float(line.split()[3]) for line in done.stdout.splitlines()[-16:]}
        assert min(last.values()) > 0.08  # from 0.04 at the first step


class Kernel:
    """A kernel of Jupyter, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        client = pytest.importorskip("jupyter_client", reason="ipykernel is not installed")
        pytest.importorskip("ipykernel", reason="ipykernel is not installed")
        self.manager = client.manager.KernelManager()  # of this Python
        self.manager.start_kernel(cwd=str(folder), env=environment(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, text: str, look: Callable[[str], bool] = lambda said: False) -> tuple[str, int]:
        """Run a cell, which is interrupted while `look` says so. Returns what it shows in the end,
        and its number of outputs."""
        asked, shown, count, picture = self.client.execute(text), "", 0, ""
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown += content["text"]
            elif kind == "error":
                shown += "\n".join(content["traceback"])
            elif kind in ("execute_result", "display_data", "update_display_data"):
                count += kind != "update_display_data"
                picture = content["data"]["text/plain"]
                shown += picture if kind == "execute_result" else ""
            elif kind == "status" and content["execution_state"] == "idle":
                return shown, count
            if look(shown + picture):
                self.manager.interrupt_kernel()
        raise AssertionError(f"the cell has not ended after {DEADLINE_S} s: {shown}")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    found = Kernel(tmp_path)
    try:
        yield found
    finally:
        found.client.stop_channels()
        found.manager.shutdown_kernel(now=True)


SMALL = """
config = lambda steps: rl.Config(
    model=rl.ModelConfig(warmup_steps=0),
    task=rl.TaskConfig(eval_size=0),
    engine=rl.EngineConfig(context_tokens=64, slots=8, compile=False),
    rollout=rl.RolloutConfig(group_size=4, max_new_tokens=8),
    train=rl.TrainConfig(steps=steps, batch_groups=2, eval_every=0),
)
import os, signal, subprocess
def left():
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True)
    return [line for line in listed.stdout.decode().splitlines() if not line.startswith("ps ")]
"""


@pytest.mark.explore
def test_a_kernel_is_interrupted_and_trains_again(kernel: Kernel) -> None:
    """Drained by the first interrupt; at once, before there is anything to drain; and then the rest
    of the notebook."""
    first, task, *rest = code_cells(ROOT / "docs" / "examples" / "notebooks" / f"{OF_KERNEL}.ipynb")
    for text in (first, task, SMALL):
        assert kernel.run(text) == ("", 0)
    for words, reported in (("training", "ended"), ("elapsed", "failed")):
        asked = list[float]()

        def once(said: str, words: str = words, asked: list[float] = asked) -> bool:
            if words not in said or asked:
                return False
            asked.append(time.monotonic())
            return True

        shown, outputs = kernel.run("run = rl.train(config(100_000), task=Digits)", once)
        assert ("Draining: unfinished responses" in shown) == (words == "training"), shown
        assert outputs <= 1, "its pictures replace one another"
        state, _ = kernel.run("print(run.status, run.state, signal.getsignal(2).__name__, left())")
        assert state == f"130 {reported} default_int_handler []\n"
    shown = "".join(kernel.run(text)[0] for text in rest)
    for words in SHOWS[OF_KERNEL]:
        assert words in shown, shown
    assert kernel.run("print(run.status, left())")[0] == "0 []\n"
    shown, _ = kernel.run("rl.train(config, reward=lambda answer, line: 1.0)")
    assert shown == (
        "ConfigError: train: reward is a lambda, which has no name: write it as a function, with "
        "def."
    )
