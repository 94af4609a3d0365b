"""The share of the machine's cores that each process gets, derived from settings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class CoreShares(msgspec.Struct, frozen=True):
    """The cores of each trainer and of each rollout actor, and those of every other process, which
    has one thread."""

    trainers: list[tuple[int, ...]]
    rollouts: list[tuple[int, ...]]
    others: tuple[int, ...]


def divide_cores(
    available: Sequence[int], trainers: int, rollouts: int, trainer_cores: int, lent: int = 0
) -> CoreShares:
    """Divide `available` (at least one) between `trainers` trainer and `rollouts` rollout
    processes. The last `lent` of these, fewer than there are, share the trainers' cores. Raises
    ValueError if there is no core.

    The trainers get `trainer_cores` together (0: half), as long as that leaves each process a core
    of its own. With fewer cores than processes the two sides still share none, and with one core
    all share it. The others may use every core.

    Example: four cores, one trainer with 3 cores, and one rollout actor: (0, 1, 2) and (3,). A
    second one with the trainer's lent cores has (0, 1, 2).
    """
    if lent:
        own = divide_cores(available, trainers, rollouts - lent, trainer_cores)
        theirs = [own.trainers[number % trainers] for number in range(lent)]
        return CoreShares(own.trainers, own.rollouts + theirs, own.others)
    cores = list(dict.fromkeys(available))
    count = len(cores)
    if not count:
        raise ValueError(
            "there are no cores to divide; check machine.cores and the affinity of this process"
        )
    if count == 1 or not trainers or not rollouts:
        return CoreShares(_deal(cores, trainers), _deal(cores, rollouts), tuple(cores))
    least, most = (trainers, count - rollouts) if count >= trainers + rollouts else (1, count - 1)
    split = min(max(trainer_cores or count // 2, least), most)
    return CoreShares(_deal(cores[:split], trainers), _deal(cores[split:], rollouts), tuple(cores))


def _deal(cores: Sequence[int], processes: int) -> list[tuple[int, ...]]:
    """Divide `cores` into near-equal consecutive parts. If there are too few, each process gets
    one, in turn."""
    if processes >= len(cores):
        return [(cores[index % len(cores)],) for index in range(processes)]
    return [
        tuple(cores[len(cores) * index // processes : len(cores) * (index + 1) // processes])
        for index in range(processes)
    ]
