"""Ranks of one trainer as processes of a test: each runs a function, and gives back what that
returns."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh

from actors.preloaded import MODULES
from asyncrl.training import packing
from asyncrl.training.ranks.rank_group import open_ranks

T = TypeVar("T")
PATIENCE_S = 60.0
SMALL_PACKS = 24.0
"""Tokens of a packed batch, so that a few rollouts are several."""

FORKS = multiprocessing.get_context("forkserver")
"""Makes processes in the time of a fork."""
# the server has not the path of tests
FORKS.set_forkserver_preload([*MODULES, "transformers.models.qwen3.modeling_qwen3"])


def on_ranks(store: Path, size: int, work: Callable[[DeviceMesh], T]) -> list[T]:
    """Have `size` processes do this work, a function of a module, as the ranks of one group; gives
    what each found, in their order."""
    ends, processes = [], []
    for index in range(size):
        mine, theirs = FORKS.Pipe()
        process = FORKS.Process(target=_rank, args=(theirs, str(store), index, size, work))
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    found = [end.recv() for end in ends]
    for process in processes:
        process.join(PATIENCE_S)
    return found


def _rank(
    end: Connection, store: str, index: int, size: int, work: Callable[[DeviceMesh], object]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    packing.PACKED_TOKENS = SMALL_PACKS
    with open_ranks("cpu", store, index, size, PATIENCE_S) as mesh:
        end.send(work(mesh))
