"""Names that the settings of the loss may have: its corrections, objectives and advantages."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms import advantages, objectives
from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.objectives import Objective
from asyncrl.config.plugins import Registry, derived_from
from asyncrl.staleness import corrections
from asyncrl.staleness.corrections import Correction


def _correction(candidate: Any) -> str:
    problem = derived_from(Correction)(candidate)
    if not problem and candidate.apply is Correction.apply:
        return "it must define apply"
    return problem


CORRECTIONS: Registry[type[Correction]] = Registry("correction", corrections.BUILT_IN, _correction)
"""Kinds that the tables of `staleness.correction` may have."""

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective", objectives.BUILT_IN, derived_from(Objective)
)
"""Objectives that `train.objective` may name."""

ADVANTAGES: Registry[type[Advantage]] = Registry(
    "advantage", advantages.BUILT_IN, derived_from(Advantage)
)
"""Advantages that `train.advantage` may name."""
