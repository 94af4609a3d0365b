"""Process groups on the device: ranks that train one model, a group of one, and one whose peer
never comes. NCCL on GPUs, gloo on processors."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import FileStore

from asyncrl.config.schema import StalenessConfig
from asyncrl.training import packing
from asyncrl.training.learner import Learner
from asyncrl.training.ranks.rank import ALONE
from asyncrl.training.ranks.rank_group import open_ranks, shard
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Job, connect_group

from .check import Number, Place
from .peers import peer
from .shapes import MIDDLE, TINY, build, settings, work

PATIENCE_S = 60.0
LATE_S = 4.0
ROUNDING = 1e-4


def one_rank(place: Place) -> list[Number]:
    """The path of FSDP2 with nobody else."""
    return _compared(place, 1)


def two_ranks(place: Place) -> list[Number]:
    """Two ranks, each with a GPU of its own."""
    return _compared(place, 2)


def _compared(place: Place, size: int) -> list[Number]:
    """Distance of the gradient of `size` ranks from that of a learner alone, over its length."""
    store = place.folder / "ranks"
    start = time.perf_counter()
    if size == 1:
        gradient = torch.from_numpy(_rank(store, 0, 1, place))
    else:
        with peer(_rank, store, 1, size, place), peer(_rank, store, 0, size, place) as first:
            gradient = torch.from_numpy(first.said())
    seconds = time.perf_counter() - start
    alone = _gradient(None, place)
    return [
        Number("distance", float((gradient - alone).norm() / alone.norm()), most=ROUNDING),
        Number("length of the gradient", float(alone.norm()), least=1e-9),
        Number("seconds", seconds, "s, with what starts the group"),
    ]


def _rank(store: Path, index: int, size: int, place: Place) -> NDArray[np.float64]:
    if size > 1 and place.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    met = FileStore(str(store), size)
    with open_ranks(place.device, met, index, size, patience_s=place.patience(PATIENCE_S)) as mesh:
        return _gradient(mesh, place).numpy()  # by value: a process that ends shares no tensor


def _gradient(mesh: object, place: Place) -> Tensor:
    """The gradient of a micro-batch of several packed batches; then a step, so that the path is
    whole. float64, on the host."""
    shape, response, groups = (TINY, 24, 3) if place.small else (MIDDLE, 2000, 4)
    model = build(shape, torch.float32, place.device, initializer_range=0.05)
    given = work(model, 8, response, groups)
    rank = ALONE if mesh is None else shard(model, mesh)  # type: ignore[arg-type]
    learner = Learner(model, settings(place.device), StalenessConfig(), temperature=1.0, rank=rank)
    # a small micro-batch, too, is several packed batches, so that each rank has some
    most = 1.0 if place.small else packing.PACKED_TOKENS
    with patch.multiple(packing, PACKED_TOKENS=most, CUDA_TOKENS=most):
        learner.accumulate(given.batch, given.buffers)
    parts = [
        learner.rank.whole(each.grad).cpu().double().flatten()
        for _, each in learner.master_weights.named()
        if each.grad is not None
    ]
    if learner.step()["skipped"]:
        raise RuntimeError("the step trained nothing")
    return torch.cat(parts)


def group_of_one(place: Place) -> list[Number]:
    """A group is made, sends to itself, and is let go of."""
    start = time.perf_counter()
    group = connect_group(
        FileStore(str(place.folder / "store"), 1),
        0,
        1,
        address="127.0.0.1",
        device=torch.device(place.device),
        timeout=timedelta(seconds=PATIENCE_S),
    )
    tensor = torch.arange(1000, device=place.device)
    group.broadcast(tensor, 0, timedelta(seconds=PATIENCE_S)).wait()
    same = torch.equal(tensor.cpu(), torch.arange(1000))
    made = time.perf_counter() - start
    found = [Number("made", made, "s"), Number("bytes equal", float(same), least=1.0)]
    if place.device == "cuda":
        start = time.perf_counter()
        group.abort()
        found.append(Number("aborted", time.perf_counter() - start, "s", most=PATIENCE_S))
    return found


def lost_peer(place: Place) -> list[Number]:
    """A group of two, one of which never comes: the refusal, and the seconds to it."""
    job = Job(LATE_S)
    tensor = torch.zeros(1000, device=place.device)
    start, said = time.perf_counter(), ""
    try:
        with job.step("connecting to a peer that never comes") as left:
            group = connect_group(
                FileStore(str(place.folder / "store"), 2),
                0,
                2,
                address="127.0.0.1",
                device=torch.device(place.device),
                timeout=left,
            )
            group.broadcast(tensor, 0, left).wait(left)
            if place.device == "cuda":
                torch.cuda.synchronize()
    except TransferError as error:
        said = str(error)
    seconds = time.perf_counter() - start
    return [
        Number("refused in", seconds, "s", most=LATE_S + place.patience(3.0)),
        Number("named", float("never comes" in said), least=1.0),
    ]
