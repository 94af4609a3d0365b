"""The rank that others wait for, in a step, and where an order is not carried out in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from asyncrl.messages import LastRank, RankStand

SILENT_S = 3.0
"""Seconds after which a rank that is at an order, of which it tells each second, is silent."""

SHOWN = 64
"""Ranks that have a metric of their own."""


class Spent(NamedTuple):
    """Seconds of a rank over a time: it waited in collectives, and computed what was
    given to it, in the units of `packing.cost`."""

    waited_s: float = 0.0
    computed_s: float = 0.0
    work: float = 0.0
    machine: str = ""

    @property
    def waited(self) -> float:
        """The share of the time that it waited, 0 to 1."""
        return self.waited_s / max(self.waited_s + self.computed_s, 1e-9)

    def and_then(self, more: Spent) -> Spent:
        """Both times."""
        return Spent(
            self.waited_s + more.waited_s,
            self.computed_s + more.computed_s,
            self.work + more.work,
            more.machine or self.machine,
        )


def last_rank(spent: Sequence[Spent]) -> LastRank:
    """The one of at least two ranks that waited least, and so came last. A rank comes last, too,
    if it was given more than others: `times` compares what it took for the same work.

    Example: of two ranks with as much to do, one computed for 9 s, while the other waited for 6 s
    of these.

    >>> last_rank([Spent(6.0, 3.0, 100.0), Spent(0.0, 9.0, 100.0, "b")])
    LastRank(rank=1, machine='b', waited=0.667, times=3.0)
    """
    last = min(range(len(spent)), key=lambda rank: spent[rank].waited)
    others = [each for rank, each in enumerate(spent) if rank != last]
    waited = sum(each.waited for each in others) / len(others) - spent[last].waited
    own = spent[last]
    paces = [each.computed_s / each.work for each in others if each.work]
    known = own.work and paces and median(paces)
    times = own.computed_s / own.work / median(paces) if known else 1.0
    return LastRank(last, own.machine, round(waited, 3), round(times, 2))


def rank_figures(spent: Sequence[Spent]) -> dict[str, float]:
    """Metrics of a step: the share of it that each rank waited for others, of the first SHOWN.

    >>> rank_figures([Spent(6.0, 3.0), Spent(0.0, 9.0)])
    {'rank_0_waited': 0.667, 'rank_1_waited': 0.0}
    """
    return {f"rank_{rank}_waited": round(own.waited, 3) for rank, own in enumerate(spent[:SHOWN])}


class Heard(NamedTuple):
    """The newest word of a rank that has not carried out an order, `silent_s` seconds ago."""

    stand: RankStand
    silent_s: float


def held_up_by(heard: Mapping[int, Heard]) -> tuple[int, str]:
    """The rank for which the others wait, of those that have not carried out an order, and what is
    known of it: a stopped process says nothing, and a thread that hangs has begun fewer
    collectives than the others, or is in none.

    >>> early, late = RankStand(entered=7), RankStand(entered=9, inside=True)
    >>> held_up_by({0: Heard(late, 0.0), 1: Heard(late, 1.0), 2: Heard(early, 0.5)})
    (2, 'it has begun 7 collectives, and others 9')
    >>> held_up_by({1: Heard(late, 0.0), 2: Heard(late, 9.0), 3: Heard(early, 1.0)})
    (2, 'it has said nothing for 9 s')
    """
    silent = max(heard, key=lambda rank: heard[rank].silent_s)
    if (silent_s := heard[silent].silent_s) > SILENT_S:
        return silent, f"it has said nothing for {silent_s:.0f} s"

    def place(rank: int) -> tuple[int, bool, int]:
        stand = heard[rank].stand
        return stand.entered, stand.inside, -rank

    last = min(heard, key=place)
    most = max(each.stand.entered for each in heard.values())
    if (entered := heard[last].stand.entered) < most:
        return last, f"it has begun {entered} collectives, and others {most}"
    return last, "it computes" if not heard[last].stand.inside else "all wait in one collective"
