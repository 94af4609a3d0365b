"""The memory that is predicted of a trainer, against what a step takes, and what it says of models
that one GPU cannot hold."""

from __future__ import annotations

from pathlib import Path

import torch
from msgspec.structs import replace

from asyncrl.config import Config, load
from asyncrl.training.forward import make_logits_in_chunks, may_share
from asyncrl.training.memory import peak_of, predict, worst_batches
from asyncrl.training.models import empty_model
from asyncrl.training.recomputation import recompute

from .check import Number, Place
from .shapes import QWEN3, TINY, Shape

RANKS = 8
LONGEST = 8192


def bounds(place: Place) -> list[Number]:
    """Ratio of the prediction to what a pass and a step took, and the bounds of a rank of 8."""
    shape, longest = (TINY, 64) if place.small else (QWEN3["0.6B"], LONGEST)
    config = _config(shape, longest, place.folder / "measured", place.device)
    predicted = predict(config).total
    measured = _measured(config, place.device)
    found = [
        Number("predicted", predicted / 2**30, "GiB"),
        Number("measured", measured / 2**30, "GiB"),
        Number("predicted over measured", predicted / measured, least=0.87, most=1.15),
    ]
    others = {"tiny": TINY} if place.small else {name: QWEN3[name] for name in ("8B", "32B")}
    for name, other in others.items():
        config = _config(other, longest, place.folder / name, place.device)
        of_rank = predict(replace(config, train=replace(config.train, ranks=RANKS))).total / 2**30
        found.append(Number(f"{name}, a rank of {RANKS}", of_rank, "GiB, bound"))
    return found


def _config(shape: Shape, longest: int, folder: Path, device: str) -> Config:
    shape.config().save_pretrained(folder)
    sets = {
        "model.path": folder,
        "model.dtype": "bfloat16",
        "engine.context_tokens": longest,
        "rollout.max_new_tokens": longest * 3 // 4,
        "train.micro_tokens": longest,
        "train.recompute_activations": "true",
        "train.device": device,
    }
    return load(None, [f"{key}={value}" for key, value in sets.items()], {})


def _measured(config: Config, device: str) -> int:
    """Most bytes of tensors: as the allocator counts them on a GPU, else as the prediction does."""
    model = empty_model(config.model.path, torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    model = model.to(device)
    recompute(model)
    make_logits_in_chunks(model)
    batches = worst_batches(config, model.config.vocab_size, shared=may_share(model))
    if device == "cpu":
        return peak_of(model, batches, config).total
    torch.cuda.reset_peak_memory_stats()
    peak_of(model, batches, config)
    return torch.cuda.max_memory_allocated()
