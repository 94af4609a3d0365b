"""A small model learns from screens, as docs/vision.md has it, on several seeds one after another.

For each seed one `asyncrl train` of the bundled visual task: held-out accuracy by version, seconds
of training and processor seconds of the whole command. Each seed is a line of JSON in `--out` as
soon as it is done, and what is there already is not run again.

    python bench/learn_images.py [--out learn_images.jsonl] [--seeds 0,1,2,3,4,5,6,7] [--steps 100]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from asyncrl.bundled.buttons import write_buttons
from asyncrl.bundled.small_vision import teach, write_vision_model
from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, read

FROM, TO, TRAINING_S = 0.3, 0.9, 360.0
"""Aims: about the accuracy at first, and in the end, after at most so many seconds of training."""
SETTINGS = (
    "engine.slots=32", "rollout.max_new_tokens=3", "train.batch_groups=16", "train.lr=1e-3",
    "train.eval_every=20",
)  # fmt: skip


class Learned(msgspec.Struct, frozen=True):
    """One run. `accuracy` is held-out and greedy, by version."""

    seed: int
    steps: int
    accuracy: dict[int, float]
    training_s: float
    cpu_s: float


def learned(seed: int, steps: int, given: Path, folder: Path) -> Learned:
    """Run one seed, in a folder of its own."""
    sets = [*SETTINGS, f"model.path={given / 'model'}", f"train.steps={steps}", f"run.seed={seed}"]
    options = [word for one in [*sets, f"run.dir={folder / 'run'}"] for word in ("--set", one)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for words in (["init", str(given / "data" / "rows.jsonl"), *options], ["train", "run.toml"]):
        asked = [sys.executable, "-m", "asyncrl", *words]
        subprocess.run(asked, check=True, stdout=sys.stderr, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    points = read(folder / "run" / "metrics.jsonl")
    measured = [one for one in points if isinstance(one, EvaluationPoint)]
    accuracy = {one.version: one.accuracy for one in measured if one.accuracy is not None}
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    training_s = summary.read(folder / "run" / "summary.json").training_seconds
    return Learned(seed, steps, accuracy, training_s or 0.0, cpu_s)


def main() -> None:
    """Run the seeds that are not there yet, and print what all have in common."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("learn_images.jsonl"))
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    lines = options.out.read_bytes().splitlines() if options.out.exists() else []
    done = [msgspec.json.decode(line, type=Learned) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder)
        write_buttons(given / "data")
        write_vision_model(given / "model")
        chance = teach(given / "model", given / "data" / "rows.jsonl", accuracy=FROM)
        print(f"right answers have a chance of {chance:.0%}", flush=True)
        for seed in map(int, options.seeds.split(",")):
            if any((one.seed, one.steps) == (seed, options.steps) for one in done):
                continue
            (given / str(seed)).mkdir()
            done.append(learned(seed, options.steps, given, given / str(seed)))
            print(msgspec.json.encode(done[-1]).decode(), flush=True)
            with options.out.open("ab") as out:
                out.write(msgspec.json.encode(done[-1]) + b"\n")
    ends = [one.accuracy[max(one.accuracy)] for one in done if one.steps == options.steps]
    begins = [one.accuracy[0] for one in done if one.steps == options.steps and 0 in one.accuracy]
    print(
        f"{len(ends)} seeds: held-out accuracy at first {statistics.median(begins):.3f} (about "
        f"{FROM}), in the end median {statistics.median(ends):.3f}, worst {min(ends):.3f} (aim "
        f"{TO}); training took at most {max(one.training_s for one in done):.0f} s (aim "
        f"{TRAINING_S:.0f})"
    )


if __name__ == "__main__":
    main()
