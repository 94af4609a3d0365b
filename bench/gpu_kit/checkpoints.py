"""A checkpoint from the device: the seconds that the trainer is blocked, and what comes back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.config.schema import StalenessConfig
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model

from .check import Number, Place
from .shapes import MIDDLE, TINY, build, settings, work


def checkpoint(place: Place) -> list[Number]:
    """Save after a step, restore into another learner, and compare all of its state bit by bit."""
    shape, response = (TINY, 24) if place.small else (MIDDLE, 512)
    learner = _learner(build(shape, torch.bfloat16, place.device), place)
    given = work(learner.model, 8, response)
    learner.accumulate(given.batch, given.buffers)
    learner.step()
    start = time.perf_counter()
    path = save(place.folder, learner, 0, place.folder)
    saved = time.perf_counter() - start
    size = sum(file.stat().st_size for file in path.iterdir())
    bare = _bare(place.folder / "bare", size)
    start = time.perf_counter()
    other = _learner(load_model(path, torch.bfloat16).to(place.device), place)
    restore(path, other)
    restored = time.perf_counter() - start
    before, after = _state(learner), _state(other)
    same = before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )
    return [
        Number("written", size / 1e6, "MB"),
        Number("save, trainer blocked", saved, "s"),
        # of a small one the digests' and files' own time is all there is
        Number("of a bare write's speed", bare / saved, least=None if place.small else 0.3),
        Number("restore", restored, "s"),
        Number("state equal", float(same), least=1.0),
        Number("tensors", float(len(before)), least=1.0),
    ]


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
    return {name: each.detach().cpu() for name, each in found.items()}


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
