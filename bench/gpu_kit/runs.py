"""Whole runs, as a user starts them, with the trainer on the device: of three steps on JSONL lines,
with engines on processors or in an SGLang server; and the main job, which learns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from asyncrl.bundled.bundled_model import new_model, write_tokenizer
from asyncrl.explain import summary

from .check import Lacks, Number, Place
from .harness import last_words

ROOT = Path(__file__).parents[2]
LEARNS_S = 180.0
"""Seconds after which the learning run is asked to end."""
STEPS = 3
SETTINGS = {
    "task.name": "jsonl",
    "task.verifier": "exact",
    "task.eval_size": 4,
    "train.steps": STEPS,
    "train.batch_groups": 2,
    "train.checkpoint_every": 1,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 16,
    "rollout.filter": "none",
    "engine.slots": 8,
    "supervision.grace_s": 5.0,
}


def three_steps(place: Place) -> list[Number]:
    """A run in float32, and one in bfloat16 whose every process is killed after its first
    checkpoint and that is resumed; in the small form only the latter."""
    model, lines = _inputs(place.folder)
    own = {"model.path": model, "task.path": lines, "train.device": place.device}
    found = []
    if not place.small:
        run = place.folder / "float32"
        found += _ended("float32", run, _argv(own | {"run.dir": run}))
    run = place.folder / "killed"
    argv = _argv(own | {"run.dir": run, "model.dtype": "bfloat16"})
    killed_at = _killed(argv, run)
    found.append(Number("killed at version", float(killed_at), least=1.0, most=STEPS - 1.0))
    resumed = [sys.executable, "-m", "asyncrl.cli", "train", "--resume", str(run)]
    return found + _ended("bfloat16, killed and resumed", run, resumed)


def learns(place: Place) -> list[Number]:
    """The main job (`run.toml`), which a user starts first: held-out accuracy before and after. It
    is asked to end after `LEARNS_S`, or after three steps in the small form."""
    run = place.folder / "learns"
    own: dict[str, object] = {"run.dir": run, "train.device": place.device}
    if place.small:
        own |= {"train.steps": STEPS, "train.batch_groups": 2, "engine.slots": 16}
        own |= {"task.eval_size": 8}
    argv = [sys.executable, "-m", "asyncrl.cli", "train", str(ROOT / "run.toml")]
    argv += [f"--set={name}={value}" for name, value in own.items()]
    log, start = place.folder / "learns.log", time.perf_counter()
    with log.open("wb") as said, subprocess.Popen(argv, stdout=said, stderr=said) as process:
        try:
            process.wait(LEARNS_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it drains, and says how far it came
    if not (run / "summary.json").exists():
        raise RuntimeError(f"the run ended with {process.returncode}: {_last(log)}")
    told, seconds = summary.read(run / "summary.json"), time.perf_counter() - start
    accuracy = told.accuracy
    if accuracy.start is None or accuracy.end is None:
        raise RuntimeError(f"no version was evaluated in {seconds:.0f} s: {told.reason}")
    gained = accuracy.end - accuracy.start
    return [
        Number("accuracy before", accuracy.start),
        Number("accuracy after", accuracy.end),
        Number("gained", gained, least=-1.0 if place.small else 0.4),
        Number("steps", float(told.steps), least=STEPS),
        Number("ledger balances", float(told.balances()), least=1.0),
        Number("seconds", seconds, "s, with its start"),
    ]


def _last(log: Path) -> str:
    return last_words(log.read_bytes())


def sglang(place: Place) -> list[Number]:
    """Three steps with an SGLang server that the run starts: it is published to, and decodes."""
    return _sglang(place, 1)


def sglang_of_two(place: Place) -> list[Number]:
    """The same with a server of two ranks (tensor parallelism), straight from the trainer."""
    return _sglang(place, 2)


def _sglang(place: Place, ranks: int) -> list[Number]:
    if find_spec("sglang") is None:
        raise Lacks("sglang is not installed")
    model, lines = _inputs(place.folder)
    run = place.folder / "run"
    argv = _argv(
        {
            "model.path": model,
            "task.path": lines,
            "train.device": place.device,
            "run.dir": run,
            "engine.kind": "sglang",
            "engine.context_tokens": 128,
            "engine.sglang.launch": json.dumps([sys.executable]),
            "engine.sglang.device": place.device,
            "engine.sglang.tensor_parallel": ranks,
            "publication.path": "staged" if ranks == 1 else "direct",
        }
    )
    return _ended("SGLang", run, argv)


def _inputs(folder: Path) -> tuple[Path, Path]:
    """A small model with random weights and a tokenizer, and a file of prompts."""
    model, lines = folder / "model", folder / "sums.jsonl"
    new_model(0).save_pretrained(str(model))
    write_tokenizer(model)
    pairs = [(a, b) for a in range(6) for b in range(6)]
    lines.write_text(
        "".join(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in pairs)
    )
    return model, lines


def _argv(own: dict[str, object]) -> list[str]:
    sets = [f"--set={name}={value}" for name, value in (SETTINGS | own).items()]
    return [sys.executable, "-m", "asyncrl.cli", "train", *sets]


def _ended(title: str, run: Path, argv: list[str]) -> list[Number]:
    """Run to the end; figures of its summary. Raises RuntimeError with its last line where it
    fails."""
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["nothing"]
        raise RuntimeError(f"{title}: the run ended with {done.returncode}: {lines[-1]}")
    told = summary.read(run / "summary.json")
    return [
        Number(f"{title}: steps", float(told.steps), least=STEPS, most=STEPS),
        Number(f"{title}: ledger balances", float(told.balances()), least=1.0),
        Number(f"{title}: trained", float(told.tokens.trained), "tokens", least=1.0),
        Number(f"{title}: seconds", seconds, "s"),
    ]


def _killed(argv: list[str], run: Path) -> int:
    """Begin a run, kill all of it once there is a checkpoint of a step, and give that step. Raises
    RuntimeError where it ends before."""
    from asyncrl.training.checkpoint_index import complete

    with (run.parent / "killed.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            while True:
                # a directory that is renamed into place: there is nothing else to wait for
                if found := [each.version for each in complete(run) if each.version]:
                    break
                if process.poll() is not None:
                    last = _last(run.parent / "killed.log")
                    raise RuntimeError(f"the run ended before a step: {last}")
                time.sleep(0.02)
            for child in (*_descendants(process.pid), process.pid):
                os.kill(child, signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
    return max(found)


def _descendants(pid: int) -> list[int]:
    """Processes below this one, the lowest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [*_descendants(int(child)), int(child)]
    return found
