"""Runs with images, from a folder of screens to a model: each image is kept once, engine and
trainer agree, and the tower for images is as it was. Two ranks, an average, a reference and scores
under earlier weights are part of one; killed and resumed at lag 0 it makes the same. An agent that
is killed shows the same screens again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from train_support import command, everything, resume, started, steps_done, train, wait_for

from asyncrl.bundled.buttons import write_buttons
from asyncrl.bundled.small_vision import write_vision_model
from asyncrl.experience import events as e
from asyncrl.explain.curve import StepPoint, read
from asyncrl.explain.run_files import RunFiles
from asyncrl.runtime.run_dir import IMAGES, METRICS, MODEL
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import image_hash
from asyncrl.training.models import load_model

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def train_killed(argv: list[str], run: Path, path: str) -> None:
    """Train `run`, kill everything after its first step, and resume it."""
    with started(argv, PYTHONPATH=path) as process:
        wait_for("first step", lambda: steps_done(run) >= 1, every_s=0.01)
        everything(process, run)
    ran = train(resume(run), PYTHONPATH=path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.explore
def test_a_run_learns_from_screens(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")
    write_buttons(tmp_path / "data", rows=6)
    rows = tmp_path / "data" / "rows.jsonl"
    rows.write_text(rows.read_text() * 2)  # each screen is asked about twice
    write_vision_model(tmp_path / "model", seed=3)
    (tmp_path / "parity.py").write_text(
        "def even(answer, row):\n    return float(sum(map(ord, answer)) % 2 == 0)\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    run = tmp_path / "run"
    settings = {
        "task__name": "data",
        "task__path": str(rows),
        "task__chat": True,
        "task__verifier": "parity:even",
        "task__eval_size": 2,
        "train__steps": 2,
        "train__eval_every": 2,
        "rollout__max_new_tokens": 4,
        "engine__context_tokens": 64,
        "train__ranks": 2,
        "train__ema": 0.9,
        "reference__coefficient": 0.01,
        "staleness__proximal": "boundary",
        "publication__bucket_bytes": 65536,
        "staleness__max_lag": 0,
        "staleness__depth": 0,
        "train__checkpoint_every": 1,
    }
    ran = train(command(tmp_path / "model", run, **settings), PYTHONPATH=path)
    assert ran.returncode == 0, ran.stderr
    kept = [path.name for path in (run / IMAGES).iterdir()]
    assert 0 < len(kept) <= 6  # however many rollouts showed them
    assert all(image_hash(KeptImages(run / IMAGES).png(name)) == name for name in kept)
    steps = [point for point in read(run / METRICS) if isinstance(point, StepPoint)]
    assert len(steps) == 2
    assert steps[0].metrics["log_ratio_abs"] < 1e-5
    assert steps[0].metrics["proximal_unknown"] == 0.0
    killed = tmp_path / "killed"
    train_killed(command(tmp_path / "model", killed, **settings), killed, path)
    weights = sorted((run / MODEL).glob("*.safetensors"))
    assert weights and all(
        w.read_bytes() == (killed / MODEL / w.name).read_bytes() for w in weights
    )
    before, after = (
        dict(load_model(path).named_parameters()) for path in (tmp_path / "model", run / MODEL)
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("visual" in name for name in changed)
    own = json.loads((run / MODEL / "preprocessor_config.json").read_text())
    assert own == json.loads((tmp_path / "model" / "preprocessor_config.json").read_text())


AGENT = """
import base64, io, os, signal
from PIL import Image
from asyncrl.agents import MODEL, Shown, newest_images
from asyncrl.agents.shown import user_message

async def odd(client, episode):
    messages, odd = [*episode.messages], 0.0
    data = messages[0]["content"][0]["image_url"]["url"].partition(",")[2]
    screen = Image.open(io.BytesIO(base64.b64decode(data)))
    for turn in range(3):
        answer = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4
        )
        if turn == 1 and episode.attempt == 0 and episode.prompt_index % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        reply = answer.choices[0].message.content
        odd += sum(map(ord, reply)) % 2
        shown = user_message(Shown("And?", [screen.resize((56, 28 + 28 * turn))]))
        messages = newest_images([*messages, {"role": "assistant", "content": reply}, shown], 2)
    return odd / 3
"""


@pytest.mark.explore
def test_an_agent_that_is_killed_shows_the_same_screens_again(tmp_path: Path) -> None:
    """Its second attempt gets the answers of the first one to the same screens, and what it sampled
    is trained by the numbers with which it was sampled."""
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")
    write_buttons(tmp_path / "data", rows=6)
    write_vision_model(tmp_path / "model", seed=3)
    (tmp_path / "odd.py").write_text(AGENT)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    run = tmp_path / "run"
    settings = {
        "agent__run": "odd:odd",
        "task__name": "data",
        "task__path": str(tmp_path / "data" / "rows.jsonl"),
        "task__chat": True,
        "task__eval_size": 1,
        "train__steps": 2,
        "train__eval_every": 2,
        "staleness__depth": 0,
        "staleness__max_lag": 0,
        "rollout__max_new_tokens": 12,
        "engine__context_tokens": 160,
    }
    ran = train(command(tmp_path / "model", run, **settings), PYTHONPATH=path)
    assert ran.returncode == 0, ran.stderr
    steps = [point for point in read(run / METRICS) if isinstance(point, StepPoint)]
    assert len(steps) == 2 and all(step.metrics["log_ratio_abs"] < 1e-5 for step in steps)
    with RunFiles(run).journal() as history:
        events = [event for _, event in history.events(0)]
    calls = {event.call: event for event in events if isinstance(event, e.Called)}
    again = [calls[event.call] for event in events if isinstance(event, e.Reused)]
    assert sum(bool(call.images) for call in again) > 1  # of its first turn, and of its second
    assert any(call.after is not None for call in again)
    kept = {path.name for path in (run / IMAGES).iterdir()}
    assert {image for call in calls.values() for image in call.images} <= kept
    assert len(kept) <= 4 * 6  # a row's own, and three sizes of it
