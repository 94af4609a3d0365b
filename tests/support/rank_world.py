"""Ranks of one trainer as processes of a test, which carry out functions and give back what these
return."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh
from warm_process import SERVER, warm

from asyncrl.actors.preloaded import MODULES
from asyncrl.training import chunked_logits, packing
from asyncrl.training.ranks.rank_group import open_ranks

T = TypeVar("T")
PATIENCE_S = 60.0
SMALL_PACKS = 24.0
"""Tokens of a packed batch, so that a few rollouts are several."""
SMALL_LOGITS = 3 * 23 * 4
"""Bytes of a chunk of logits, where a model makes them in chunks: a few tokens of a small
vocabulary."""

FORKS = multiprocessing.get_context("forkserver")
"""Makes processes in the time of a fork."""
# its server is itself a fork, and has not the path of tests, but what their modules import
OF_TESTS = ("transformers.models.qwen3.modeling_qwen3", "pytest", "hypothesis")
FORKS.set_forkserver_preload([*MODULES, *OF_TESTS])


def on_ranks(store: Path, size: int, work: Callable[[DeviceMesh], T]) -> list[T]:
    """Have `size` processes do this work, a function of a module, as the ranks of one group; gives
    what each found, in their order."""
    with ranks(store, size, _mesh) as each:
        return each(work)


@contextmanager
def ranks(
    store: Path, size: int, make: Callable[[DeviceMesh], Any]
) -> Iterator[Callable[[Callable[[Any], T]], list[T]]]:
    """Have `size` processes as the ranks of one group, each with what a function of a module makes
    there. Gives a function, which has each carry out another one on that, at once, and gives what
    each found, in their order."""
    have_a_server()
    ends, processes = list[Connection](), []
    for index in range(size):
        mine, theirs = FORKS.Pipe()
        process = FORKS.Process(target=_rank, args=(theirs, str(store), index, size, make))
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)

    def each(work: Callable[[Any], T]) -> list[T]:
        for end in ends:
            end.send(work)
        return [end.recv() for end in ends]

    try:
        yield each
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join(PATIENCE_S)


def have_a_server() -> None:
    """Fork the server of `FORKS` where none is: started, it would import for five seconds."""

    def fork(python: bytes, words: Sequence[str], descriptors: Sequence[int]) -> int:
        streams = [0, 1, 2, *descriptors]
        return warm().fork(SERVER, [*descriptors, words[-1]], streams=streams)

    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", fork):
        forkserver.ensure_running()


def _mesh(mesh: DeviceMesh) -> DeviceMesh:
    return mesh


def _rank(
    end: Connection, store: str, index: int, size: int, make: Callable[[DeviceMesh], Any]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    packing.PACKED_TOKENS, chunked_logits.LOGIT_BYTES = SMALL_PACKS, SMALL_LOGITS
    with open_ranks("cpu", FileStore(store, size), index, size, patience_s=PATIENCE_S) as mesh:
        made = make(mesh)
        with suppress(EOFError):  # the end
            while True:
                end.send(end.recv()(made))
