"""Units of training compared: a group or each rollout by itself (`train.unit`): which learns the
main job sooner?

    group      run.toml: whole groups, compared with their mean
    rollout    each rollout once k_min of the others are judged, compared with the mean of the first
               k_min (`train.advantage = first_k`)

Each is the main job of `run.toml` from one warmed-up model, with its weights saved every few steps
and judged afterwards on the same held-out prompts. Seconds are from the first training prompt on,
and noisy where others use the machine; steps and tokens are not.

    python bench/units.py [--seeds 3] [--steps 120] [--accuracy 0.8]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vs_trl import EVERY, ROOT, Result, asyncrl, evaluated

from asyncrl import config as configuration
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.explain import summary

UNITS: Mapping[str, Mapping[str, str]] = {
    "group": {},
    "rollout": {"train.unit": "rollout", "train.advantage": "first_k"},
}


def resolve(unit: str, seed: int, steps: int, folder: Path) -> Config:
    """The main job with this unit, its model ready."""
    settings: dict[str, object] = {
        **UNITS[unit],
        "train.steps": steps,
        "train.eval_every": 0,
        "train.checkpoint_every": EVERY,
    }
    settings |= {"run.dir": folder / "run"}

    def load(more: Mapping[str, object]) -> Config:
        return configuration.load(
            ROOT / "run.toml", [f"{key}={value}" for key, value in (settings | more).items()], {}
        )

    return load({"model.path": prepare_model(load({})), "run.seed": seed})


def steps_to(result: Result, accuracy: float) -> int | None:
    return min((step for step, found in result.accuracy.items() if found >= accuracy), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--accuracy", type=float, default=0.8, help="held-out, to be reached")
    args = parser.parse_args()
    heads = (
        "seed",
        "unit",
        "end",
        f"steps to {args.accuracy}",
        "seconds",
        "s/step",
        "generated",
        "trained",
        "mean lag",
    )
    print("".join(f"{head:>14}" for head in heads), flush=True)
    reached: dict[str, list[float]] = {unit: [] for unit in UNITS}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(args.seeds):
            for unit in sorted(
                UNITS, reverse=bool(seed % 2)
            ):  # what else this machine does meets both
                folder = Path(name) / f"{unit}-{seed}"
                folder.mkdir()
                config = resolve(unit, seed, args.steps, folder)
                run = asyncrl(config, folder / "weights")
                result, found = evaluated(run, config), summary.read(folder / "run/summary.json")
                steps, seconds = steps_to(result, args.accuracy), result.seconds_to(args.accuracy)
                reached[unit].append(float(steps or args.steps))
                cells = (
                    seed,
                    unit,
                    f"{result.accuracy[max(result.accuracy)]:.2f}",
                    steps or "never",
                    seconds and f"{seconds:.1f}",
                )
                cells += (
                    f"{run.step_s:.2f}",
                    found.tokens.generated,
                    found.tokens.trained,
                    f"{found.lag.mean:.2f}",
                )
                print("".join(f"{cell!s:>14}" for cell in cells), flush=True)
    medians = {unit: statistics.median(steps) for unit, steps in reached.items()}
    print(
        f"steps to {args.accuracy}, medians: {medians}; group over rollout "
        f"{medians['group'] / medians['rollout']:.2f}"
    )


if __name__ == "__main__":
    main()
