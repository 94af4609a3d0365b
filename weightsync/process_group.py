"""The base of every group of processes. Invariant: each call of torch.distributed runs in a
worker thread, under a name and a deadline, and its failure is a `TransferError` of one sentence.

A cancelled job leaves its thread behind, which ends when the call it is in does: at the latest at
the job's deadline, sooner when a peer closes, but for a send that was half written then, of which
gloo tells nobody. The next job does not wait for it, unless two are left behind already.

gloo's connections are plain TCP without a key, as torch.distributed has them: they must be on a
network that is trusted.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
import trio
from torch import Tensor
from torch.distributed import Store, Work  # type: ignore[attr-defined]

from asyncrl.weightsync.errors import TransferError

T = TypeVar("T")


class Job:
    """One transfer: how long it may still take, and what it is doing. Shared by the worker thread
    and the task that waits for it."""

    def __init__(self, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self.doing = "waiting for an earlier transfer to end"
        self.abandoned = False

    @property
    def left(self) -> timedelta:
        """The time that a call may take. Raises TransferError when this job was abandoned."""
        seconds = self._end - time.monotonic()
        if self.abandoned or seconds <= 0:
            raise TransferError(f"out of time while {self.doing}")
        return timedelta(seconds=seconds)

    @contextmanager
    def step(self, doing: str) -> Iterator[timedelta]:
        """Around a call of torch.distributed, whose errors are all RuntimeErrors, some of many
        lines."""
        self.doing = doing
        left = self.left
        try:
            yield left
        except RuntimeError as error:
            raise TransferError(
                f"failed while {doing}: {str(error).strip().splitlines()[0]}"
            ) from None


class Worker:
    """Runs one job at a time in a thread."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._threads = trio.CapacityLimiter(2)  # one at work, one left behind

    @asynccontextmanager
    async def turn(self, deadline_s: float) -> AsyncIterator[Job]:
        """A job, when those before it have ended. Raises TransferError where the block is not done
        `deadline_s` seconds from now."""
        job = Job(deadline_s)
        try:
            with trio.fail_after(deadline_s):
                async with self._turn:
                    yield job
        except trio.TooSlowError:
            raise TransferError(f"not done within {deadline_s:g} s: was {job.doing}") from None
        finally:
            job.abandoned = True

    async def run(self, work: Callable[[], T], close: Callable[[], None] = lambda: None) -> T:
        """Run `work` inside of a turn. Where it fails, the thread calls `close`, even if the job
        was abandoned."""

        def closing() -> T:
            try:
                return work()
            except BaseException as error:
                # Peers learn of a failure by the closing of connections, which what the traceback
                # refers to would hold open.
                error.__context__ = None
                traceback.clear_frames(error.__traceback__)
                close()
                raise

        return await trio.to_thread.run_sync(closing, abandon_on_cancel=True, limiter=self._threads)


class Posted(Protocol):
    """A call that goes on, as torch's Work."""

    def wait(self, timeout: timedelta = ...) -> object: ...


class Collective(Protocol):
    """The part of torch's process groups that is used here."""

    def broadcast(self, tensor: Tensor, root: int, timeout: timedelta) -> Posted: ...

    def abort(self) -> None: ...


class PairGroup(Protocol):
    """The part of them for messages between two ranks. `tag`: gloo's; NCCL goes by order."""

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...


def connect_group(
    store: Store, rank: int, world: int, *, address: str, device: torch.device, timeout: timedelta
) -> Collective:
    """The group of the `world` processes that meet in `store`; waits for all of them. On the CPU
    this one listens on `address`."""
    if device.type == "cuda":
        # Without this NCCL's watchdog ends the process when a peer does: here the group ends, and
        # the process continues.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        torch.cuda.set_device(device.index or 0)  # it takes no device without a number
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timeout
        return cast(Collective, nccl(store, rank, world, options))
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack its options
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=address)]
    return cast(Collective, gloo(store, rank, world, options))
