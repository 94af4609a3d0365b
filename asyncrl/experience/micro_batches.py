"""Micro-batches from finished groups. Invariant: each item appears once, in the given order, and
only an item that is alone in its micro-batch exceeds the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def micro_batches(
    groups: Iterable[Sequence[Item]], tokens: Callable[[Item], int], budget: int
) -> list[list[Item]]:
    """Pack whole groups, in order, into micro-batches of at most `budget` tokens. `tokens` counts
    those of an item, its prompt included.

    A group over the budget is split between its items; an item over the budget is a micro-batch of
    its own. Only the last micro-batch is ever open (next-fit), so what was packed does not depend
    on what finishes later. Raises ValueError for a budget below 1.

    Example: three groups, whose items are numbers of tokens, and a budget of 8.

    >>> micro_batches([[3, 3], [2, 2], [9, 1]], lambda item: item, 8)
    [[3, 3], [2, 2], [9], [1]]
    """
    if budget < 1:
        raise ValueError(f"a micro-batch needs a budget of at least 1 token, not {budget}")
    batches: list[list[Item]] = []
    room = 0
    for group in groups:
        whole = sum(map(tokens, group)) <= budget
        for piece in [group] if whole else [[item] for item in group]:
            size = sum(map(tokens, piece))
            if size > room or not batches:
                batches.append([])
                room = budget
            batches[-1].extend(piece)
            room -= size
    return [batch for batch in batches if batch]
