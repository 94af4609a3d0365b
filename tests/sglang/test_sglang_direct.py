"""Weights straight from the trainer into real servers: a run to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_sglang import PYTHON
from train_support import command, tiny_model, train

from asyncrl.observe import summary
from asyncrl.observe.run_dir import SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

STEPS = 2


@pytest.mark.skipif(not PYTHON.exists(), reason="`make sglang-cpu` builds .venv-sglang")
def test_two_servers_are_sent_each_version_by_the_trainer(tmp_path: Path) -> None:
    """Checksums of the servers' own tensors and the canary are looked at each time: one wrong
    weight ends an actor."""
    run = tmp_path / "run"
    argv = command(
        tiny_model(tmp_path / "m"),
        run,
        engine__kind="sglang",
        engine__sglang__launch=[str(PYTHON)],
        engine__context_tokens=128,
        publication__path="direct",
        publication__bucket_bytes=1 << 20,
        rollout__actors=2,
        train__steps=STEPS,
    )
    done = train(argv)
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count >= STEPS + 1
    assert "is started again" not in done.stdout
