"""A real run with adapters whose engine is a real server: it is given whole weights, verified as
ever, and the run learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from train_support import command, tiny_model, train

from asyncrl.explain import summary
from asyncrl.explain.curve import StepPoint, read
from asyncrl.runtime.run_dir import METRICS, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.soak]
"""CI has its parts: `test_sglang_publication` serves what adapters and their base make,
`tests/actors/test_adapted_base.py` makes it of what was received, and `tests/runs/test_lora.py` is
a run of the embedded engine."""

STEPS = 6


def test_a_server_decodes_with_what_adapters_and_base_make(
    sglang_launch: tuple[str, ...], tmp_path: Path
) -> None:
    """Checksums of the server's own tensors and a canary are looked at by each load: one wrong
    weight ends the actor."""
    model, run = tiny_model(tmp_path / "m"), tmp_path / "run"
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{n} + 1 =", "answer": ""} for n in range(24)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    judge = (
        "def judge(answer, line):\n    return sum(c < 'n' for c in answer) / max(1, len(answer))\n"
    )
    (tmp_path / "letters.py").write_text(judge)
    argv = command(
        model,
        run,
        task__name="jsonl",
        task__path=str(file),
        task__verifier="letters:judge",
        task__eval_size=0,
        model__lora__rank=4,
        engine__kind="sglang",
        engine__sglang__launch=[*sglang_launch],
        engine__context_tokens=128,
        train__steps=STEPS,
        train__lr=2e-2,
        train__lr_warmup_steps=0,
    )
    done = train(argv, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count == STEPS + 1
    assert told.publication.sent_bytes < 0.1 * told.publication.count * size(model)
    found = [point.metrics for point in read(run / METRICS) if isinstance(point, StepPoint)]
    assert len(found) == STEPS and all(metrics["grad_norm"] > 0 for metrics in found)
    assert "is started again" not in done.stdout


def size(model: Path) -> int:
    return (model / "model.safetensors").stat().st_size
