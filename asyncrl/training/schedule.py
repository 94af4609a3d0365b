"""Learning rate as a pure function of the step. Invariant: it has no state to save."""

from __future__ import annotations

import math

from asyncrl.config.schema import TrainConfig


def learning_rate(train: TrainConfig, step: int) -> float:
    """Learning rate of the step that makes version `step + 1` (`step` >= 0): linear warm-up that
    reaches `lr` after `lr_warmup_steps` steps, then `lr_schedule`, where linear and cosine would
    reach 0 at step `train.steps`, the last one that the run can make."""
    if step < train.lr_warmup_steps:
        return train.lr * (step + 1) / (train.lr_warmup_steps + 1)
    if train.lr_schedule == "constant":
        return train.lr
    done = min(1.0, (step - train.lr_warmup_steps) / max(1, train.steps - train.lr_warmup_steps))
    return train.lr * (
        1 - done if train.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    )
