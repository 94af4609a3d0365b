"""Agents learn: the three bundled ones, each by one `asyncrl train` of the bundled model.

    guess         guess-the-number, 16 numbers, five guesses. The model is shown games of players
                  who listen to what they are told one time in five; to listen always, and to halve,
                  is for it to find
    calculator    sums, differences and products of two numbers below ten. The model is shown calls
                  of the right tool one time in five, else of `add` whatever is asked, and to say
                  what the tool said; to call the right one always is for it to find
    retry         rotate_matrix, three tries, against the same task in single turns after as many
                  steps, from the same model: `single`. It is shown conversations of players who are
                  right one time in two, then one time in five, and else swap two numbers

The shown texts teach a form, in seconds, and are the whole warm-up (`guess`, `calculator`); `retry`
and `single` begin with run.toml's. Each run is a line of JSON: held-out success (greedy: every
number once, or 48 questions; `retry` and `single` sampled as well) by version, the mean reward of
the first and of the last steps, seconds of training and in all.

    python bench/agents_learn.py [--out agents_learn.jsonl] [--only guess,calculator,retry,single]
                                 [--seeds 0] [--set KEY=VALUE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from asyncrl import config as configuration
from asyncrl.agents.examples import calculator
from asyncrl.agents.examples import retry as retry_agent
from asyncrl.agents.examples.guess_the_number import Game
from asyncrl.bundled import bundled_model
from asyncrl.bundled.warmup import prepare_model, teach
from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, StepPoint, read
from asyncrl.tasks import Task, open_task
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model

RUN_TOML = Path(__file__).parent.parent / "run.toml"
NUMBERS, LISTENS = 16, 5
GUESS = "Game ", ": guess a number from 1 to 16."
"""Before and behind the number of the game, which tells nothing."""
WORDS = {"add": "plus", "subtract": "minus", "multiply": "times"}
FORM = (
    "What is ",
    '<tool_call>\n{"name": "',
    '", "arguments": {"a": ',
    ', "b": ',
    "}}\n</tool_call>",
    *calculator.OPERATIONS,
    *WORDS.values(),
)
"""Parts of all questions and calls, each a token of its own: so a call is about ten tokens."""
HELD_OUT = 48
"""Questions for the calculator that are neither shown nor trained."""
FEW = 5
"""Steps whose mean reward is told, at the beginning and at the end."""


class Outcome(msgspec.Struct, frozen=True):
    """A run. `success` is held-out and greedy, by version, `sampled` the same of sampled answers,
    where they were asked for, and `success_s` the seconds of training when it was measured;
    `rewards` are the mean rewards of the first and of the last steps. `cpu_s`
    are processor seconds of the run without what was shown before, and `load` the machine's, mean
    of its last minutes, at the end."""

    what: str
    seed: int
    sets: list[str]
    success: dict[int, float]
    sampled: dict[int, float]
    success_s: dict[int, float]
    rewards: tuple[float, float]
    taught_s: float
    training_s: float | None
    seconds: float
    cpu_s: float
    load: float
    balances: bool


class Shown(NamedTuple):
    """Texts to learn a form from: what the model is given, and what it says."""

    lines: list[tuple[str, str]]

    def size(self, split: str) -> int:
        return len(self.lines)

    def prompt(self, split: str, prompt_index: int) -> str:
        return self.lines[prompt_index][0]

    def answer(self, split: str, prompt_index: int) -> str:
        return self.lines[prompt_index][1]


def game(number: int) -> str:
    return f"{GUESS[0]}{number}{GUESS[1]}"


def games(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Whole games of players who listen one time in `LISTENS`: what the model reads first, and what
    comes then, the game's replies as well."""
    while True:
        played, left, said = Game(), [1, NUMBERS], ""
        played.reset({"prompt": "", "answer": draw.randint(*left), "largest": NUMBERS}, 0)
        while True:
            listens = not draw.randrange(LISTENS)
            guess = str(draw.randint(*left) if listens else draw.randint(1, NUMBERS))
            step = played.step(guess)
            if step.done:
                break
            said += f"{guess}{bundled_model.END}{step.text}\n"
            left = [int(number) for number in step.text.split(" to ")]
        yield f"{game(draw.randrange(1_000))}\n", said + guess


def sums(draw: random.Random) -> list[tuple[str, str]]:
    """All questions about two numbers below ten, in random order, each with its answer."""
    asked = list(product(WORDS, range(1, 10), range(1, 10)))
    draw.shuffle(asked)
    return [
        (f"What is {a} {WORDS[tool]} {b}?", str(calculator.OPERATIONS[tool](a, b)))
        for tool, a, b in asked
    ]


def calls(
    draw: random.Random, tools: str, questions: list[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Whole conversations: a call of the tool that is asked for one time in `LISTENS`, else of
    `add`, and an answer that repeats what it said. So the likeliest call is right for sums alone,
    and greedy decoding begins as low as sampling does."""
    while True:
        question, _ = draw.choice(questions)
        _, _, a, _, b = question.rstrip("?").split()
        listens = not draw.randrange(LISTENS)
        asked = next(tool for tool, word in WORDS.items() if word in question)
        tool = asked if listens else "add"
        said = (
            f'<tool_call>\n{{"name": "{tool}", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
        )
        result = calculator.calculate(tool, json.dumps({"a": int(a), "b": int(b)}))
        yield f"{tools}{question}\n", f"{said}{bundled_model.END}{result}\n{result}"


def tries(draw: random.Random, task: Task, rarely: int) -> Iterator[tuple[str, str]]:
    """Whole conversations about the task's questions: answers that are right one time in `rarely`,
    at most three, and what is said to the wrong ones."""
    while True:
        prompt_index = draw.randrange(task.size("train"))
        right, said = task.answer("train", prompt_index), ""
        for left in reversed(range(retry_agent.TRIES)):
            knows = not draw.randrange(rarely)
            said += right if knows else swapped(draw, right)
            if knows or not left:
                break
            said += f"{bundled_model.END}{retry_agent.AGAIN}\n"
        yield task.prompt("train", prompt_index), said


def swapped(draw: random.Random, answer: str) -> str:
    """The answer with two of its numbers swapped, which are not alike."""
    parts = re.split(r"(\d+)", answer)
    pairs = [pair for pair in combinations(range(1, len(parts), 2), 2) if differ(parts, pair)]
    one, other = draw.choice(pairs)
    parts[one], parts[other] = parts[other], parts[one]
    return "".join(parts)


def differ(parts: list[str], pair: tuple[int, int]) -> bool:
    return parts[pair[0]] != parts[pair[1]]


def tools_text(folder: Path) -> str:
    """The tools as the model's chat template shows them."""
    bundled_model.write_tokenizer(folder)
    shown = Tokenizer(folder, chat=True).render(
        [{"role": "user", "content": "?"}],
        calculator.TOOLS,  # type: ignore[arg-type]
    )
    return shown.removesuffix("?\n")


def taught(folder: Path, seed: int, shown: Shown, frame: list[str], steps: int) -> Path:
    """The bundled model, which knows the form of `shown`."""
    bundled_model.write_tokenizer(folder, frame)
    model = bundled_model.new_model(seed)
    if (ids := bundled_model.PADDING_ID + 1 + len(frame)) > bundled_model.VOCABULARY:
        model.resize_token_embeddings(ids, mean_resizing=False)
    return show(model, folder, seed, shown, steps)


def show(model: Any, folder: Path, seed: int, shown: Shown, steps: int) -> Path:
    """Teach a model the form of `shown`, and save it beside its tokenizer."""
    torch.set_num_threads(1)  # several wait for each other where anything else runs
    torch.manual_seed(seed)
    for lesson in teach(model, Tokenizer(folder), shown, steps=steps, enough=2.0):  # type: ignore[arg-type]
        if lesson.step % 50 == 0:
            print(f"  shown {lesson.step}: {lesson}", file=sys.stderr, flush=True)
    model.save_pretrained(str(folder))
    return folder


def jsonl(path: Path, lines: list[tuple[str, str]]) -> Path:
    rows = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in lines]
    path.write_text("\n".join(rows) + "\n")
    return path


def guess(folder: Path, seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    turns = games(draw)
    shown = Shown([next(turns) for _ in range(20_000)])
    model = taught(folder / "model", seed, shown, [GUESS[0], f"{GUESS[1]}\n"], 250)
    numbers = [(game(n), str(1 + n % NUMBERS)) for n in range(NUMBERS * 33)]
    return {
        "model.path": model,
        "task.path": jsonl(folder / "numbers.jsonl", numbers),
        "task.eval_size": NUMBERS,
        "agent.run": "asyncrl.agents.examples.guess_the_number:Game",
        "engine.context_tokens": 96,
        "rollout.max_new_tokens": 20,
        "train.steps": 50,
        "train.batch_groups": 16,
        "train.lr": 6e-4,
    }


def calculate(folder: Path, seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    tools, questions = tools_text(folder / "form"), sums(draw)
    turns = calls(draw, tools, questions[:-HELD_OUT])
    shown = Shown([next(turns) for _ in range(20_000)])
    model = taught(folder / "model", seed, shown, [tools, *FORM], 250)
    return {
        "model.path": model,
        "task.path": jsonl(folder / "sums.jsonl", questions),
        "task.eval_size": HELD_OUT,
        "task.verifier": "number",
        "agent.run": "asyncrl.agents.examples.calculator:solve",
        "agent.max_calls": 3,
        "engine.context_tokens": 256,
        "rollout.max_new_tokens": 100,
        "train.steps": 40,
        "train.lr": 6e-4,
        "train.lr_warmup_steps": 3,
    }


MATRIX = {
    "task.eval_size": HELD_OUT,
    "engine.context_tokens": 192,
    "evaluation.samples": 4,
    "train.steps": 10,
    "train.eval_every": 5,
}
SHOWN = ((2, 300), (LISTENS, 100))
"""Players who are right one time in so many, shown to run.toml's warmed-up model for so many steps.
From those of `LISTENS` alone, 100 steps teach no second answer: sampled ones were right in 0.12,
0.01 and 0.00 of first, second and third tries."""


def single(folder: Path, seed: int) -> dict[str, object]:
    """Single turns of the model that `retry` begins with."""
    task = open_task(configuration.load(RUN_TOML, [], {}).task, seed)
    warmed = prepare_model(configuration.load(RUN_TOML, [f"run.seed={seed}"], {}))
    path = shutil.copytree(warmed, folder / "model")
    for rarely, steps in SHOWN:
        lines = tries(random.Random(seed), task, rarely)
        shown = Shown([next(lines) for _ in range(20_000)])
        show(load_model(path), path, seed, shown, steps)
    return {**MATRIX, "model.path": path}


def retry(folder: Path, seed: int) -> dict[str, object]:
    own = {"agent.run": "asyncrl.agents.examples.retry:solve", "rollout.max_new_tokens": 60}
    return {**single(folder, seed), **own}


ALL: dict[str, Callable[[Path, int], dict[str, object]]] = {
    "guess": guess,
    "calculator": calculate,
    "retry": retry,
    "single": single,
}
COMMON = {"task.name": "jsonl", "engine.slots": 64, "train.batch_groups": 8, "train.eval_every": 10}


def run(what: str, seed: int, sets: list[str]) -> Outcome:
    """One run; its output goes to a log, which is shown where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        settings = ALL[what](folder, seed)
        taught_s = time.perf_counter() - began
        toml = [str(RUN_TOML)] if what in ("retry", "single") else []
        common = {} if toml else COMMON
        settings = {**common, **settings, "run.seed": seed, "run.dir": folder / "run"}
        argv = [sys.executable, "-m", "asyncrl.cli", "train", *toml]
        for each in [*(f"{key}={value}" for key, value in settings.items()), *sets]:
            argv += ["--set", each]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with (folder / "log").open("w") as log:
            done = subprocess.run(argv, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise SystemExit((folder / "log").read_text())
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        points, told = (
            list(read(folder / "run/metrics.jsonl")),
            summary.read(folder / "run/summary.json"),
        )
    rewards = [point.reward or 0.0 for point in points if isinstance(point, StepPoint)]
    evaluations = [point for point in points if isinstance(point, EvaluationPoint)]
    return Outcome(
        what,
        seed,
        sets,
        {point.version: point.accuracy for point in evaluations},
        {
            point.version: share
            for point in evaluations
            for name, share in point.figures.items()
            if name.startswith("avg@")
        },
        {point.version: round(point.seconds, 1) for point in evaluations},
        (statistics.mean(rewards[:FEW]), statistics.mean(rewards[-FEW:])),
        round(taught_s, 1),
        told.training_seconds,
        round(seconds, 1),
        round(cpu_s, 1),
        round(os.getloadavg()[1], 1),
        told.balances(),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("agents_learn.jsonl"))
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    arguments = parser.parse_args()
    for seed in map(int, arguments.seeds.split(",")):
        for what in arguments.only.split(","):
            found = run(what, seed, arguments.sets)
            with arguments.out.open("ab") as out:
                out.write(msgspec.json.encode(found) + b"\n")
            print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
