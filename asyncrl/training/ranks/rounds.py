"""The rounds in which several ranks work through packed batches. Invariant: all ranks have as many
passes, whatever there is to do: a pass of one is a collective of all."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(costs: Sequence[float], ranks: int) -> list[list[int | None]]:
    """Divide work of these costs into rounds, and say for each rank which piece it has in each of
    them; None: nothing. A round takes as long as its dearest piece, so that pieces of like cost
    belong together: no other division takes less in all.

    Five pieces and two ranks take 9 + 4 + 1; one after the other they would take 20:

    >>> rounds([1, 9, 4, 4, 2], ranks=2)
    [[1, 2], [3, 4], [0, None]]
    """
    dearest_first = sorted(range(len(costs)), key=lambda piece: -costs[piece])
    found: list[list[int | None]] = []
    for start in range(0, len(costs), ranks):
        together: list[int | None] = [*dearest_first[start : start + ranks]]
        found.append(together + [None] * (ranks - len(together)))
    return found
