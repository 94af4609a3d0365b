"""Decisions of the coordinator's parts. A part that needs something done outside of itself returns
a decision, which `carry_out.py` carries out; so no part calls back into the loop."""

from __future__ import annotations

import msgspec

from asyncrl.explain.evaluation_figures import Figures
from asyncrl.messages import Healable


class ReplaceActor(msgspec.Struct, frozen=True):
    """End the actor of this name, and start another one."""

    name: str
    reason: str


class EndRun(msgspec.Struct, frozen=True):
    """The run has failed. With `heals`, another life of it may begin."""

    reason: str
    heals: Healable | None = None


class VersionServed(msgspec.Struct, frozen=True):
    """Every engine serves `version`. With `evaluate` it is pinned, and its evaluation is due."""

    version: int
    evaluate: bool


class LoanEnded(msgspec.Struct, frozen=True):
    """The trainer's devices are taken back from the lent engines, after so many seconds."""

    seconds: float


class LeaseAnswers(msgspec.Struct, frozen=True):
    """Lease the held-out prompts that wait, pinned to `version`; None: to any."""

    version: int | None


class EvaluationDropped(msgspec.Struct, frozen=True):
    """No engine still has the version that was evaluated."""


class Evaluated(msgspec.Struct, frozen=True):
    """Every held-out answer of `version` is judged: its greedy accuracy, from 0 to 1 (None if no
    answer has a verdict), and the figures of sampled answers and single tasks. `asked` of the
    `prompts` held-out prompts were answered."""

    version: int
    accuracy: float | None
    figures: Figures
    asked: int
    prompts: int


Decision = (
    ReplaceActor | EndRun | VersionServed | LoanEnded | LeaseAnswers | EvaluationDropped | Evaluated
)
"""An action that is due outside the part that decides it."""
