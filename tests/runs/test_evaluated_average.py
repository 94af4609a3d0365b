"""A real run that evaluates the average of the weights (`evaluation.weights`): its figures are
those of RUN/model-ema, which is decoded here without any engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from train_support import command, everything, resume, started, tiny_model, train, wait_for

from asyncrl import journal
from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.explain.curve import EvaluationPoint, read
from asyncrl.runtime.run_dir import JOURNAL, METRICS, MODEL, MODEL_EMA, SUMMARY
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, TOKENS, HELD_OUT = 6, 16, 16
LONG = 60
"""Steps of a run that is killed after a few, long before its end."""
VERIFIER = """
def judge(answer, line):
    return float(sum(map(ord, answer)) % 2)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights that are four times as large as the other tests': its
    answers are of many words, where theirs are one word, which few versions change."""
    path = tiny_model(tmp_path_factory.mktemp("model"))
    model = load_model(path, torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    model.save_pretrained(str(path))
    return path


class Answer(NamedTuple):
    """An answer to a held-out prompt, as the journal has it: the versions of its spans, and ids."""

    versions: set[int]
    ids: list[int]


def argv(model: Path, run: Path, steps: int = STEPS, ranks: int = 1) -> list[str]:
    file = run.parent / "prompts.jsonl"
    lines = [{"prompt": f"{n} + 1 =", "answer": ""} for n in range(48 + HELD_OUT)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.parent / "odd.py").write_text(VERIFIER)
    return command(
        model,
        run,
        task__name="jsonl",
        task__path=str(file),
        task__verifier="odd:judge",
        task__eval_size=HELD_OUT,
        train__steps=steps,
        train__ranks=ranks,
        train__eval_every=3,
        train__checkpoint_every=3,
        train__lr=1e-3,  # most answers change with each version
        train__lr_warmup_steps=0,
        train__ema=0.99,
        evaluation__weights="ema",
        rollout__actors=2,
        rollout__max_new_tokens=TOKENS,
    )


def held_out(run: Path, version: int) -> dict[bytes, Answer]:
    """The answers of an evaluation by their prompts' ids."""
    groups: dict[int, tuple[bytes, int | None]] = {}
    found: dict[bytes, Answer] = {}
    for _, event in journal.read(run / JOURNAL):
        match event:
            case e.Admitted(split="evaluation"):
                groups[event.first] = event.prompt, event.version
            case e.Extended() if event.rollout in groups:
                prompt, pinned = groups[event.rollout]
                if pinned == version:
                    answer = found.setdefault(prompt, Answer(set(), []))
                    answer.versions.add(event.version)
                    answer.ids.extend(np.frombuffer(event.ids, np.int32).tolist())
    return found


@torch.no_grad()
def greedy(path: Path, prompts: Iterable[bytes]) -> dict[bytes, list[int]]:
    """The answers of a model directory by their prompts: one forward pass for each token."""
    model, tokenizer = load_model(path, torch.float32), Tokenizer(path)
    found: dict[bytes, list[int]] = {}
    for prompt in prompts:
        ids = np.frombuffer(prompt, np.int32).tolist()
        answer = found[prompt] = []
        while len(answer) < TOKENS and answer[-1:] not in ([stop] for stop in tokenizer.stop_ids):
            answer.append(int(model(torch.tensor([ids + answer])).logits[0, -1].argmax()))
    return found


def points(run: Path) -> list[EvaluationPoint]:
    return [point for point in read(run / METRICS) if isinstance(point, EvaluationPoint)]


@pytest.mark.explore
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_figures_are_those_of_model_ema(ranks: int, model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train(argv(model, run, ranks=ranks), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    last = held_out(run, STEPS)
    assert len(last) == HELD_OUT
    assert all(answer.versions == {STEPS} for answer in last.values())
    assert {p: answer.ids for p, answer in last.items()} == greedy(run / MODEL_EMA, last)
    own = greedy(run / MODEL, last)
    assert {p: answer.ids for p, answer in last.items()} != own, (
        "the version's own weights answer alike: this run shows nothing"
    )

    said, found = points(run), summary.read(run / SUMMARY)
    assert [(p.version, p.weights) for p in said] == [(0, "ema"), (3, "ema"), (STEPS, "ema")]
    decode = Tokenizer(run / MODEL_EMA).decode
    right = sum(sum(map(ord, decode(answer.ids))) % 2 for answer in last.values())
    assert said[-1].accuracy == right / HELD_OUT
    assert found.ok and found.balances()
    newest = said[-1]
    assert found.accuracy == summary.Accuracy(
        said[0].accuracy, newest.accuracy, "ema", asked=newest.asked, prompts=newest.prompts
    )
    assert "of the average of weights" in done.stdout


@pytest.mark.soak
def test_a_killed_run_goes_on_to_evaluate_the_average(model: Path, tmp_path: Path) -> None:
    """The average itself is in the checkpoint; what is evaluated after the resume is of it."""
    run = tmp_path / "run"

    def evaluated() -> bool:
        return (run / METRICS).exists() and 3 in {point.version for point in points(run)}

    with started(argv(model, run, LONG), PYTHONPATH=str(tmp_path)) as process:
        wait_for("evaluation", evaluated)
        everything(process, run)
    done = train(resume(run), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    last = held_out(run, LONG)
    assert {p: answer.ids for p, answer in last.items()} == greedy(run / MODEL_EMA, last)
    said = points(run)  # and what the second life began with
    assert {0, 3, LONG} <= {p.version for p in said} and {p.weights for p in said} == {"ema"}
    assert summary.read(run / SUMMARY).balances()
