"""Forecasts against reality: six short real runs of the main job, the models fitted from three of
them (`asyncrl calibrate`), and every run forecast from them.

Seconds a step, idle shares and mean lag, real and forecast; the first fifth of a run is left out.
The learning rate is next to nothing, so that the policy, its lengths and what the filter leaves out
stay as they were fitted. The runs follow one another, so that what else the machine does between
them is in the ratios: its load is printed.

    python bench/sizing.py [--steps 24] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asyncrl.config import read
from asyncrl.explain.run_files import RunFiles
from asyncrl.sizing.calibrate import RunPace, calibrate, pace
from asyncrl.sizing.cluster_models import render_models
from asyncrl.sizing.forecast import Cluster, Forecast, forecast

ROOT = Path(__file__).parents[1]
FIRST, FEWER, SMALLER = "as run.toml", "fewer slots", "half the rollouts"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    FIRST: {},
    FEWER: {"engine.slots": 32},
    "half the groups": {"train.batch_groups": 16},
    "depth 2": {"staleness.depth": 2},
    SMALLER: {"rollout.group_size": 4},
    "on policy": {"staleness.depth": 0, "staleness.max_lag": 0},
}
"""The settings of each run besides run.toml's."""
FITTED = (FIRST, FEWER, SMALLER)
"""Those that the models are fitted to: the last tells a micro-batch's cost from its tokens'."""
VIRTUAL_STEPS = 100


def run(directory: Path, settings: Mapping[str, object], steps: int) -> Path:
    """One `asyncrl train` of the main job with `settings`, and its directory."""
    chosen = {
        "run.dir": directory,
        "train.steps": steps,
        "train.lr": 1e-9,
        "train.eval_every": 0,
        "task.eval_size": 0,
        "train.checkpoint_every": 0,
        **settings,
    }
    argv = [sys.executable, "-P", "-m", "asyncrl.cli", "train", str(ROOT / "run.toml")]
    argv += [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    with directory.with_suffix(".log").open("wb") as log:
        subprocess.run(argv, check=True, stdout=log, stderr=subprocess.STDOUT)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--only", default="", help="run those whose names contain this")
    args = parser.parse_args()
    wanted = [name for name in SETTINGS if args.only in name or name in FITTED]
    with tempfile.TemporaryDirectory() as name:
        runs = dict[str, Path]()
        for which in wanted:
            directory = Path(name) / which.replace(" ", "-")
            runs[which] = run(directory, SETTINGS[which], args.steps)
            print(f"{which:<20} load {os.getloadavg()[0]:.1f}", flush=True)
        found = calibrate([runs[which] for which in FITTED])
        print(render_models(found.models, found.notes), flush=True)
        heads = ("s/step", "trainer idle", "engines idle", "mean lag")
        print(f"{'real, forecast':<20}" + "".join(f"{head:>18}" for head in heads))
        for which, directory in runs.items():
            real, config = pace(RunFiles(directory)), read(directory / "run.toml")
            hours = VIRTUAL_STEPS * real.step_s / 3600
            row(which, real, forecast(config, found.models, Cluster(1, 1), hours))


def row(name: str, real: RunPace, came: Forecast) -> None:
    """Print a run, real and forecast."""
    cells = (
        f"{real.step_s:.2f}, {came.step_s:.2f}",
        f"{real.idle_trainer:.1%}, {came.idle_trainer:.1%}",
        f"{real.idle_engines:.1%}, {came.idle_engines:.1%}",
        f"{real.lag_mean:.2f}, {came.lag_mean:.2f}",
    )
    print(
        f"{name:<20}"
        + "".join(f"{cell:>18}" for cell in cells)
        + f"{came.step_s / real.step_s:>8.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
