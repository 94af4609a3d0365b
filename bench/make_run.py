"""The main job as `make run` runs it, on several seeds one after another: does each learn it, and
in how long?

For each seed one `asyncrl train run.toml` with all cores, in a folder of its own: held-out accuracy
(greedy) before and at the end, the reward beside it, seconds of training (from the first training
prompt to the end of the last step: start-up and warm-up are apart) and whether the ledger balances.
Each seed is a line of JSON in `--out` as soon as it is done, and what is there already is not run
again, so that it can be stopped and resumed.

    python bench/make_run.py [--out make_run.jsonl] [--seeds 0,1,2] [--set train.lr=1e-3]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.explain import summary
from asyncrl.explain.curve import StepPoint, read

RUN_TOML = Path(__file__).parent.parent / "run.toml"
ACCURACY, TRAINING_S = 0.95, 120.0
"""Aims: at least so accurate in the end, after at most so many seconds of training."""
TAIL = 10
"""Steps whose mean reward says how it went in the end."""


class Cell(msgspec.Struct, frozen=True):
    """One run: a seed, and settings over run.toml's."""

    seed: int
    sets: list[str] = []


class Result(msgspec.Struct, frozen=True):
    """One run. `accuracy` is held-out and greedy, by version; `reward` the mean of the last `TAIL`
    steps. `seconds` are those of the whole command, start and warm-up included."""

    cell: Cell
    accuracy: dict[int, float]
    reward: float
    training_s: float
    seconds: float
    generated: int
    balances: bool
    alarms: list[str]

    @property
    def final(self) -> float:
        return self.accuracy[max(self.accuracy)]


def run(cell: Cell) -> Result:
    """One `asyncrl train`; its output goes to a log, which is shown where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = [sys.executable, "-m", "asyncrl.cli", "train", str(RUN_TOML)]
        for each in [f"run.seed={cell.seed}", f"run.dir={folder / 'run'}", *cell.sets]:
            argv += ["--set", each]
        began = time.perf_counter()
        with (folder / "log").open("w") as log:
            done = subprocess.run(argv, stdout=log, stderr=log, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit((folder / "log").read_text())
        found = summary.read(folder / "run/summary.json")
        points = list(read(folder / "run/metrics.jsonl"))
    assert found.training_seconds is not None
    steps = [point for point in points if isinstance(point, StepPoint)]
    return Result(
        cell,
        {point.version: point.accuracy for point in points if not isinstance(point, StepPoint)},
        reward=statistics.mean(point.reward or 0.0 for point in steps[-TAIL:]),
        training_s=found.training_seconds,
        seconds=seconds,
        generated=found.tokens.generated,
        balances=found.balances(),
        alarms=sorted(found.alarms),
    )


def table(results: Sequence[Result]) -> None:
    heads = ("seed", "before", "end", "reward", "training s", "all s", "tokens", "ledger")
    print("".join(f"{head:>11}" for head in heads) + "  alarms")
    for result in sorted(results, key=lambda result: result.cell.seed):
        cells = (
            result.cell.seed,
            f"{result.accuracy[0]:.3f}",
            f"{result.final:.3f}",
            f"{result.reward:.3f}",
            f"{result.training_s:.1f}",
            f"{result.seconds:.1f}",
            f"{result.generated:,}",
            "balances" if result.balances else "WRONG",
        )
        print("".join(f"{cell!s:>11}" for cell in cells) + "  " + ", ".join(result.alarms))
    ends, seconds = [row.final for row in results], [row.training_s for row in results]
    good = sum(end >= ACCURACY for end in ends)
    print(
        f"\n{good} of {len(ends)} come to {ACCURACY} (median {statistics.median(ends):.3f}, worst "
        f"{min(ends):.3f}); seconds of training: median {statistics.median(seconds):.1f}, most "
        f"{max(seconds):.1f} (aim: all, in at most {TRAINING_S:.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("make_run.jsonl"))
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", help="section.key=value, over run.toml's"
    )
    args = parser.parse_args()
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    results = [msgspec.json.decode(line, type=Result) for line in lines]
    asked = [Cell(int(seed), args.sets) for seed in args.seeds.split(",")]
    done = [result.cell for result in results]
    with args.out.open("ab") as out:
        for cell in asked:
            if cell not in done:
                results.append(run(cell))
                out.write(msgspec.json.encode(results[-1]) + b"\n")
                out.flush()
    table([result for result in results if result.cell in asked])


if __name__ == "__main__":
    main()
