"""Real runs with adapters (`model.lora`): they learn, engines are sent them alone, a killed run
goes on from its adapters, and another base is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from train_support import (
    command,
    everything,
    resume,
    started,
    steps_done,
    tiny_model,
    train,
    wait_for,
)

from asyncrl.config.schema import LoraConfig
from asyncrl.explain import summary
from asyncrl.explain.curve import StepPoint, read
from asyncrl.runtime.run_dir import ADAPTER, METRICS, MODEL, MODEL_EMA, RUN_TOML, SUMMARY
from asyncrl.training.adapters import ADAPTERS, adapters, add_adapters, merged, set_adapters
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, RANK = 12, 4
WEIGHTS = "model.safetensors"
VERIFIER = """
def judge(answer, line):
    return sum(c in "abcdefghijklm" for c in answer) / max(1, len(answer))
"""
"""A reward that a random model has some of, and can have all of."""


def argv(model: Path, run: Path, **more: Any) -> list[str]:
    file = run.parent / "prompts.jsonl"
    lines = [{"prompt": f"{n} + 1 =", "answer": ""} for n in range(48)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.parent / "letters.py").write_text(VERIFIER)
    settings: dict[str, Any] = {
        "task__name": "jsonl",
        "task__path": str(file),
        "task__verifier": "letters:judge",
        "task__eval_size": 0,
        "model__lora__rank": RANK,
        "train__steps": STEPS,
        "train__batch_groups": 4,
        "train__checkpoint_every": 3,
        "train__lr": 2e-2,
        "train__lr_warmup_steps": 0,
        "rollout__group_size": 8,
        "engine__slots": 32,
        "staleness__max_lag": 0,
        "staleness__depth": 0,
        "machine__cores": 2,
    }
    return command(model, run, **settings | more)


def model_of(path: Path) -> Path:
    """A model with random weights whose output can be certain, though it never changes: its words
    are three times as long as those of a new one."""
    weights = load_file(tiny_model(path) / WEIGHTS)
    longer = {
        name: tensor * (3 if "embed_tokens" in name else 1) for name, tensor in weights.items()
    }
    save_file(longer, path / WEIGHTS, metadata={"format": "pt"})
    return path


def rewards(run: Path) -> list[float]:
    return [point.reward for point in read(run / METRICS) if isinstance(point, StepPoint)]


def weights_bytes(model: Path) -> int:
    return sum(parameter.nbytes for parameter in load_model(model).parameters())


@pytest.mark.explore
def test_it_learns_goes_on_after_a_kill_and_refuses_another_base(tmp_path: Path) -> None:
    model, run = model_of(tmp_path / "m"), tmp_path / "run"
    before = (model / WEIGHTS).read_bytes()
    with started(argv(model, run), PYTHONPATH=str(tmp_path)) as process:
        wait_for("six steps", lambda: steps_done(run) >= 6 and complete(run), every_s=0.01)
        everything(process, run)
    killed = complete(run)[-1].version
    assert killed < STEPS, "it was over before anybody looked"
    weights = load_file(model / WEIGHTS)
    other = {name: tensor * 1.01 for name, tensor in weights.items()}
    save_file(other, model / WEIGHTS, metadata={"format": "pt"})
    refused = train(resume(run), PYTHONPATH=str(tmp_path))
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "its adapters belong to another model than the run now starts" in refused.stderr

    (model / WEIGHTS).write_bytes(before)
    done = train(resume(run), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights that learn" in done.stdout
    found = rewards(run)
    assert max(found[:2]) < 0.3 and min(found[-2:]) > 0.7, found
    # it goes on from what it had learned
    assert found[killed] > max(found[:2]) and found[killed] > found[killed - 1] - 0.2, found
    assert (model / WEIGHTS).read_bytes() == before

    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps == STEPS
    learned = load_file(run / ADAPTER / ADAPTERS)
    sizes = sum(tensor.nbytes for tensor in learned.values())
    each = told.publication.sent_bytes / told.publication.count
    assert sizes <= each < 1.2 * sizes < 0.2 * weights_bytes(model)
    expected = load_model(model)
    add_adapters(expected, LoraConfig(rank=RANK))
    assert {name for name, _ in adapters(expected)} == learned.keys()
    set_adapters(expected, learned)
    whole = dict(load_model(run / MODEL).named_parameters())
    assert all(torch.equal(whole[name], weight) for name, weight in merged(expected))


@pytest.mark.explore
def test_other_policies_are_adapters_too(tmp_path: Path) -> None:
    """A reference that is reset, an average that is evaluated, earlier versions, in bfloat16."""
    model, run = model_of(tmp_path / "m"), tmp_path / "run"
    more: dict[str, Any] = {
        "model__dtype": "bfloat16",
        "train__steps": 4,
        "train__eval_every": 2,
        "train__ema": 0.5,
        "task__eval_size": 8,
        "evaluation__weights": "ema",
        "reference__coefficient": 0.1,
        "reference__reset_every": 3,
        "staleness__max_lag": 1,
        "staleness__depth": 1,
        "staleness__proximal": "boundary",
    }
    done = train(argv(model, run, **more), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [point.metrics for point in read(run / METRICS) if isinstance(point, StepPoint)]
    apart = [abs(metrics["reference_kl"]) for metrics in found]
    assert apart[0] == 0 and apart[1] > 0 and apart[3] < apart[2]
    one, average = load_file(run / MODEL / WEIGHTS), load_file(run / MODEL_EMA / WEIGHTS)
    assert one.keys() == average.keys() == load_file(model / WEIGHTS).keys()
    assert any(not torch.equal(one[name], average[name]) for name in one)
    state = load_file(complete(run)[-1].path / "trainer.safetensors")
    assert all(".lora_" in name for name in state if name.endswith(".weight"))


@pytest.mark.soak
def test_four_ranks_with_everything_are_killed_and_two_end_with_the_weights_of_one(
    tmp_path: Path,
) -> None:
    """Adapters, a reference, an average, scores of earlier versions, and a correction that sees
    whole steps; at lag 0, where weights are a function of the seed. Weights differ by a small share
    of what was learned: by the order of sums, which AdamW makes steps of where a gradient is
    nearly nothing."""
    model = model_of(tmp_path / "m")
    everything_on: dict[str, Any] = {
        "train__steps": 6,
        "train__checkpoint_every": 2,
        "train__lr": 2e-3,
        "train__ema": 0.5,
        "reference__coefficient": 0.1,
        "staleness__proximal": "boundary",
        "staleness__correction": '[{kind = "m2po", hi = 0.04}]',
    }
    one, run = tmp_path / "one", tmp_path / "run"
    done = train(argv(model, one, **everything_on), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    with started(
        argv(model, run, **everything_on, train__ranks=4), PYTHONPATH=str(tmp_path)
    ) as process:
        wait_for("three steps", lambda: steps_done(run) >= 3 and complete(run))
        everything(process, run)
    killed = complete(run)[-1].version
    assert 0 < killed < 6
    settings = (run / RUN_TOML).read_text()
    (run / RUN_TOML).write_text(settings.replace("ranks = 4", "ranks = 2", 1))
    done = train(resume(run), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps == 6
    before = _weights(model)
    for name in (MODEL, MODEL_EMA):
        expected, found = (_weights(folder / name) for folder in (one, run))
        assert expected.keys() == found.keys() == before.keys()
        apart, learned = (
            sum(float((this[key] - that[key]).square().sum()) for key in before) ** 0.5
            for this, that in ((found, expected), (expected, before))
        )
        print(f"{name}: {apart / learned:.2g} of what was learned")
        assert learned > 0 and apart < 0.005 * learned, (name, apart, learned)
    assert rewards(run) == pytest.approx(rewards(one), abs=0.05)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a directory, of which each rank may have written a file."""
    files = sorted(folder.glob("*model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}
