"""Names that the settings of the loss may have: its corrections, objectives, advantages,
credits, weights of groups and minibatches. Each is a class in the folder of its kind, or a user's
own."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.advantages.credit import Credit
from asyncrl.algorithms.advantages.group_weight import GroupWeight
from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.objectives import Objective
from asyncrl.config.plugins import Registry, derived_from, in_folder
from asyncrl.staleness.corrections import Correction


def _correction(candidate: Any) -> str:
    problem = derived_from(Correction)(candidate)
    if not problem and candidate.apply is Correction.apply:
        return "it must define apply"
    return problem


CORRECTIONS: Registry[type[Correction]] = Registry(
    "correction", in_folder("asyncrl.staleness.corrections", Correction), _correction
)
"""Kinds that the tables of `staleness.correction` may have."""

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective", in_folder("asyncrl.algorithms.objectives", Objective), derived_from(Objective)
)
"""Objectives that `train.objective` may name."""

ADVANTAGES: Registry[type[Advantage]] = Registry(
    "advantage", in_folder("asyncrl.algorithms.advantages", Advantage), derived_from(Advantage)
)
"""Advantages that `train.advantage` may name."""

CREDITS: Registry[type[Credit]] = Registry(
    "credit", in_folder("asyncrl.algorithms.advantages", Credit), derived_from(Credit)
)
"""Credits that `train.credit` may name."""

GROUP_WEIGHTS: Registry[type[GroupWeight]] = Registry(
    "group weight",
    in_folder("asyncrl.algorithms.advantages", GroupWeight),
    derived_from(GroupWeight),
)
"""Rules that `train.group_weight` may name."""

MINIBATCH_RULES: Registry[type[MinibatchRule]] = Registry(
    "minibatch rule",
    in_folder("asyncrl.algorithms.minibatches", MinibatchRule),
    derived_from(MinibatchRule),
)
"""Rules that `train.minibatch_by` may name."""
