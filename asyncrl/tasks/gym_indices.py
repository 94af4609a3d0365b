"""The indices from which a reasoning-gym data set makes its questions. Invariant: another number of
held-out prompts leaves the training prompts as they are, up to `ROOM` of them and from there on
within each doubling.

A question belongs to a split by its text (`gym.py`), so the search for one walks over indices. How
many there are decides where a walk comes to, for training prompts too.
"""

from __future__ import annotations

from asyncrl.config.schema import TaskConfig

LEAST = 4096
"""Indices at least, so that small splits still find questions of their own."""
ROOM = 256
"""Indices beyond those of training prompts, at least."""


def indices_of(config: TaskConfig) -> int:
    """The number of indices.

    >>> [indices_of(TaskConfig(train_size=20_000, eval_size=held)) for held in (0, 128, 256, 257)]
    [20256, 20256, 20256, 20512]
    """
    room = ROOM
    while room < config.eval_size:
        room *= 2
    return max(LEAST, config.train_size + room)
