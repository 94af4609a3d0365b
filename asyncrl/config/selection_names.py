"""Names that the settings of selection may have: its curricula, sizes of groups, filters, choices
of members and opponents, and rules of pruning, forks and replay. Each is a file in
`asyncrl/algorithms/selection/`, or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from asyncrl.algorithms.selection.curriculum import Curriculum
from asyncrl.algorithms.selection.filters import GroupFilter
from asyncrl.algorithms.selection.fork import ForkRule
from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.growth import GrowingSizing
from asyncrl.algorithms.selection.keep import KeepRule
from asyncrl.algorithms.selection.league import LeagueRule
from asyncrl.algorithms.selection.prune import PruneRule
from asyncrl.algorithms.selection.replay import ReplayRule
from asyncrl.config.plugins import Registry, derived_from, in_folder

FOLDER = "asyncrl.algorithms.selection"


def _with(method: str, arguments: str) -> Callable[[Any], str]:
    """Return a check that explains why something is not a class with this method."""

    def wrong(candidate: Any) -> str:
        if not isinstance(candidate, type) or not callable(getattr(candidate, method, None)):
            return f"it must be a class with a method {method}({arguments})"
        return ""

    return wrong


CURRICULA: Registry[type[Curriculum]] = Registry(
    "curriculum", in_folder(FOLDER, Curriculum), _with("next", "history, live")
)
"""Curricula that `task.curriculum` may name."""

SIZINGS: Registry[type[Sizing]] = Registry(
    "sizing", in_folder(FOLDER, Sizing), _with("size", "history, prompt_index")
)
"""Rules for the size of groups that `rollout.sizing` may name."""


def grows(rule: Sizing) -> TypeGuard[GrowingSizing]:
    """Return True if a sizing is asked again when a group's members are judged."""
    return callable(getattr(rule, "grow", None))


FILTERS: Registry[type[GroupFilter]] = Registry(
    "filter", in_folder(FOLDER, GroupFilter), derived_from(GroupFilter)
)
"""Filters of finished groups that `rollout.filter` may name."""

KEEPS: Registry[type[KeepRule]] = Registry(
    "keep rule", in_folder(FOLDER, KeepRule), _with("choose", "members, count, draw")
)
"""Rules that `train.keep` may name: which members of a finished group are trained."""

LEAGUES: Registry[type[LeagueRule]] = Registry(
    "league rule", in_folder(FOLDER, LeagueRule), _with("weights", "past")
)
"""Rules that a frozen policy's `draw` may name: which past version plays."""

REPLAYS: Registry[type[ReplayRule]] = Registry(
    "replay", in_folder(FOLDER, ReplayRule), _with("choose", "candidates, count")
)
"""Rules that `train.replay` may name: which groups are trained once more."""

FORKS: Registry[type[ForkRule]] = Registry(
    "fork rule", in_folder(FOLDER, ForkRule), _with("forks", "point")
)
"""Rules that `rollout.fork` may name: where a rollout forks while it is generated."""

PRUNES: Registry[type[PruneRule]] = Registry(
    "prune rule", in_folder(FOLDER, PruneRule), _with("ends", "group")
)
"""Rules that `rollout.prune` may name: which rollouts end before their response is complete."""
