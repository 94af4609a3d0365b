"""Runs that share groups (SAPO) against runs that do not, at equal generated tokens and with the
same filter.

Several runs of one model train at the same time on the same prompts, with other seeds: some have
4 own rollouts of a prompt and up to 4 of the others', some 8 own ones. SAPO compares rewards in
training, where the filter alone makes more samples useful; here both have it, and what is compared
is the accuracy on prompts that none has trained, at the tokens that the one which generated less
has generated.

    python bench/sharing.py [--runs 4] [--steps 20] [--seeds 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vs_trl import ROOT

from asyncrl import config as configuration
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.tasks import open_task
from asyncrl.tasks.text import Tokenizer

OWN, FOREIGN = 4, 4
Curve = list[tuple[int, float]]
"""Tokens that were generated, and the held-out accuracy then."""


def loaded(settings: Sequence[str] = ()) -> Config:
    return configuration.load(ROOT / "run.toml", list(settings), {})


def write_rows(path: Path, model: Path, prompts: int, held_out: int) -> None:
    """Write the prompts of the main job as ids, the held-out ones last: the same for each run."""
    config, tokenizer = loaded(), Tokenizer(model)
    task = open_task(config.task, 0)
    with path.open("w") as file:
        for index in range(prompts + held_out):
            prompt, answer = task.prompt("train", index), task.answer("train", index)
            row = {"prompt": tokenizer.encode(prompt), "answer": answer}
            file.write(json.dumps(row) + "\n")


def curve_of(run: Path) -> Curve:
    """The accuracy of a run by its generated tokens."""
    generated, curve = 0, Curve()
    for line in (run / "metrics.jsonl").read_text().splitlines():
        point: dict[str, Any] = json.loads(line)
        generated = point.get("generated", generated)
        if point.get("accuracy") is not None:
            curve.append((generated, point["accuracy"]))
    return curve


def accuracy_at(curve: Curve, tokens: int) -> float:
    """The accuracy of a run when it had generated so many tokens, between two evaluations in
    proportion. The curve has an evaluation at least.

    >>> accuracy_at([(0, 0.0), (100, 0.5), (200, 0.6)], 50), accuracy_at([(0, 0.1)], 7)
    (0.25, 0.1)
    """
    before, after = curve[0], curve[-1]
    for point in curve:
        if point[0] <= tokens:
            before = point
        else:
            after = point
            break
    if after[0] <= before[0]:
        return before[1]
    part = min(1.0, (tokens - before[0]) / (after[0] - before[0]))
    return before[1] + part * (after[1] - before[1])


def together(
    folder: Path, shared: bool, seed: int, options: argparse.Namespace
) -> tuple[list[Curve], list[dict[str, Any]]]:
    """Several runs at the same time: their curves, and what they say of foreign tokens."""
    folder.mkdir()
    groups = folder / "groups"
    groups.mkdir()
    common = [
        "task.name=data",
        f"task.path={options.rows}",
        f"task.eval_size={options.held_out}",
        "task.verifier=exact",
        f"model.path={options.model}",
        f"rollout.group_size={OWN if shared else OWN + FOREIGN}",
        "rollout.filter=zero_variance",
        f"train.batch_groups={options.groups}",
        f"train.steps={options.steps * (1 + shared)}",
        f"train.eval_every={max(1, options.steps * (1 + shared) // 5)}",
        "train.checkpoint_every=0",
        "rollout.actors=1",
        "reward.actors=1",
    ]
    if shared:
        common += [
            f"share.path={groups}",
            "foreign.source=runs",
            f"foreign.path={groups}",
            f"foreign.members={FOREIGN}",
        ]
    runs = list[subprocess.Popen[bytes]]()
    for number in range(options.runs):
        own = [*common, f"run.seed={100 * seed + number}", f"run.dir={folder / str(number)}"]
        command = [sys.executable, "-m", "asyncrl", "train", str(ROOT / "run.toml")]
        command += [part for setting in own for part in ("--set", setting)]
        with (folder / f"{number}.log").open("wb") as log:
            runs.append(subprocess.Popen(command, stdout=log, stderr=log))
    for number, run in enumerate(runs):
        if run.wait():
            raise SystemExit((folder / f"{number}.log").read_text()[-2000:])
    curves = [curve_of(folder / str(number)) for number in range(options.runs)]
    said = [
        json.loads((folder / str(number) / "summary.json").read_text())
        for number in range(options.runs)
    ]
    return curves, said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="of runs of 8 own; of others twice")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=64)
    options = parser.parse_args()
    options.model = prepare_model(loaded())
    differences = list[float]()
    with tempfile.TemporaryDirectory() as scratch:
        options.rows = Path(scratch, "prompts.jsonl")
        write_rows(options.rows, options.model, options.prompts, options.held_out)
        for seed in range(options.seeds):
            mixed, said = together(Path(scratch, f"{seed}-mixed"), True, seed, options)
            alone, of_alone = together(Path(scratch, f"{seed}-alone"), False, seed, options)
            tokens = min(one["tokens"]["generated"] for one in (*said, *of_alone))
            with_others = statistics.fmean(accuracy_at(curve, tokens) for curve in mixed)
            without = statistics.fmean(accuracy_at(curve, tokens) for curve in alone)
            differences.append(with_others - without)
            foreign = sum(one["foreign"]["foreign_trained"] for one in said)
            own = sum(one["tokens"]["trained"] for one in said)
            print(
                f"seed {seed}: at {tokens:,} generated tokens a run {OWN} own and up to {FOREIGN} "
                f"foreign have {with_others:.3f}, {OWN + FOREIGN} own {without:.3f}; of what was "
                f"trained {foreign / max(1, foreign + own):.0%} was foreign",
                flush=True,
            )
    print(
        f"difference: median {statistics.median(differences):+.3f}, least {min(differences):+.3f}"
    )


if __name__ == "__main__":
    main()
