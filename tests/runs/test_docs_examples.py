"""The runs of docs/examples: each is checked, and runs from its folder as its page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
import warm_process

from asyncrl.explain import summary
from asyncrl.runtime.run_dir import METRICS, SUMMARY

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/run.toml"))
OF_SOAK = {"bounded_lag", "forks", "own_agent", "own_data"}
"""Examples that CI does not train here: one is settings alone, which are checked; two are agents,
as a notebook has one (`test_notebooks.py`); the page's own commands train the last
(`tests/pages`)."""
BRIEF = (
    *("train.steps=4", "train.eval_every=0", "task.eval_size=8", "evaluation.samples=0"),
    *("model.warmup_steps=20", "rollout.filter=none"),
)
"""Settings that make a run short; a mix has an `eval_size` for each task. The warm-up that they cut
is whole where an example teaches, below."""

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def asyncrl(folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_process.run(
        [sys.executable, "-m", "asyncrl.cli", *words],
        cwd=EXAMPLES / folder,
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_page_has_each_folder_and_no_other() -> None:
    shown = re.findall(r"^\| \[(\w+)\]\(", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(shown) == FOLDERS and len(FOLDERS) == 6


@pytest.mark.explore
@pytest.mark.parametrize("folder", FOLDERS)
def test_each_can_be_run(folder: str) -> None:
    done = asyncrl(folder, "check", "run.toml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(name, marks=pytest.mark.soak if name in OF_SOAK else pytest.mark.explore)
        for name in FOLDERS
        if name != "own_verifier"
    ],
)
def test_each_begins_to_learn(folder: str, tmp_path: Path) -> None:
    """All but `own_verifier`, which teaches below."""
    sets = [each for each in BRIEF if folder != "two_tasks" or "eval_size" not in each]
    words = [f"--set={each}" for each in (*sets, f"run.dir={tmp_path / 'run'}")]
    done = asyncrl(folder, "train", "run.toml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(tmp_path / "run" / SUMMARY)
    assert told.balances() and told.steps == 4
    assert not (EXAMPLES / folder / "runs").exists()


@pytest.mark.explore
def test_a_verifier_of_ones_own_teaches_in_half_a_minute(tmp_path: Path) -> None:
    words = ["train", "run.toml", f"--set=run.dir={tmp_path / 'run'}"]
    done = asyncrl("own_verifier", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    told = summary.read(tmp_path / "run" / SUMMARY)
    lines = (tmp_path / "run" / METRICS).read_text().splitlines()
    points = [json.loads(line) for line in lines]
    rewards = [point["reward"] for point in points if point["kind"] == "step"]
    assert told.balances() and told.accuracy.end is not None and told.accuracy.end >= 0.95
    assert mean(rewards[-5:]) > mean(rewards[:5]) + 0.4
