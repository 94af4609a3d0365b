"""The places of a tree divided over ranks, each of which computes its own. Invariant: every place
is one rank's, and all ranks have as many.

A place attends to what comes before it, so that of one long text the last part takes longest. Each
rank has two of twice as many pieces as there are ranks: one of the first half, and its mirror image
of the second. Of one text all ranks have as many pairs of a query and a key then.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Divided(NamedTuple):
    """A rank's `own` places, ascending, int64; and the `order` of all, with those that fill up the
    ranks: int64 [places], where each is among the ranks' own, one rank's after another's."""

    own: Tensor
    order: Tensor


def divided_places(places: int, index: int, ranks: int) -> Divided:
    """The places of rank `index`, of so many with those that fill up the ranks.

    >>> for index in (0, 1):
    ...     divided_places(7, index, 2).own.tolist()
    [0, 1, 6, 7]
    [2, 3, 4, 5]
    >>> divided_places(7, 0, 2).order.tolist()
    [0, 1, 4, 5, 6, 7, 2, 3]
    """
    pieces = torch.arange(places + -places % (2 * ranks)).chunk(2 * ranks)
    every = [torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]]) for rank in range(ranks)]
    return Divided(every[index], torch.argsort(torch.cat(every)))
