"""A supervised run of conversations from the command line: stopped by Ctrl-C, resumed, killed,
resumed again, it is the run that nothing interrupted; and its model begins another one."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from train_support import end, everything, started, train, wait_for

from asyncrl.config import ConfigError
from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, StepPoint, read
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.compare import compare, rows
from asyncrl.explain.views.report import report
from asyncrl.explain.views.top import top
from asyncrl.explain.why import why
from asyncrl.launch.model_directories import check_directory
from asyncrl.runtime.run_dir import METRICS, MODEL, SUMMARY
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

STEPS, EVERY = 36, 4


def conversations(path: Path) -> Path:
    """Words spelled backward, in two turns."""
    lines = []
    for n in range(48):
        word = "abcdefgh"[n % 8] + "klmno"[n % 5] + "xyz"[n % 3]
        said = [("system", "Spell it backward."), ("user", word), ("assistant", word[::-1])]
        said += [("user", word * 2), ("assistant", (word * 2)[::-1])]
        messages = [{"role": role, "content": content} for role, content in said]
        lines.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(lines))
    return path


def command(model: Path, path: Path, run: Path, *more: str) -> list[str]:
    settings = {
        "model.path": model,
        "task.name": "data",
        "task.path": path,
        "task.eval_size": 4,
        "run.dir": run,
        "train.steps": STEPS,
        "train.batch_groups": 8,
        "train.lr": 0.003,
        "train.eval_every": EVERY,
        "train.checkpoint_every": EVERY,
    }
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "asyncrl.cli", "sft", *sets, *more]


def resumed(run: Path) -> list[str]:
    return [sys.executable, "-m", "asyncrl.cli", "sft", "--resume", str(run)]


def steps_done(run: Path) -> int:
    path = run / METRICS
    return sum(isinstance(point, StepPoint) for point in read(path)) if path.exists() else 0


def losses(run: Path) -> list[tuple[str, int, float | None, float | None]]:
    """All that two equal runs have in common."""
    return [
        ("step", point.version, point.metrics["loss"], point.metrics["grad_norm"])
        if isinstance(point, StepPoint)
        else ("held out", point.version, point.figures["loss"], None)
        for point in read(run / METRICS)
    ]


def test_a_supervised_run_goes_on_exactly_where_it_was(model: Path, tmp_path: Path) -> None:
    path, whole, cut = conversations(tmp_path / "rows.jsonl"), tmp_path / "whole", tmp_path / "cut"
    ended = train(command(model, path, whole))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with started(command(model, path, cut)) as process:
        wait_for("steps", lambda: steps_done(cut) >= EVERY + 2, every_s=0.01)
        process.send_signal(signal.SIGINT)
        code, out, err = end(process)
    assert code == 130, out + err
    stopped = complete(cut)[-1].version
    assert EVERY <= stopped < STEPS and summary.read(cut / SUMMARY).steps == stopped
    with started(resumed(cut)) as process:
        wait_for("more steps", lambda: steps_done(cut) >= stopped + EVERY, every_s=0.01)
        everything(process, cut)
    assert steps_done(cut) < STEPS and not (cut / MODEL).exists()
    assert "was killed" in why(RunFiles(cut), time.time())[0]
    ended = train(resumed(cut))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(cut) == losses(whole)
    _is_looked_at(cut, whole)
    _is_a_model(cut / MODEL, whole / MODEL)


def _is_looked_at(run: Path, other: Path) -> None:
    """Its figures are shown, and what it does not have is one sentence."""
    held = [point for point in read(run / METRICS) if isinstance(point, EvaluationPoint)]
    assert [point.version for point in held] == list(range(0, STEPS + 1, EVERY))
    first, last = held[0].figures["loss"], held[-1].figures["loss"]
    assert last < 0.6 * first and held[-1].asked == 4
    found = summary.read(run / SUMMARY)
    assert found.ok and found.balances() and found.sft is not None
    assert (found.sft.held_out_first, found.sft.held_out) == (first, last)
    compared = {name: values for name, *values in rows(compare([run, other]))}
    assert compared["held-out loss"] == [f"{first:.3f} → {last:.3f}"] * 2
    page = report(run, time.time())
    assert "held-out loss" in page and page.count("samples nothing") >= 4
    console = Console(record=True, width=200)
    top(run, console)
    assert f"all {STEPS} steps are done" in console.export_text()
    with pytest.raises(ConfigError, match="samples nothing"), RunFiles(run).journal():
        pass


def _is_a_model(path: Path, other: Path) -> None:
    """It opens as model.path does, and has the weights of the run that nothing interrupted."""
    check_directory("model.path", path)
    weights = load_model(path, torch.float32).state_dict()
    same = load_model(other, torch.float32).state_dict()
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())
    assert "supervised fine-tuning" in (path / "README.md").read_text()
