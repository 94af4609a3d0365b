"""The same run with and without asynchrony, on the cores of this machine.

    rollouts wait   verifiers that take 0.2-2 s, lengths    synchronous / asynchronous   at least
                    with a heavy tail                                                    1.5
    nothing waits   the main job, whose verifier is         one after the other / run    at least
                    instant                                                              0.97

Synchronous is the run with `staleness.depth = 0` and `staleness.max_lag = 0`, and nothing else
changed: generation starts a step's prompts when the version before is published, and then waits for
the next. (The trainer still takes groups as they finish. A loop that trains only when the last
verdict is there would be slower.) Where nothing waits there is no time to be won but that of idle
cores; so there the asynchronous run is held against its own work done in turns, each side with all
cores: `run.py` generates the same tokens again, all of them at once, without a drain at each step's
end, and then trains the same steps. Seconds are those from the first admission to the last step.

    python bench/async_vs_sync_real.py [--steps 30] [--repeat 3] [--wait-only | --instant-only]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from run import measure
from vs_trl import ENVIRONMENT, TAIL, resolve

from asyncrl import config as configuration
from asyncrl.explain import summary

WAITING = {
    "task.verifier": "slow_verifier:longer",
    "reward.concurrency": 512,
    "task.eval_size": 0,
    "train.checkpoint_every": 0,
}
"""Beside the settings of `vs_trl.TAIL`."""
FORMS: Mapping[str, Mapping[str, int]] = {
    "synchronous": {"staleness.depth": 0, "staleness.max_lag": 0},
    "asynchronous": {"staleness.depth": 4, "staleness.max_lag": 8},
}


def train(form: str, repetition: int, path: Path) -> summary.Summary:
    """One `asyncrl train` where rollouts wait. `path`: what both forms share."""
    run = path.parent / f"{form}-{repetition}"
    settings = WAITING | FORMS[form] | {"run.dir": str(run), "run.seed": repetition}
    argv = [
        sys.executable,
        "-m",
        "asyncrl.cli",
        "train",
        str(path),
        *(f"--set={key}={value}" for key, value in settings.items()),
    ]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return summary.read(run / "summary.json")


def where_rollouts_wait(steps: int, repeat: int) -> None:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.toml"
        configuration.write(resolve(TAIL, 0, steps, Path(name)), path)
        print(f"{'':>12} {'s/step':>7} {'idle trainer':>13} {'idle rollout':>13} {'mean lag':>9}")
        for repetition in range(repeat):
            seconds = dict[str, float]()
            for form in (
                FORMS if repetition % 2 else reversed(FORMS)
            ):  # what else this machine does meets both
                found = train(form, repetition, path)
                assert found.training_seconds is not None and found.balances()
                seconds[form] = found.training_seconds
                idle = f"{found.idle.trainer or 0:>13.0%} {found.idle.rollout or 0:>13.0%}"
                print(
                    f"{form:>12} {seconds[form] / steps:>7.2f} {idle} {found.lag.mean or 0:>9.2f}",
                    flush=True,
                )
            ratios.append(seconds["synchronous"] / seconds["asynchronous"])
    said = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(
        f"rollouts wait: synchronous / asynchronous, median {statistics.median(ratios):.2f} "
        f"({said}), aim 1.5\n",
        flush=True,
    )


def where_nothing_waits(steps: int, repeat: int) -> None:
    ratios = []
    print(f"{'run s':>8} {'generation s':>13} {'training s':>11}")
    for _ in range(repeat):
        run, generation, training, _ = measure(False, steps)
        ratios.append((generation + training) / run)
        print(f"{run:>8.2f} {generation:>13.2f} {training:>11.2f}", flush=True)
    said = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(
        f"nothing waits: one after the other / run, median {statistics.median(ratios):.2f} "
        f"({said}), aim 0.97",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wait-only", action="store_true")
    parser.add_argument("--instant-only", action="store_true")
    args = parser.parse_args()
    if not args.instant_only:
        where_rollouts_wait(args.steps, args.repeat)
    if not args.wait_only:
        where_nothing_waits(args.steps, args.repeat)


if __name__ == "__main__":
    main()
