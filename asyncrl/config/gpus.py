"""The GPUs of each of a run's processes. Invariant: no two share one, except servers that are lent
the trainer's (`rollout.lent_actors`).

Each rank of the trainer here has one, from the first on. Then each server that a rollout actor
starts has as many as it has ranks. With the backend `nccl` a rollout actor has one of its own, from
which it sends weights to its server: NCCL refuses two ranks on one GPU. Numbers count those that
this process may use; an actor on a machine that joins may use its own alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.config.cluster import joined, local_rollouts, ranks_here, room_of
from asyncrl.config.lending import is_lent
from asyncrl.config.schema import Config


class Gpus(NamedTuple):
    """Numbers of GPUs of this machine: that of each of the trainer's ranks; those of each rollout
    actor's server; those that rollout actors send from. Empty where they use none.

    Example: a trainer on CUDA and two servers of two ranks have 0, (1, 2) and (3, 4). A trainer of
    two ranks, a server of two and one that is lent have (0, 1), (2, 3) and (0, 1).
    """

    trainer: tuple[int, ...]
    servers: tuple[tuple[int, ...], ...]
    senders: tuple[int, ...]

    @property
    def needed(self) -> int:
        """The number of GPUs that the run needs on this machine."""
        servers = {number for numbers in self.servers for number in numbers}
        return len(servers.union(self.trainer, self.senders))

    def __str__(self) -> str:
        parts = [f"trainer {', '.join(map(str, self.trainer))}"] if self.trainer else []
        for index, numbers in enumerate(self.servers):
            lent = " (lent)" if set(numbers) & set(self.trainer) else ""
            parts.append(f"server-{index} {', '.join(map(str, numbers))}{lent}")
        for index, number in enumerate(self.senders):
            parts.append(f"rollout-{index} {number}")
        return "; ".join(parts)


class ActorGpus(NamedTuple):
    """Numbers of GPUs of one rollout actor: its server's, and the one that it sends from, in a
    tuple. Empty where there are none."""

    server: tuple[int, ...] = ()
    sender: tuple[int, ...] = ()


def gpus_of(config: Config) -> Gpus:
    """The GPUs of a run's processes on the launcher's machine. GPUs of servers that run elsewhere
    are not included."""
    trainer = tuple(range(ranks_here(config))) if config.train.device == "cuda" else ()
    ranks, sends = _each(config)
    actors = local_rollouts(config)
    own = sum(not is_lent(config, index) for index in range(actors))
    start = len(trainer)
    servers = (
        *_blocks(range(start, start + own * ranks), own),
        *_blocks(trainer[: (actors - own) * ranks], actors - own),
    )
    start += own * ranks
    senders = tuple(range(start, start + actors)) if sends else ()
    return Gpus(trainer, servers if ranks else (), senders)


def _blocks(numbers: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Divide numbers evenly into `count` parts."""
    size = len(numbers) // max(1, count)
    return tuple(tuple(numbers[number * size : (number + 1) * size]) for number in range(count))


def gpus_each(config: Config) -> int:
    """GPUs that each rollout actor needs: its server's, and the one that it sends from."""
    ranks, sends = _each(config)
    return ranks + sends


def agent_gpus(config: Config) -> int:
    """GPUs that Ray gives each agent of rollout actors: theirs."""
    return room_of(config) * gpus_each(config)


def trainer_agent_gpus(config: Config) -> int:
    """GPUs that Ray gives each agent of trainer ranks: one for each of them."""
    return ranks_here(config) if config.train.device == "cuda" else 0


def actor_gpus(config: Config, index: int) -> ActorGpus:
    """The GPUs of the rollout actor `index`, by the numbers that it sees.

    Example: of two actors whose servers have two ranks, beside a trainer on CUDA, the second has 3
    and 4, and on a machine that joins each has 0 and 1.
    """
    if not joined(config):
        here = gpus_of(config)
        return ActorGpus(
            here.servers[index] if here.servers else (), here.senders[index : index + 1]
        )
    ranks, sends = _each(config)
    return ActorGpus(tuple(range(ranks)), (ranks,) if sends else ())


def _each(config: Config) -> tuple[int, bool]:
    """The number of GPUs of a rollout actor's server, and True if it sends from another one."""
    chosen = config.engine.servers
    if chosen is None:
        return 0, False
    settings = chosen.settings
    ranks = settings.tensor_parallel if settings.launch and settings.device == "cuda" else 0
    sends = (
        chosen.by_broadcast and settings.backend == "nccl" and config.publication.path == "staged"
    )
    return ranks, sends


def visible(numbers: Sequence[int], allowed: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES for a process that has these GPUs of the `allowed` ones,
    the value of it here; None: all.

    >>> visible([1, 2], None), visible([1], "4,7,GPU-8")
    ('1,2', '7')
    """
    names = None if allowed is None else [name.strip() for name in allowed.split(",")]
    return ",".join(str(number) if names is None else names[number] for number in numbers)
