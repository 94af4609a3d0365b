"""TRL's GRPO trainer and asyncrl on the same task, model and settings, with all cores of the
machine, one after the other: which is sooner as good?

    own lengths    the main job of `run.toml`: rollouts of about 18 tokens, at most 20
    heavy tail     a sixteenth of the prompts are 8 x 8 matrices: most rollouts have 18 tokens, some
                   128, at most 160

Both start from the same warmed-up model and train as many steps of as many groups, with the same
optimizer, schedule, clipping and normalization (`trl_run.py`), and keep no group out. Both save
their weights every few steps. Then one function answers the same held-out prompts with each of
these weights, greedily, and the time of an accuracy is that of the first weights that have it: from
the first training prompt to the end of the step. What TRL's saving takes is not counted; what
asyncrl's takes is, and so is its evaluation of the first and of the last version. TRL has whichever
setting of threads is the fastest in a trial of a few steps.

TRL has a virtual environment of its own:

    make trl
    .venv-bench/bin/python bench/vs_trl.py [--lengths own|tail] [--seeds 3] [--steps N]
                                           [--accuracy A]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from msgspec.structs import replace
from transformers import AutoTokenizer

from asyncrl import config as configuration
from asyncrl.config import Config
from asyncrl.observe import summary
from asyncrl.tasks import open_task
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model
from asyncrl.training.warmup import cache, prepare_model

ROOT = Path(__file__).parent.parent
EVERY = 5
"""Steps between two saved weights."""
TRIAL = 4
"""Steps of a trial; the first one is not counted."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
PROMPTS, LONG, LARGE, SMALL = 12_000, 16, 8, 3
"""Heavy tail: prompts, one of how many is large, and the sides of large and small matrices."""


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths to compare on."""

    name: str
    steps: int
    accuracy: float
    aim: float
    settings: Mapping[str, object]


OWN = Lengths("own lengths", 120, 0.8, 1.7, {})
TAIL = Lengths(
    "heavy tail",
    40,
    0.8,
    3.0,
    {
        "rollout.max_new_tokens": 160,
        "engine.context_tokens": 320,
        "task.name": "jsonl",
        "train.micro_tokens": 8192,
    },
)


class Run(NamedTuple):
    """Folders in which a side saved weights, by step, and the seconds from its first prompt to the
    end of that step."""

    folder: Path
    seconds: dict[int, float]

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        last = max(self.seconds)
        return self.seconds[last] / last


class Result(NamedTuple):
    """A run, and the held-out accuracy of its weights, by step."""

    run: Run
    accuracy: dict[int, float]

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds to the first weights that are at least so accurate; None where none are."""
        return min(
            (self.run.seconds[step] for step, found in self.accuracy.items() if found >= accuracy),
            default=None,
        )


class Sooner(NamedTuple):
    """Factor by which asyncrl is as good sooner: exactly, or at least, where TRL's run ended
    before."""

    ratio: float
    exact: bool

    @classmethod
    def of(cls, trl: Result, asyncrl: Result, accuracy: float) -> Sooner:
        """0 where asyncrl is never as good."""
        ours, theirs = asyncrl.seconds_to(accuracy), trl.seconds_to(accuracy)
        if ours is None:
            return cls(0.0, True)
        return cls((theirs or max(trl.run.seconds.values())) / ours, theirs is not None)

    def __str__(self) -> str:
        return f"{'' if self.exact else '> '}{self.ratio:.2f}"


def resolve(lengths: Lengths, seed: int, steps: int, folder: Path) -> Config:
    """The configuration of both sides, with its model ready."""
    settings = {
        **lengths.settings,
        "train.steps": steps,
        "train.eval_every": 0,
        "train.checkpoint_every": EVERY,
    }
    settings |= {"rollout.filter": "none", "run.dir": str(folder / "run")}
    if lengths is TAIL:
        settings["task.path"] = str(mixed())
    base = ROOT / "run.toml"
    model = prepare_model(
        configuration.load(base, [f"{key}={value}" for key, value in settings.items()], {})
    )
    settings |= {"model.path": str(model), "run.seed": seed}
    return configuration.load(base, [f"{key}={value}" for key, value in settings.items()], {})


def mixed() -> Path:
    """A file of matrices to turn, of two sizes; kept, as its warmed-up model is, for the next
    time."""
    path = cache() / "bench" / f"rotate_matrix-{SMALL}-{LARGE}.jsonl"
    if path.exists():
        return path
    draw, lines = random.Random(0), []
    for side, count in ((LARGE, PROMPTS // LONG), (SMALL, PROMPTS - PROMPTS // LONG)):
        params = f"task.params={{min_n={side}, max_n={side}, min_rotations=2, max_rotations=2}}"
        task = open_task(
            configuration.load(
                None, ["task.name=rotate_matrix", params, "task.eval_size=0"], {}
            ).task,
            0,
        )
        lines += [
            {
                "prompt": task.prompt("train", prompt_index).rstrip("\n"),
                "answer": task.answer("train", prompt_index),
            }
            for prompt_index in range(count)
        ]
    draw.shuffle(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asyncrl(config: Config, folder: Path) -> Run:
    """One `asyncrl train`. Its checkpoints are linked to before it deletes them; they say when they
    were written."""
    folder.mkdir()
    path, run = folder / "run.toml", Path(config.run.dir)
    configuration.write(config, path)
    written: dict[int, float] = {}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.cli", "train", str(path)],
            stdout=log,
            stderr=log,
            env=os.environ | ENVIRONMENT,
        )
        ended = False
        while not ended:
            ended = process.poll() is not None
            for checkpoint in complete(run):
                if checkpoint.version not in written:
                    kept = folder / checkpoint.path.name
                    kept.mkdir()
                    for name in ("config.json", "model.safetensors"):
                        os.link(checkpoint.path / name, kept / name)
                    written[checkpoint.version] = (checkpoint.path / "trainer.json").stat().st_mtime
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    seconds = summary.read(run / "summary.json").training_seconds
    assert seconds is not None
    begun = written[config.train.steps] - seconds
    return Run(folder, {step: at - begun for step, at in written.items()})


def trl(config: Config, folder: Path, threads: Mapping[str, str]) -> Run:
    """One run of TRL."""
    folder.mkdir()
    configuration.write(config, folder / "run.toml")
    argv = [sys.executable, str(ROOT / "bench/trl_run.py"), str(folder / "run.toml"), str(folder)]
    done = subprocess.run(
        argv, env=os.environ | ENVIRONMENT | threads, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return Run(
        folder,
        {int(step): at for step, at in json.loads((folder / "times.json").read_text()).items()},
    )


def fastest_threads(config: Config, folder: Path) -> dict[str, str]:
    """Settings with which TRL uses the cores best: one thread, or all, and whether a thread that
    has nothing to do spins."""
    cores, found = str(len(os.sched_getaffinity(0))), dict[float, dict[str, str]]()
    short = replace(config, train=replace(config.train, steps=TRIAL))
    for threads in (
        {"OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": cores},
        {"OMP_NUM_THREADS": cores, "OMP_WAIT_POLICY": "passive"},
    ):
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            seconds = trl(short, Path(trial) / "run", threads).seconds
            found[(seconds[TRIAL] - seconds[1]) / (TRIAL - 1)] = threads
    return found[min(found)]


@torch.inference_mode()
def accuracy(model_path: Path, config: Config) -> float:
    """Share of the held-out prompts that these weights answer right, greedily."""
    task = open_task(config.task, config.run.seed)
    tokenizer = AutoTokenizer.from_pretrained(
        config.model.path, local_files_only=True, padding_side="left"
    )
    items = range(task.size("evaluation"))
    asked = tokenizer(
        [task.prompt("evaluation", prompt_index) for prompt_index in items],
        return_tensors="pt",
        padding=True,
        return_token_type_ids=False,
    )
    model = load_model(model_path, torch.float32)
    replies = model.generate(
        **asked, do_sample=False, max_new_tokens=config.rollout.max_new_tokens
    )[:, asked["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(replies, skip_special_tokens=True)
    return sum(
        task.verify("evaluation", prompt_index, text) >= 1.0
        for prompt_index, text in zip(items, texts, strict=True)
    ) / len(items)


def evaluated(run: Run, config: Config) -> Result:
    torch.set_num_threads(1)  # on a machine that others use too, several would wait for each other
    return Result(
        run,
        {
            step: accuracy(run.folder / f"step-{step:06d}", config)
            for step in run.seconds
            if step % EVERY == 0
        },
    )


def compare(lengths: Lengths, args: argparse.Namespace) -> None:
    """Print the runs of each seed, and the medians of their ratios."""
    target = args.accuracy or lengths.accuracy
    speed, sooner = list[float](), list[Sooner]()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(args.seeds):
            folder = Path(name) / str(seed)
            folder.mkdir()
            config = resolve(lengths, seed, args.steps or lengths.steps, folder)
            if not seed:
                start = accuracy(Path(config.model.path), config)
                threads = fastest_threads(config, folder)
                print(
                    f"{lengths.name}: held-out accuracy {start:.2f} before; TRL with {threads}",
                    flush=True,
                )
                print(
                    f"{'seed':>4} {'':>8} {'s/step':>7} {'accuracy at the end':>20} "
                    f"{f's to {target}':>10}"
                )
            runs = {
                "TRL": lambda config=config, folder=folder, threads=threads: trl(
                    config, folder / "trl", threads
                ),
                "asyncrl": lambda config=config, folder=folder: asyncrl(config, folder / "asyncrl"),
            }
            order = (
                list(runs) if seed % 2 else list(reversed(runs))
            )  # what else this machine does meets both
            results = {side: evaluated(runs[side](), config) for side in order}
            for side, result in results.items():
                end, seconds = result.accuracy[max(result.accuracy)], result.seconds_to(target)
                print(
                    f"{seed:>4} {side:>8} {result.run.step_s:>7.2f} {end:>20.2f} "
                    f"{'never' if seconds is None else f'{seconds:.1f}':>10}",
                    flush=True,
                )
                if args.curves:
                    print(
                        "     ",
                        ", ".join(
                            f"{step}: {found:.2f}" for step, found in result.accuracy.items()
                        ),
                        flush=True,
                    )
            speed.append(results["TRL"].run.step_s / results["asyncrl"].run.step_s)
            sooner.append(Sooner.of(results["TRL"], results["asyncrl"], target))
    median = sorted(sooner)[len(sooner) // 2]
    print(
        f"{lengths.name}: asyncrl is {median} times as soon at {target} "
        f"({', '.join(map(str, sooner))}), aim {lengths.aim}; ",
        end="",
    )
    print(f"a step is {statistics.median(speed):.2f} times as fast\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", choices=["own", "tail"], help="one of the two alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="of each run")
    parser.add_argument("--accuracy", type=float, default=0.0, help="held-out, to be reached")
    parser.add_argument(
        "--curves", action="store_true", help="print the accuracy of all saved weights"
    )
    args = parser.parse_args()
    for lengths in {"own": [OWN], "tail": [TAIL], None: [OWN, TAIL]}[args.lengths]:
        compare(lengths, args)


if __name__ == "__main__":
    main()
