"""A real run with adapters whose engine is a real server that keeps the base: it gets adapters
alone, each version under a name of its own, and the run learns."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from train_support import command, tiny_model, train

from asyncrl.explain import summary
from asyncrl.explain.curve import StepPoint, read
from asyncrl.runtime.run_dir import METRICS, SUMMARY

STEPS = 4
JUDGE = "def judge(answer, line):\n    return sum(c < 'n' for c in answer) / max(1, len(answer))\n"


def check_adapters(kind: str, launch: tuple[str, ...], folder: Path) -> None:
    """Run servers of this kind. Each load compares the base's checksums, and the canary of its
    version: one wrong number ends the actor."""
    model, run = tiny_model(folder / "m"), folder / "run"
    file = folder / "prompts.jsonl"
    lines = [{"prompt": f"{n} + 1 =", "answer": ""} for n in range(24)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "letters.py").write_text(JUDGE)
    argv = command(
        model,
        run,
        task__name="jsonl",
        task__path=str(file),
        task__verifier="letters:judge",
        task__eval_size=0,
        model__lora__rank=4,
        model__lora__served="adapters",
        engine__kind=kind,
        engine__context_tokens=128,
        train__steps=STEPS,
        train__lr=2e-2,
        train__lr_warmup_steps=0,
        **{f"engine__{kind}__launch": [*launch]},
    )
    done = train(argv, PYTHONPATH=os.pathsep.join([str(folder), *sys.path]))
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count == STEPS + 1
    assert told.publication.sent_bytes < 0.1 * told.publication.count * size(model)
    found = [point.metrics for point in read(run / METRICS) if isinstance(point, StepPoint)]
    assert len(found) == STEPS and all(metrics["grad_norm"] > 0 for metrics in found)
    assert "is started again" not in done.stdout
    log = (run / "logs" / "server-0.log").read_text(errors="replace")
    calls = "".join(line for line in log.splitlines() if ' "POST /' in line)  # vLLM lists routes
    assert calls.count("/load_lora_adapter") == STEPS + 1
    assert 1 <= calls.count("/unload_lora_adapter") <= STEPS
    assert "pause" not in calls and "update_weights" not in calls


def size(model: Path) -> int:
    return (model / "model.safetensors").stat().st_size
