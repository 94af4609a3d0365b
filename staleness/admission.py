"""How many groups may start. Invariant: no more than `(depth + 1) * batch_groups` groups are ever live.

No torch here: the coordinator imports this.
"""

from __future__ import annotations


def may_admit(groups_live: int, depth: int, batch_groups: int) -> int:
    """Number of new groups that may start now, at least 0.

    `groups_live` counts the groups leased, recycled, waiting for verdicts, ready, and taken for a step whose version is not published
    yet; `depth` (>= 0) is how many steps generation may run ahead of training; a step trains `batch_groups` (>= 1) groups.

    Why lag is bounded: let a group start while version v is served. Every token of it is then sampled under v or later. The live
    groups are those of the steps v, v + 1, …, which are not published, and with this one they are at most (depth + 1) * batch_groups.
    Trained in order of admission, batch_groups to a step, they all fit in the steps v to v + depth; groups that are dropped only move
    the others forward. So its lag is at most (v + depth) - v = depth. Where m groups admitted later may overtake it, it is trained at
    most ceil(m / batch_groups) steps later: lag <= depth + ceil(m / batch_groups). Whatever the order, `max_lag` is checked again at
    assembly. The count is of what is alive now and not of what ever was, so filters, crashes and resumes leave the bound as it is.
    """
    return max(0, (depth + 1) * batch_groups - groups_live)
