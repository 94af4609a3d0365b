"""A run on machines that are not here: their GPUs and their memory against what the run needs,
before they are rented. Invariant: nothing of this machine is in the answer.

What only the machine itself can tell is left to `asyncrl check` there: builds of torch, drivers,
kernels, ports, sandboxes.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from asyncrl.config import Config, ConfigError
from asyncrl.config.cluster import joined, ranks_here, room_of
from asyncrl.config.derived import Row
from asyncrl.config.devices import DEVICES, MEMORY
from asyncrl.config.gpus import gpus_each, gpus_of
from asyncrl.config.published import sent_bytes
from asyncrl.config.ranks import settled_ranks
from asyncrl.files import read_regular
from asyncrl.launch.hub.hub_models import named_models
from asyncrl.launch.scale_rows import host_rows
from asyncrl.launch.trainer_memory import memory_rows
from asyncrl.runtime.waiting import waiting
from asyncrl.words import size

BYTES = 2**16
"""Bytes of a description, at most."""
GB = 1_000_000_000


class OtherMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`machines` alike, each with `gpus` of the kind `gpu`, or of `gpu_gb` gigabytes, and with
    `memory_gb` of its own (0: not known)."""

    gpus: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    gpu: str = ""
    gpu_gb: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] = 0.0
    machines: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    memory_gb: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] = 0.0

    @property
    def gpu_bytes(self) -> int:
        return int(GB * (self.gpu_gb or DEVICES[self.gpu].memory)) if self.gpus else 0

    def __str__(self) -> str:
        kind = f"{self.gpus} × {self.gpu or 'GPU'} of {size(self.gpu_bytes)}"
        many = f"{self.machines} machines, each with " if self.machines > 1 else ""
        return many + (kind if self.gpus else "no GPU")


def read_machine(path: Path) -> OtherMachine:
    """The machines in a TOML file. Raises ConfigError."""
    try:
        found = msgspec.convert(tomllib.loads(read_regular(path, BYTES).decode()), OtherMachine)
    except OSError as error:
        raise ConfigError(
            f"--machine {path}: cannot be read ({error.strerror}); give a file with gpus and gpu."
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or none of ours
        raise ConfigError(f"--machine {path}: this does not describe a machine: {error}.") from None
    if found.gpus and not found.gpu_gb and found.gpu not in DEVICES:
        raise ConfigError(
            f"--machine {path}: gpu is {found.gpu!r}; set it to one of {', '.join(DEVICES)}, or "
            "gpu_gb to its gigabytes."
        )
    return found


def rows_for(config: Config, machine: OtherMachine) -> list[Row]:
    """Rows about a run on these machines. Raises ConfigError if it cannot run there."""
    with waiting() as doing, named_models(doing) as named:
        config = named.find(config, None)
        train = msgspec.structs.replace(config.train, ranks=settled_ranks(config, machine.gpus))
        config = msgspec.structs.replace(config, train=train)
        doing("computing the memory of the trainer")
        cuda, host = config.train.device == "cuda", int(GB * machine.memory_gb)
        rows = [Row("cluster", str(machine), ""), *gpu_rows(config, machine)]
        rows += server_rows(config, machine)
        rows += memory_rows(config, machine.gpu_bytes if cuda else host)
        if weight_bytes := sent_bytes(config):
            rows += host_rows(config, weight_bytes, host)
        return [Row(*map(named.by_name, row)) for row in rows]


def gpu_rows(config: Config, machine: OtherMachine) -> list[Row]:
    """The GPUs of each machine, by process. Raises ConfigError for more than there are."""
    here, ranks = gpus_of(config), ranks_here(config)
    if here.needed > machine.gpus:
        raise ConfigError(
            f"the run needs {here.needed} GPUs on its first machine ({here}), which has "
            f"{machine.gpus}: lower train.ranks, rollout.actors or the servers' tensor_parallel, "
            "or have rollout actors join on other machines (cluster.kind)."
        )
    rows = [Row("machine 1", f"{here.needed} of {machine.gpus} GPUs", str(here))]
    others: list[tuple[str, int, int]] = []
    if config.cluster.trainer_agents and config.train.device == "cuda":
        others.append(("ranks", config.cluster.trainer_agents, ranks))
    if joined(config):
        each = room_of(config) * gpus_each(config)
        others.append((f"{room_of(config)} rollout actors", config.cluster.agents, each))
    first = 2
    for what, count, each in others:
        if each > machine.gpus:
            raise ConfigError(
                f"each machine that joins for {what} needs {each} GPUs, and has {machine.gpus}: "
                "raise cluster.agents, or lower rollout.actors or the servers' tensor_parallel."
            )
        span = f"machine {first}" + (f" to {first + count - 1}" if count > 1 else "")
        rows.append(Row(span, f"{each} of {machine.gpus} GPUs", f"{what} each"))
        first += count
    if first - 1 > machine.machines:
        raise ConfigError(
            f"the run needs {first - 1} machines (cluster), and there are {machine.machines}: "
            "lower cluster.agents or cluster.trainer_agents."
        )
    idle = machine.machines * machine.gpus - here.needed - sum(n * each for _, n, each in others)
    if idle:
        rows.append(Row("note", "GPUs", f"{idle} of them do nothing"))
    return rows


def server_rows(config: Config, machine: OtherMachine) -> list[Row]:
    """The memory of each GPU of a server: weights, and what is left for its cache. Raises
    ConfigError if none is left."""
    servers, weight_bytes = config.engine.servers, sent_bytes(config)
    if servers is None or not weight_bytes or not gpus_each(config):
        return []
    each = weight_bytes // servers.settings.tensor_parallel
    left = int(MEMORY * machine.gpu_bytes) - each
    if left <= 0:
        raise ConfigError(
            f"each GPU of a server needs {size(each)} for weights, and has "
            f"{size(machine.gpu_bytes)}, of which {MEMORY:.0%} may be used: raise the servers' "
            "tensor_parallel."
        )
    return [Row("server memory", size(each), f"weights on each GPU; {size(left)} for its cache")]
