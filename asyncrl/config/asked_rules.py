"""Questions to the rules that a configuration names. Invariant: an answer that no run may use is a
StrategyError, of one sentence with the rule's name; so is whatever the rule raises."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from asyncrl.algorithms.selection.curriculum import Curriculum, NextPrompt
from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.keep import KeepRule, number_kept, positions
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.strategies import StrategyError, blamed


def next_prompt(
    name: str, rule: Curriculum, history: History, live: Container[int], prompts: int
) -> NextPrompt | None:
    """The prompt that a curriculum chooses next, of so many; None where its epochs are over."""
    with blamed("curriculum", name):
        chosen = rule.next(history, live)
    if chosen is None:
        return None
    if (
        not isinstance(chosen, NextPrompt)
        or type(chosen.prompt_index) is not int
        or type(chosen.cursor) is not int
        or not 0 <= chosen.prompt_index < prompts
        or chosen.cursor < 0
    ):
        raise StrategyError(
            f"the curriculum {name!r} chooses {chosen!r}; return None, or a NextPrompt with one of "
            f"the {prompts} prompts (whole numbers from 0) and the cursor of the next, and resume "
            "the run."
        )
    return chosen


def first_size(name: str, rule: Sizing, history: History, prompt_index: int, most: int) -> int:
    """The rollouts with which a sizing lets the next group of a prompt start."""
    with blamed("sizing", name):
        size = rule.size(history, prompt_index)
    if not _within(size, 1, most):
        raise StrategyError(
            f"the sizing {name!r} gives prompt {prompt_index} a group of {size!r}; return a whole "
            f"number from 1 to {most} (rollout.group_size_max), and resume the run."
        )
    return size


def grown_size(name: str, rule: GrowingSizing, group: GrowingGroup, most: int) -> int:
    """The rollouts that a sizing lets a group have, which has its present ones at least."""
    with blamed("sizing", name):
        size = rule.grow(group)
    if not _within(size, group.size, most):
        raise StrategyError(
            f"the sizing {name!r} lets the group of {group.size} of prompt {group.prompt.index} "
            f"grow to {size!r}; return a whole number from {group.size}, which is no growth, to "
            f"{most} (rollout.group_size_max), and resume the run."
        )
    return size


def kept_places(
    name: str, rule: KeepRule, members: Sequence[JudgedMember], wanted: int, draw: random.Random
) -> list[int]:
    """The positions of the members that a keep rule has trained, in ascending order. `wanted` is
    `train.keep_members`."""
    with blamed("keep rule", name):
        chosen = [*rule.choose(members, number_kept(len(members), wanted), draw)]
    try:
        return positions(chosen, len(members))
    except ValueError as error:
        raise StrategyError(f"the keep rule {name!r} {error}, and resume the run.") from error


def _within(size: object, least: int, most: int) -> bool:
    return type(size) is int and least <= size <= most
