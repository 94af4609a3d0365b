"""How many groups may start, and which may be trained. Invariant: no more than `max_live` groups
are ever live, so lag has a bound.

No torch here: the coordinator imports this. The proof is docs/lag.md.
"""

from __future__ import annotations

import math


def max_live(depth: int, batch_groups: int, overprovision: float = 1.0) -> int:
    """Groups that may be live at one time: `depth` (>= 0) steps that generation runs ahead, and
    what the step being filled is given: `overprovision` (>= 1) groups for each of the
    `batch_groups` (>= 1) that it needs (APRIL, arXiv 2509.18521)."""
    return depth * batch_groups + math.ceil(overprovision * batch_groups)


def may_admit(live: float, most: int) -> int:
    """Number of new groups that may start now, at least 0, where `most` (see `max_live`) may be
    live.

    `live` counts the groups leased, recycled, waiting for verdicts, ready, and taken for a step
    whose version is not published yet; where rollouts are trained one by one it counts those, in
    groups' worth.

    Why lag is bounded: let a group start while version v is served. Every token of it is then
    sampled under v or later. The live groups are those of the steps v, v + 1, …, which are not
    published, and with this one they are at most L = `most`. Trained in order of admission,
    batch_groups to a step, they all fit in the steps v to v + ceil(L / batch_groups) - 1; groups
    that are dropped only move the others forward. Where m groups admitted later may overtake it, it
    is trained by the step v + ceil((L + m) / batch_groups) - 1. Whatever the order, `max_lag` is
    checked again at assembly. The count is of what is alive now and not of what ever was, so
    filters, crashes and resumes leave the bound as it is.
    """
    return max(0, math.floor(most - live))


def worst_lag(depth: int, batch_groups: int, overprovision: float = 1.0, window: int = 1) -> int:
    """Largest lag, in versions, that any token can have where only groups less than `window` (>= 1)
    admissions after the oldest one that is not trained may be trained: at most window - 1 later
    ones ever overtake a group. `depth + ceil((window - 1) / batch_groups)` without
    over-provisioning; 0 whatever the window where a step needs every live group."""
    most = max_live(depth, batch_groups, overprovision)
    return 0 if most == batch_groups else math.ceil((most + window - 1) / batch_groups) - 1
