"""Programs as strangers write them, each trained with the defaults by one `asyncrl train`.

`bench/programs/` has ten: OpenAI's client (plain, asynchronous, streaming, with tools, Responses,
the legacy completions), Anthropic's, requests and httpx alone, threads, arguments, two turns,
another wording in another language. None was written for the bundled model. Each run is a line of
JSON: the steps that it made, the mean reward of each, the held-out accuracy by version, attempts
that failed, and seconds in all. Last comes the number of programs that made every step.

    python bench/programs.py [--only plain_chat,…] [--steps 2] [--seconds 900] [--seed 0]
                             [--python PYTHON] [--out programs.jsonl] [--set KEY=VALUE]

PYTHON runs the programs; it needs openai, anthropic, requests and httpx. The first run of a seed
warms the bundled model up, for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, StepPoint, read

PROGRAMS = Path(__file__).with_name("programs")
END_S = 60.0
"""Seconds that a run may take to end, once told."""


class Trained(msgspec.Struct, frozen=True):
    """A run that has ended: the mean reward of each step, with what the filter left out, the
    held-out accuracy by version, and why it ended."""

    program: str
    seed: int
    steps: int
    rewards: list[float | None]
    accuracy: dict[int, float | None]
    rollouts: int
    discarded: dict[str, int]
    seconds: float
    load: float
    reason: str


def train(program: Path, options: argparse.Namespace) -> Trained:
    """Train a program with the defaults, for at most `options.seconds`."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        settings = {
            "agent.run": json.dumps([options.python, str(program)]),
            "train.steps": options.steps,
            "run.seed": options.seed,
            "run.dir": folder / "run",
        }
        argv = [sys.executable, "-m", "asyncrl.cli", "train"]
        for each in [*(f"{key}={value}" for key, value in settings.items()), *options.set]:
            argv += ["--set", each]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder) as run,
        ):
            try:
                run.wait(options.seconds)
            except subprocess.TimeoutExpired:
                run.terminate()
                run.wait(END_S)
        return _told(program.stem, options.seed, folder / "run", began)


def _told(program: str, seed: int, run: Path, began: float) -> Trained:
    points: list[Any] = list(read(run / "metrics.jsonl"))
    told = summary.read(run / "summary.json")
    steps = [point for point in points if isinstance(point, StepPoint)]
    return Trained(
        program,
        seed,
        len(steps),
        [point.reward for point in steps],
        {point.version: point.accuracy for point in points if isinstance(point, EvaluationPoint)},
        told.rollouts.admitted,
        told.rollouts.discarded,
        round(time.perf_counter() - began, 1),
        round(os.getloadavg()[1], 1),
        told.reason,
    )


def main() -> None:
    names = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(names))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, default=Path("programs.jsonl"))
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    made = 0
    for name in options.only.split(","):
        found = train(PROGRAMS / f"{name}.py", options)
        made += found.steps >= options.steps
        line = msgspec.json.encode(found)
        with options.out.open("ab") as out:
            out.write(line + b"\n")
        print(line.decode(), flush=True)
    print(f"{made} of {len(options.only.split(','))} programs made {options.steps} steps")


if __name__ == "__main__":
    main()
