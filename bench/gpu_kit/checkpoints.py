"""A checkpoint from the device: the seconds that the copy stops the trainer, those of the writing,
and what comes back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.config.schema import StalenessConfig
from asyncrl.training.checkpoint_io import StagedCheckpoint, restore, take, write
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.staging import Staging

from .check import Number, Place
from .shapes import MIDDLE, TINY, again, build, settings, work


def checkpoint(place: Place) -> list[Number]:
    """Save after a step, train on while it is written, restore into another learner, and compare
    all of the state at the copy bit by bit."""
    shape, response = (TINY, 24) if place.small else (MIDDLE, 512)
    learner = _learner(build(shape, torch.bfloat16, place.device), place)
    given = work(learner.model, 8, response)
    learner.accumulate(given.batch, given.buffers)
    learner.step()
    staging = Staging()
    first, _ = _taken(learner, staging)
    stopped, staged = _taken(learner, staging)
    before = _state(learner)
    start = time.perf_counter()
    learner.accumulate(*again(given, learner.version))
    learner.step()
    step = time.perf_counter() - start
    start = time.perf_counter()
    path = write(place.folder, staged, place.folder)
    written = time.perf_counter() - start
    size = sum(file.stat().st_size for file in path.iterdir())
    bare = _bare(place.folder / "bare", size)
    start = time.perf_counter()
    other = _learner(load_model(path, torch.bfloat16).to(place.device), place)
    restore(path, other)
    restored = time.perf_counter() - start
    after = _state(other)
    same = before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )
    return [
        Number("written", size / 1e6, "MB"),
        Number("first copy, trainer stopped", first, "s"),
        Number("copy, trainer stopped", stopped, "s"),
        Number("copy, of a step", stopped / step),
        Number("write", written, "s"),
        # of a small one the digests' and files' own time is all there is
        Number("of a bare write's speed", bare / written, least=None if place.small else 0.3),
        Number("restore", restored, "s"),
        Number("state equal", float(same), least=1.0),
        Number("tensors", float(len(before)), least=1.0),
    ]


def _taken(learner: Learner, staging: Staging) -> tuple[float, StagedCheckpoint]:
    """The seconds that a copy takes, after all that was begun on the device, and the copy."""
    staging.end()
    start = time.perf_counter()
    staged = take(learner, 0, staging)
    assert staged is not None
    return time.perf_counter() - start, staged


def _learner(model: object, place: Place) -> Learner:
    return Learner(
        model,  # type: ignore[arg-type]
        settings(place.device),
        StalenessConfig(),
        temperature=1.0,
    )


def _state(learner: Learner) -> dict[str, Tensor]:
    """Weights, masters and moments, on the host."""
    found = {f"weight/{name}": each for name, each in learner.model.named_parameters()}
    for name, master in learner.master_weights.named():
        found[f"master/{name}"] = master
        for key, value in learner.optimizer.state[master].items():
            found[f"{key}/{name}"] = value
    return {name: each.detach().to("cpu", copy=True) for name, each in found.items()}


def _bare(path: Path, size: int) -> float:
    """Seconds to write so many bytes and bring them to the disk."""
    piece = os.urandom(min(size, 2**24))
    start = time.perf_counter()
    with path.open("wb") as file:
        left = size
        while left:
            left -= file.write(piece[:left])
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds
