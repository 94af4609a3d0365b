"""The way from a run to a forecast, by the commands of docs/sizing.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_process
from train_support import command, train

CALIBRATED = 24


def asyncrl(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return warm_process.run(
        [sys.executable, "-m", "asyncrl.cli", *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.explore
def test_models_are_fitted_from_a_run_and_say_what_it_would_come_to(
    model: Path, tmp_path: Path
) -> None:
    run, models = tmp_path / "run", tmp_path / "models.toml"
    done = train(command(model, run, train__steps=CALIBRATED))
    assert done.returncode == 0, done.stderr
    done = asyncrl("calibrate", run, "-o", models)
    assert done.returncode == 0 and models.read_text().startswith("# Fitted by"), done.stderr

    toml, hours = run / "run.toml", "0.005"
    size = ["--models", models, "--engines", 4, "--trainers", 2, "--hours", hours]
    done = asyncrl("simulate", toml, *size, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads(asyncrl("simulate", toml, *size, "--json").stdout)
    shown = asyncrl("simulate", toml, *size, "--price", "2")
    assert shown.returncode == 0 and "4 engines, 2 trainers" in shown.stdout
    for row in ("steps", "idle", "lag, of tokens", "never trained", "left out"):
        assert any(line.startswith(row) for line in shown.stdout.splitlines()), row


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--models", "nowhere.toml"], "cannot be read"),
        (["--engines", "0"], "--engines"),
        (["--trainers", "0"], "--trainers"),
        (["--hours", "nan"], "--hours"),
        (["--hours", "-1"], "--hours"),
        (["--price", "-1"], "--price"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, more: list[str], said: str) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text("")
    done = asyncrl("simulate", toml, *more)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_models_are_fitted_from_runs_alone(tmp_path: Path) -> None:
    done = asyncrl("calibrate", tmp_path)
    assert done.returncode == 2 and "run.toml" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.explore
@pytest.mark.parametrize(
    "text", ["[engine]\ndecode_ms = [[128.0, -1.0]]\n", "[engine]\nspeed = 3\n", "[engine", "\0"]
)
def test_models_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text("")
    (tmp_path / "models.toml").write_text(text)
    done = asyncrl("simulate", tmp_path / "run.toml")
    assert done.returncode == 2 and "models.toml" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
