"""A merge compared with its parents: two runs of the main job from one warmed-up model, with other
seeds, and the mean of their weights.

Held-out accuracy of each is measured on the same prompts, which neither run has trained. A third
run from the same model with twice the groups a step has generated as much as both parents: merging
is worth something if it comes near that.

    python bench/merging.py [--seeds 8] [--steps 20]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from vs_trl import ROOT

import asyncrl as rl
from asyncrl import config as configuration
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.library.held_out import HeldOutPrompts


def loaded(settings: dict[str, object]) -> Config:
    return configuration.load(
        ROOT / "run.toml", [f"{key}={value}" for key, value in settings.items()], {}
    )


def trained(model: Path, folder: Path, seed: int, steps: int, groups: int) -> Path:
    """The model that a run of this seed makes of `model`."""
    config = loaded(
        {
            "model.path": model,
            "run.seed": seed,
            "run.dir": folder,
            "train.steps": steps,
            "train.batch_groups": groups,
            "train.eval_every": 0,
            "train.checkpoint_every": 0,
            "task.eval_size": 8,
        }
    )
    run = rl.train(config)
    assert run.ok, run.state
    return run.model_path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    base = prepare_model(loaded({}))
    held = HeldOutPrompts(loaded({"run.seed": 1000, "task.train_size": 16}))
    groups = loaded({}).train.batch_groups
    print(f"{held.right(base) / held.prompts:.3f} before training")
    found = list[tuple[float, ...]]()
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            one = trained(base, folder / "one", 2 * seed, options.steps, groups)
            two = trained(base, folder / "two", 2 * seed + 1, options.steps, groups)
            broad = trained(base, folder / "broad", 2 * seed, options.steps, 2 * groups)
            mean = rl.merge([one, two], folder / "mean")
            added = rl.merge([one, two], folder / "added", base=base)
            models = one, two, mean, added, broad
            found.append(tuple(held.right(model) / held.prompts for model in models))
        print(
            "seed {}: parents {:.3f}, {:.3f}; mean {:.3f}; both differences {:.3f}; "
            "one run of twice the groups {:.3f}".format(seed, *found[-1]),
            flush=True,
        )
    for name, column in zip(
        ("parent", "parent", "mean", "both differences", "twice the groups"),
        zip(*found, strict=True),
        strict=True,
    ):
        print(f"{name}: median {statistics.median(column):.3f}, worst {min(column):.3f}")


if __name__ == "__main__":
    main()
