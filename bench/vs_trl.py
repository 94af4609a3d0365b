"""TRL's GRPO trainer and asyncrl on the same task, model and settings, with all cores of the
machine, one after the other: which is sooner as good?

    own lengths    the main job of `run.toml`: rollouts of about 18 tokens, at most 20
    heavy tail     a sixteenth of the prompts are 8 x 8 matrices: most rollouts have 18 tokens, some
                   128, at most 160

Both start from the same warmed-up model and train as many steps of as many groups on the same exact
reward, with the same optimizer, schedule, clipping and normalization (`trl_run.py`), and keep no
group out. Both save their weights every few steps. Then one function answers the same held-out
prompts with each of these weights, greedily, and the steps to an accuracy are those of the first
weights that have it. What a step takes and how many are needed is told apart, and then together:
seconds from the first training prompt to the end of that step. What TRL's saving takes is not
counted; what asyncrl's takes is, and so is its evaluation of the first and of the last version.

    trl          one update for what is generated: its ratio is 1, and its clip never acts
    trl-two      two updates with all of it (num_iterations = 2), so that its clip acts
    trl-halves   an update with each half of it (steps_per_generation = 2); left out unless named
    asyncrl      run.toml's
    lag-0        run.toml's with max_lag = 0 and depth = 0: on-policy, synchronous

TRL has the fastest of its settings in trials of a few steps: threads, then micro-batches of a step,
then transformers' continuous batching.

Each run is a line of JSON in `--out` as soon as it is done, and what is there already is not run
again, so that it can be stopped and resumed.

TRL has a virtual environment of its own:

    make trl
    .venv-bench/bin/python bench/vs_trl.py [--lengths own|tail] [--seeds 0,1,2] [--steps N]
                                           [--sides trl,asyncrl] [--accuracy A]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec
import torch
from msgspec.structs import replace
from transformers import AutoTokenizer
from trl_way import Way

from asyncrl import config as configuration
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.explain import summary
from asyncrl.tasks import open_task
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model
from asyncrl.user_cache import cache

ROOT = Path(__file__).parent.parent
EVERY = 5
"""Steps between two saved weights."""
TRIAL = 4
"""Steps of a trial; the first one is not counted."""
TRIAL_S = 300.0
"""Seconds after which a trial is too slow."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
UPDATES: Mapping[str, Literal["one", "two", "halves"]] = {
    "trl": "one",
    "trl-two": "two",
    "trl-halves": "halves",
}
"""TRL's sides, by the updates that they make with what they generate."""
PROMPTS, LONG, LARGE, SMALL = 12_000, 16, 8, 3
"""Heavy tail: prompts, one of how many is large, and the sides of large and small matrices."""


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths to compare on."""

    name: str
    steps: int
    accuracy: float
    settings: Mapping[str, object]


OWN = Lengths("own lengths", 120, 0.8, {})
TAIL = Lengths(
    "heavy tail",
    40,
    0.8,
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


class Setting(msgspec.Struct, frozen=True):
    """A run of TRL: its environment variables for threads, and its way."""

    threads: dict[str, str]
    way: Way = Way()


class Line(msgspec.Struct, frozen=True):
    """One run, as it is kept: seconds and held-out accuracy by step."""

    lengths: str
    steps: int
    seed: int
    side: str
    seconds: dict[int, float]
    accuracy: dict[int, float]
    setting: Setting | None = None

    @property
    def of(self) -> tuple[str, int, int, str]:
        """Name of the run."""
        return self.lengths, self.steps, self.seed, self.side

    @property
    def step_s(self) -> float:
        return self.seconds[max(self.seconds)] / max(self.seconds)

    def steps_to(self, accuracy: float) -> int | None:
        """Steps of the first weights that are at least so accurate; None where none are."""
        return min((at for at, found in self.accuracy.items() if found >= accuracy), default=None)


def resolve(
    lengths: Lengths,
    seed: int,
    steps: int,
    folder: Path,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Config:
    """The configuration of both sides, with its model ready, and with `more` settings."""
    settings: dict[str, object] = {
        **lengths.settings,
        **more,
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


def trl(config: Config, folder: Path, setting: Setting, limit_s: float | None = None) -> Run:
    """One run of TRL. Raises subprocess.TimeoutExpired after `limit_s` seconds."""
    folder.mkdir()
    configuration.write(config, folder / "run.toml")
    argv = [sys.executable, str(ROOT / "bench/trl_run.py"), str(folder / "run.toml"), str(folder)]
    argv.append(msgspec.json.encode(setting.way).decode())
    env = os.environ | ENVIRONMENT | setting.threads
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return Run(
        folder,
        {int(step): at for step, at in json.loads((folder / "times.json").read_text()).items()},
    )


def fastest(config: Config, folder: Path) -> Setting:
    """The setting with which TRL is fastest, each choice tried with the best of those before:
    threads (one or all, and whether one that has nothing to do spins), micro-batches of a step, and
    continuous batching."""
    cores = str(len(os.sched_getaffinity(0)))
    short = replace(config, train=replace(config.train, steps=TRIAL))

    def seconds(setting: Setting) -> float:
        """Of a step; without end where it fails."""
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            try:
                found = trl(short, Path(trial) / "run", setting, TRIAL_S).seconds
                took = (found[TRIAL] - found[1]) / (TRIAL - 1)
            except (SystemExit, subprocess.TimeoutExpired) as failed:
                took = math.inf
                print(f"{setting}: {str(failed).strip().splitlines()[-1]}", flush=True)
        print(f"{took:.2f} s a step: {setting}", flush=True)
        return took

    def best(settings: Iterable[Setting]) -> Setting:
        tried.update({msgspec.json.encode(each): (seconds(each), each) for each in settings})
        return min(tried.values(), key=lambda each: each[0])[1]

    tried = dict[bytes, tuple[float, Setting]]()
    setting = best(
        Setting(threads)
        for threads in (
            {"OMP_NUM_THREADS": "1"},
            {"OMP_NUM_THREADS": cores},
            {"OMP_NUM_THREADS": cores, "OMP_WAIT_POLICY": "passive"},
        )
    )
    setting = best(Setting(setting.threads, Way(parts=parts)) for parts in (2, 4, 8))
    return best([Setting(setting.threads, replace(setting.way, continuous=True))])


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


def run(side: str, lengths: Lengths, seed: int, steps: int, found: Callable[[], Setting]) -> Line:
    """One side's run from one seed. `found` gives TRL's setting."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        more = {"staleness.max_lag": 0, "staleness.depth": 0} if side == "lag-0" else {}
        config, setting = resolve(lengths, seed, steps, folder, more), None
        if side.startswith("trl"):
            setting = found()
            setting = replace(setting, way=replace(setting.way, updates=UPDATES[side]))
            done = trl(config, folder / "side", setting)
        else:
            done = asyncrl(config, folder / "side")
        result = evaluated(done, config)
    return Line(lengths.name, steps, seed, side, done.seconds, result.accuracy, setting)


def compare(lengths: Lengths, args: argparse.Namespace) -> None:
    """Run what is not there yet, and print all, and the medians of each side."""
    target, steps = args.accuracy or lengths.accuracy, args.steps or lengths.steps
    known = args.out.read_text().splitlines() if args.out.exists() else []
    lines = {line.of: line for line in (msgspec.json.decode(each, type=Line) for each in known)}

    @functools.cache
    def setting() -> Setting:
        for line in lines.values():
            if line.lengths == lengths.name and line.setting is not None:
                return line.setting
        with tempfile.TemporaryDirectory() as name:
            return fastest(resolve(lengths, 0, steps, Path(name)), Path(name))

    with args.out.open("ab") as out:
        for seed in args.seeds:
            # what else this machine does meets all
            for side in args.sides if seed % 2 else reversed(args.sides):
                if (lengths.name, steps, seed, side) not in lines:
                    line = run(side, lengths, seed, steps, setting)
                    lines[line.of] = line
                    out.write(msgspec.json.encode(line) + b"\n")
                    out.flush()
    table(
        [line for line in lines.values() if (line.lengths, line.steps) == (lengths.name, steps)],
        target,
    )


def table(lines: Sequence[Line], target: float) -> None:
    """Each run, and the medians of the runs of each side. A run that never comes to `target` counts
    with all its steps, and is marked."""
    heads = ("s/step", "at the end", f"steps to {target}", "seconds")
    print(f"{'side':<12}{'seed':>5}" + "".join(f"{head:>15}" for head in heads))

    def row(side: str, seed: object, rows: Sequence[Line]) -> tuple[float, float, float]:
        steps = [line.steps_to(target) or line.steps for line in rows]
        seconds = [line.seconds[at] for line, at in zip(rows, steps, strict=True)]
        never = sum(line.steps_to(target) is None for line in rows)
        values = [
            statistics.median(each)
            for each in (
                [line.step_s for line in rows],
                [line.accuracy[max(line.accuracy)] for line in rows],
                steps,
                seconds,
            )
        ]
        print(
            f"{side:<12}{seed!s:>5}" + "".join(f"{value:>15.2f}" for value in values),
            f"  {never} never" if never else "",
            flush=True,
        )
        return values[0], values[2], values[3]

    medians = dict[str, tuple[float, float, float]]()
    for side in dict.fromkeys(line.side for line in lines):
        rows = sorted((line for line in lines if line.side == side), key=lambda line: line.seed)
        for line in rows:
            row(side, line.seed, [line])
            if line.setting is not None:
                print(f"      {line.setting}")
        medians[side] = row(side, "all", rows)
    print("\nmedians: how many times as many seconds a step, steps, and seconds in all")
    for ours in medians.keys() - UPDATES.keys():
        for theirs in medians.keys() & UPDATES.keys():
            ratios = [a / b for a, b in zip(medians[theirs], medians[ours], strict=True)]
            print(f"{theirs} over {ours}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


def listed(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("vs_trl.jsonl"))
    parser.add_argument("--lengths", choices=["own", "tail"], help="one of the two alone")
    parser.add_argument(
        "--seeds", type=lambda text: [int(each) for each in listed(text)], default=[0, 1, 2]
    )
    parser.add_argument(
        "--sides", type=listed, default=["trl", "trl-two", "asyncrl", "lag-0"], help="in turn"
    )
    parser.add_argument("--steps", type=int, default=0, help="of each run")
    parser.add_argument("--accuracy", type=float, default=0.0, help="held-out, to be reached")
    args = parser.parse_args()
    for lengths in {"own": [OWN], "tail": [TAIL], None: [OWN, TAIL]}[args.lengths]:
        compare(lengths, args)


if __name__ == "__main__":
    main()
