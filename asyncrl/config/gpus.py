"""The GPUs of this machine, by who has them. Invariant: nobody shares one.

Each rank of the trainer has one, from the first on. Then each server that a rollout actor starts
has as many as it has ranks. With the backend `nccl` a rollout actor has one of its own, from which
it sends weights to its server: NCCL refuses two ranks on one GPU. Numbers count those that this
process may use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.config.schema import Config, ServersConfig
from asyncrl.config.servers import servers_of


class Gpus(NamedTuple):
    """Numbers of GPUs: that of each of the trainer's ranks; those of each rollout actor's server;
    those that rollout actors send from. Empty where they use none.

    Example: a trainer on CUDA and two servers of two ranks have 0, (1, 2) and (3, 4).
    """

    trainer: tuple[int, ...]
    servers: tuple[tuple[int, ...], ...]
    senders: tuple[int, ...]

    @property
    def needed(self) -> int:
        """The number of GPUs that the run needs on this machine."""
        return len(self.trainer) + sum(map(len, self.servers)) + len(self.senders)

    def __str__(self) -> str:
        parts = [f"trainer {', '.join(map(str, self.trainer))}"] if self.trainer else []
        for index, numbers in enumerate(self.servers):
            parts.append(f"server-{index} {', '.join(map(str, numbers))}")
        for index, number in enumerate(self.senders):
            parts.append(f"rollout-{index} {number}")
        return "; ".join(parts)


def gpus_of(config: Config) -> Gpus:
    """The GPUs of a run's processes. Those of servers that somebody else runs are not here."""
    chosen, actors = servers_of(config), config.rollout.actors
    settings = ServersConfig() if chosen is None else chosen.settings
    on_gpus = bool(settings.launch) and settings.device == "cuda"
    sends = (
        chosen is not None
        and chosen.by_broadcast
        and settings.backend == "nccl"
        and config.publication.path == "staged"
    )
    trainer = tuple(range(config.train.ranks or 1)) if config.train.device == "cuda" else ()
    start, ranks = len(trainer), settings.tensor_parallel if on_gpus else 0
    servers = tuple(
        tuple(range(start + index * ranks, start + (index + 1) * ranks)) for index in range(actors)
    )
    start += actors * ranks
    senders = tuple(range(start, start + actors)) if sends else ()
    return Gpus(trainer, servers if ranks else (), senders)


def visible(numbers: Sequence[int], allowed: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES for a process that has these GPUs of the `allowed` ones,
    the value of it here; None: all.

    >>> visible([1, 2], None), visible([1], "4,7,GPU-8")
    ('1,2', '7')
    """
    names = None if allowed is None else [name.strip() for name in allowed.split(",")]
    return ",".join(str(number) if names is None else names[number] for number in numbers)
