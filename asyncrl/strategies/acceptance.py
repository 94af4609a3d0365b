"""The zero-variance filter as a part of admission. Invariant: where every group has a signal
nothing changes, and what is admitted for the groups that will be filtered is bounded.

A filter takes groups away after they were generated, so as many as a step needs have to be started
for those that will be taken away, too. How many follows from the share that passed lately. Whether
one did is in `History.recent`, whatever became of it afterwards.
"""

from __future__ import annotations

import math

from asyncrl.config.flow import FACTOR
from asyncrl.experience.history import RECENT

LATELY = 64
"""Finished groups that the share is measured over."""

PRIOR = 4
"""Groups with a signal that are added to those: the share is 1 before any has finished, and moves
slowly at first."""


def accept_rate(recent: bytes | bytearray) -> float:
    """The share of groups that pass, in (0, 1]: of the last `LATELY` in `recent`, shrunk towards 1
    by `PRIOR` groups."""
    lately = recent[-LATELY:]
    return (lately.count(1) + PRIOR) / (len(lately) + PRIOR)


def wanted(cap: int, passed: int, rate: float, most: int | None = None) -> int:
    """How many groups may be live, where `cap` might be without the filter, and `passed` of the
    live ones have passed it.

    Of the others `rate` (0, 1] will pass: `passed + (cap - passed) / rate`, rounded up, its second
    term at most `FACTOR` times what it is without a filter. Never more than `most`, so that lag
    stays in its bound even if all pass; and never less than `cap`.
    """
    missing = max(cap - passed, 0)
    started = cap - missing + min(math.ceil(missing / rate), FACTOR * missing)
    return started if most is None else max(cap, min(started, most))


def below_floor(recent: bytes | bytearray, floor: float, patience: int) -> str:
    """Why the run is not to go on: of the last `patience` (at least 1) groups in `recent` a share
    smaller than `floor` [0, 1) passed, or none did. Empty where that is not so, and before so many
    have finished. A `patience` over `RECENT` counts as that."""
    patience = min(patience, RECENT)
    lately = recent[-patience:]
    if len(lately) < patience:
        return ""
    passed = lately.count(1)
    if passed and passed >= floor * patience:
        return ""
    return (
        f"of the last {patience} groups {passed or 'none'} had rewards that differ, and "
        f"rollout.accept_floor asks for {floor:.2%}: "
        "nearly all prompts are solved by every rollout, or by none"
    )
