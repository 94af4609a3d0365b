"""Rollouts that a rule ends early, beside plain groups: held-out accuracy of the main job at equal
generated tokens.

    plain 8     groups of 8, as run.toml has them
    plain 4     groups of half the size: the true peer of pruning, as it generates as little
    unlikely    groups of 8 of which likely failures are ended by a draw, without weights
    inverse     the same with weights 1/q (train.advantage = rloo, no filter)
    balance, converged, longest

A cell is one `asyncrl train run.toml` with all cores, in a folder of its own. The table has, for
each way, the tokens generated, generated for each that was trained, the rollouts ended, and the
held-out accuracy (greedy) when the run had generated as many tokens as the way that generated
fewest did in all. Lines go to `--out` as they are done, and are not run again.

    python bench/pruning.py [--seeds 0,1,2] [--steps 120] [--ways plain_8,plain_4,unlikely]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, StepPoint, read

RUN_TOML = Path(__file__).parent.parent / "run.toml"
ASKED = ("rollout.prune_after=5", "rollout.group_size=8")
DRAWN = ("rollout.prune=unlikely", *ASKED)
WAYS: dict[str, tuple[str, ...]] = {
    "plain_8": ("rollout.group_size=8",),
    "plain_4": ("rollout.group_size=4",),
    "unlikely": DRAWN,
    "inverse": (
        *DRAWN,
        *("rollout.prune_weight=inverse", "train.advantage=rloo", "rollout.filter=none"),
    ),
    "balance": ("rollout.prune=balance", *ASKED),
    "converged": ("rollout.prune=converged", "rollout.prune_share=0.2", *ASKED),
    "longest": ("rollout.prune=longest", *ASKED),
}


class PrunedRun(msgspec.Struct, frozen=True):
    """One run: its `way`, seed and steps. `curve` has the tokens generated and the accuracy at each
    evaluation."""

    way: str
    seed: int
    steps: int
    curve: list[tuple[int, float]]
    generated: int
    trained: int
    admitted: int
    ended: dict[str, int]
    training_s: float

    def accuracy_at(self, tokens: int) -> float:
        """The held-out accuracy after so many generated tokens, between two evaluations."""
        before = self.curve[0]
        for at, accuracy in self.curve:
            if at >= tokens:
                share = (tokens - before[0]) / max(1, at - before[0])
                return before[1] + share * (accuracy - before[1])
            before = at, accuracy
        return before[1]


def run(way: str, seed: int, steps: int, ways: Mapping[str, tuple[str, ...]] = WAYS) -> PrunedRun:
    """One `asyncrl train`; its output is shown where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = [sys.executable, "-m", "asyncrl.cli", "train", str(RUN_TOML)]
        sets = (f"run.seed={seed}", f"run.dir={folder / 'run'}", f"train.steps={steps}", *ways[way])
        for each in sets:
            argv += ["--set", each]
        with (folder / "log").open("w") as log:
            done = subprocess.run(argv, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise SystemExit((folder / "log").read_text())
        found = summary.read(folder / "run/summary.json")
        points = list(read(folder / "run/metrics.jsonl"))
    generated = {0: 0} | {p.version: p.generated for p in points if isinstance(p, StepPoint)}
    evaluated = [p for p in points if isinstance(p, EvaluationPoint) and p.accuracy is not None]
    return PrunedRun(
        *(way, seed, steps),
        sorted((generated[point.version], point.accuracy or 0.0) for point in evaluated),
        generated=found.tokens.generated,
        trained=found.tokens.trained,
        admitted=found.rollouts.admitted,
        ended=found.rollouts.pruned,
        training_s=found.training_seconds or 0.0,
    )


def table(runs: Sequence[PrunedRun]) -> None:
    fewest = min(one.generated for one in runs)
    print(f"accuracy after {fewest:,} generated tokens; medians over seeds\n")
    heads = ("way", "seeds", "accuracy", "worst", "in the end", "generated", "per trained")
    print("".join(f"{head:>13}" for head in heads) + f"{'ended':>9}")
    for way in dict.fromkeys(one.way for one in runs):
        of = [one for one in runs if one.way == way]
        accuracies = [one.accuracy_at(fewest) for one in of]
        cells = (
            *(way, len(of), f"{statistics.median(accuracies):.3f}", f"{min(accuracies):.3f}"),
            f"{statistics.median(one.curve[-1][1] for one in of):.3f}",
            f"{statistics.median(one.generated for one in of):,.0f}",
            f"{statistics.median(one.generated / max(1, one.trained) for one in of):.2f}",
        )
        ended = statistics.median(sum(one.ended.values()) / one.admitted for one in of)
        print("".join(f"{cell!s:>13}" for cell in cells) + f"{ended:>9.2f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("pruning.jsonl"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--ways", default=",".join(WAYS))
    args = parser.parse_args(argv)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    results = [msgspec.json.decode(line, type=PrunedRun) for line in lines]
    asked = [
        (way, int(seed), args.steps)
        for seed in args.seeds.split(",")
        for way in args.ways.split(",")
    ]
    done = {(one.way, one.seed, one.steps) for one in results}
    with args.out.open("ab") as out:
        for cell in asked:
            if cell not in done:
                results.append(run(*cell))
                out.write(msgspec.json.encode(results[-1]) + b"\n")
                out.flush()
    table([one for one in results if (one.way, one.seed, one.steps) in asked])


if __name__ == "__main__":
    main()
