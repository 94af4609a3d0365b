"""Ways to choose what is generated and trained, beside plain groups, on the main job.

    plain_8, plain_4      groups of 8, as run.toml has them, and of half the size: the true peer of
                          pruning, as it generates as little
    half_step             groups of 8, of which a step trains 16
    no_filter             32 groups of 8 a step, those of equal rewards too: what `half_step`
                          generates for its 16, if half are equal
    no_filter_2           64 groups of 8 a step, those of equal rewards too: the peer of `plain_8`
    unlikely, inverse     groups of 8 of which likely failures are ended by a draw, without weights,
                          and with 1/q (train.advantage = rloo, no filter)
    balance, converged, longest
    grown, grown_mean     growth (dars, 8 to 16), and with a group's weight of `mean`
    both                  groups of 8 that double up to 48 while all rewards are equal (`UntilBoth`)
    few                   groups of 8 of 256 prompts, which return
    chosen, sized         of these, half-solved prompts first; sizes by the prompt's history (to 48)

A cell is one `asyncrl train run.toml` with all cores, in a folder of its own, which starts from the
main job's model, whatever the seed. Lines go to `--out` as they are done, and are not run again.
The table has, for each way, the tokens generated (without those of evaluations), the share of them
in groups of equal rewards, those generated for each that was trained, the rollouts ended, and the
held-out accuracy (greedy) when the run had generated as many tokens as the way that generated
fewest did in all. With `--until 0.95` a run ends when it is so accurate, and the table has what it
took: of the way, and over that of the first way with the same seed. `skills.py` is a toy of this.

    python bench/selection.py [--seeds 0,1,2] [--steps 120] [--ways plain_8,plain_4,unlikely]
    python bench/selection.py --until 0.95 --ways plain_8,both --seeds 0,1,2,3,4,5,6,7
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrl import config as configuration
from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.bundled.warmup import prepare_model
from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, StepPoint, read

RUN_TOML = Path(__file__).parent.parent / "run.toml"
ASKED = ("rollout.prune_after=5", "rollout.group_size=8")
DRAWN = ("rollout.prune=unlikely", *ASKED)
GROWN = ("rollout.sizing=dars", "rollout.group_size_max=16")
FEW = ("task.train_size=256",)
WAYS: dict[str, tuple[str, ...]] = {
    "plain_8": ("rollout.group_size=8",),
    "plain_4": ("rollout.group_size=4",),
    "half_step": ("train.batch_groups=16",),
    "no_filter": ("rollout.filter=none",),
    "no_filter_2": ("rollout.filter=none", "train.batch_groups=64"),
    "unlikely": DRAWN,
    "inverse": (
        *DRAWN,
        *("rollout.prune_weight=inverse", "train.advantage=rloo", "rollout.filter=none"),
    ),
    "balance": ("rollout.prune=balance", *ASKED),
    "converged": ("rollout.prune=converged", "rollout.prune_share=0.2", *ASKED),
    "longest": ("rollout.prune=longest", *ASKED),
    "grown": GROWN,
    "grown_mean": (*GROWN, "train.group_weight=mean"),
    "both": (f"rollout.sizing={__file__}:UntilBoth", "rollout.group_size_max=48"),
    "few": FEW,
    "chosen": (*FEW, "task.curriculum=difficulty"),
    "sized": (*FEW, "rollout.sizing=difficulty", "rollout.group_size_max=48"),
}


class UntilBoth(GrowingSizing):
    """Groups that double while all rewards are equal.

    >>> from asyncrl.algorithms.selection.judged_group import JudgedMember
    >>> UntilBoth(8, 48).grow(GrowingGroup(8, [JudgedMember(0.0)] * 8))
    16
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        return self._least

    def grow(self, group: GrowingGroup) -> int:
        alike = len(set(group.rewards)) == 1
        return min(2 * group.size, self._most) if alike else group.size


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """An evaluation: its version and accuracy, and by then the seconds of the run and the tokens
    generated and trained."""

    version: int
    accuracy: float
    seconds: float
    generated: int = 0
    trained: int = 0


class SelectedRun(msgspec.Struct, frozen=True):
    """One run: its `way`, seed and steps. `curve` has its evaluations; of the tokens generated in
    all, `equal` were left out because the rewards of their group are equal."""

    way: str
    seed: int
    steps: int
    until: float
    curve: list[Reached]
    generated: int
    trained: int
    equal: int
    admitted: int
    ended: dict[str, int]
    training_s: float

    @property
    def goal(self) -> Reached | None:
        """The first evaluation with the accuracy `until`; None: it was not reached."""
        return next((at for at in self.curve if at.accuracy >= self.until), None)

    def accuracy_at(self, tokens: int) -> float:
        """The held-out accuracy after so many generated tokens, between two evaluations."""
        before = self.curve[0]
        for at in self.curve:
            if at.generated >= tokens:
                share = (tokens - before.generated) / max(1, at.generated - before.generated)
                return before.accuracy + share * (at.accuracy - before.accuracy)
            before = at
        return before.accuracy


def curve_of(path: Path, evaluated: int = 0) -> list[Reached]:
    """The evaluations of a run's metrics.jsonl, also of one that is being written. Together they
    generated the tokens `evaluated`, which are left out, each as many."""
    points = list(read(path))
    sums, trained = {0: (0, 0)}, 0
    for step in points:
        if isinstance(step, StepPoint):
            trained += step.trained
            sums[step.version] = step.generated, trained
    found = sorted(
        (
            Reached(at.version, at.accuracy, at.seconds, *sums[at.version])
            for at in points
            if isinstance(at, EvaluationPoint) and at.accuracy is not None and at.version in sums
        ),
        key=lambda at: at.version,
    )
    return [
        msgspec.structs.replace(at, generated=at.generated - n * evaluated // len(found))
        for n, at in enumerate(found)
    ]


def run(
    way: str,
    seed: int,
    steps: int,
    ways: Mapping[str, tuple[str, ...]] = WAYS,
    until: float = 0.0,
) -> SelectedRun:
    """One `asyncrl train`; its output is shown where it fails. With `until` it is told to stop when
    it is so accurate."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = [sys.executable, "-m", "asyncrl.cli", "train", str(RUN_TOML)]
        sets = (f"run.seed={seed}", f"run.dir={folder / 'run'}", f"train.steps={steps}", *ways[way])
        model = prepare_model(configuration.load(RUN_TOML, (), {}))
        for each in (f"model.path={model}", *sets, *(("train.eval_every=4",) if until else ())):
            argv += ["--set", each]
        metrics, said = folder / "run/metrics.jsonl", list[str]()
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            told = not until
            for line in process.stdout:
                said.append(line)
                if not told and metrics.exists():
                    told = any(at.accuracy >= until for at in curve_of(metrics))
                    if told:
                        process.send_signal(signal.SIGTERM)
        if process.returncode:
            raise SystemExit("".join(said))
        return of_run(folder / "run", way, seed, steps, until)


def of_run(folder: Path, way: str, seed: int, steps: int, until: float) -> SelectedRun:
    """The result of a run, from its directory."""
    found = summary.read(folder / "summary.json")
    evaluated = found.tokens.discarded.get("evaluation", 0)
    return SelectedRun(
        *(way, seed, steps, until, curve_of(folder / "metrics.jsonl", evaluated)),
        generated=found.tokens.generated - evaluated,
        trained=found.tokens.trained,
        equal=found.tokens.discarded.get("zero_variance", 0),
        admitted=found.rollouts.admitted,
        ended=found.rollouts.pruned,
        training_s=found.training_seconds or 0.0,
    )


def table(runs: Sequence[SelectedRun]) -> None:
    """Print the accuracy of each way at equal generated tokens."""
    fewest = min(one.generated for one in runs)
    print(f"accuracy after {fewest:,} generated tokens; medians over seeds\n")
    heads = ("way", "seeds", "accuracy", "worst", "in the end", "generated", "equal", "per trained")
    print("".join(f"{head:>13}" for head in heads) + f"{'ended':>9}")
    for way in dict.fromkeys(one.way for one in runs):
        of = [one for one in runs if one.way == way]
        accuracies = [one.accuracy_at(fewest) for one in of]
        cells = (
            *(way, len(of), f"{statistics.median(accuracies):.3f}", f"{min(accuracies):.3f}"),
            f"{statistics.median(one.curve[-1].accuracy for one in of):.3f}",
            f"{statistics.median(one.generated for one in of):,.0f}",
            f"{statistics.median(one.equal / one.generated for one in of):.2f}",
            f"{statistics.median(one.generated / max(1, one.trained) for one in of):.2f}",
        )
        ended = statistics.median(sum(one.ended.values()) / one.admitted for one in of)
        print("".join(f"{cell!s:>13}" for cell in cells) + f"{ended:>9.2f}")


def table_until(runs: Sequence[SelectedRun], until: float) -> None:
    """Print what each way took to the accuracy, and over the first way's with the same seed."""
    first = {one.seed: one.goal for one in runs if one.way == runs[0].way}
    print(f"until {until} of the held-out prompts are right; medians of the seeds that got there\n")
    heads = (
        "way",
        "seeds",
        "in the end",
        "got there",
        "steps",
        "generated",
        "equal",
        "per trained",
    )
    ratios = ("steps over", "tokens over", "seconds over")
    print("".join(f"{head:>13}" for head in (*heads, *ratios)))
    for way in dict.fromkeys(one.way for one in runs):
        of = [one for one in runs if one.way == way]
        there = [(goal, first.get(one.seed)) for one in of if (goal := one.goal)]
        end = statistics.median(one.curve[-1].accuracy for one in of)
        cells = [way, str(len(of)), f"{end:.3f}", str(len(there))]
        if there:
            pairs = [(goal, peer) for goal, peer in there if peer]
            cells += [
                f"{statistics.median(goal.version for goal, _ in there):.0f}",
                f"{statistics.median(goal.generated for goal, _ in there):,.0f}",
                f"{statistics.median(one.equal / one.generated for one in of if one.goal):.2f}",
                f"{statistics.median(goal.generated / goal.trained for goal, _ in there):.2f}",
            ]
            if pairs:
                cells += [
                    f"{statistics.median(goal.version / peer.version for goal, peer in pairs):.2f}",
                    f"{statistics.median(g.generated / peer.generated for g, peer in pairs):.2f}",
                    f"{statistics.median(goal.seconds / peer.seconds for goal, peer in pairs):.2f}",
                ]
        print("".join(f"{cell:>13}" for cell in cells))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("selection.jsonl"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--until", type=float, default=0.0, help="the accuracy that ends a run")
    args = parser.parse_args(argv)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    results = [msgspec.json.decode(line, type=SelectedRun) for line in lines]
    asked = [
        (way, int(seed), args.steps, args.until)
        for seed in args.seeds.split(",")
        for way in args.ways.split(",")
    ]
    done = {(one.way, one.seed, one.steps, one.until) for one in results}
    with args.out.open("ab") as out:
        for way, seed, steps, until in asked:
            if (way, seed, steps, until) not in done:
                results.append(run(way, seed, steps, until=until))
                out.write(msgspec.json.encode(results[-1]) + b"\n")
                out.flush()
    shown = [one for one in results if (one.way, one.seed, one.steps, one.until) in asked]
    shown.sort(key=lambda one: asked.index((one.way, one.seed, one.steps, one.until)))
    if args.until:
        table_until(shown, args.until)
    else:
        table(shown)


if __name__ == "__main__":
    main()
