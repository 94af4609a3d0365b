"""Orders of a trainer's rank 0 to its other ranks. Invariant: every rank carries out the same
orders in the same order, one at a time.

A pass of a model that is sharded is a collective of all ranks, and two collectives in different
orders deadlock. So rank 0 alone hears from the coordinator. It gives each
command that computes to the others, does its own part, and goes on when all have obeyed: it waits
for each of them under its name, and no longer than `patience_s`. A rank that dies or stands still
ends the trainer, by its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from asyncrl.actors.errors import RankLost
from asyncrl.messages import (
    CloseStep,
    Drain,
    Gather,
    Hello,
    Meet,
    Message,
    MicroBatch,
    Obeyed,
    Save,
)
from asyncrl.messages.address import Address
from asyncrl.runtime.ipc.endpoints import first_message, reach, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError, Refusal
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.ipc.waits import Waits

T = TypeVar("T")
Carried = Callable[[Message, Sequence[memoryview]], None]
"""One rank's part of an order, computed in a thread."""
CAUSE_S = 5.0
"""Seconds in which a rank that was lost is seen to be, where a collective says that one was."""
NAMES: dict[type[Message], str] = {
    MicroBatch: "micro-batch",
    CloseStep: "optimizer step",
    Gather: "weights",
    Save: "checkpoint",
    Drain: "end",
}
"""Words for what each order is about."""


class RankOrders:
    """Rank 0's side: `links` to the other ranks, from rank 1 on; a trainer of one rank has none."""

    def __init__(self, links: Sequence[Link], waits: Waits, patience_s: float) -> None:
        self._links, self._waits, self._patience_s = links, waits, patience_s
        self._turn = trio.Lock()
        self._given = 0

    async def give(self, order: Message, buffers: Sequence[memoryview], own: Callable[[], T]) -> T:
        """Have all ranks carry out an order, this one by `own`, in a thread; returns what that
        does. Raises RankLost, and WaitExpired where a rank does not obey in time."""
        if not self._links:
            return await trio.to_thread.run_sync(own)
        async with self._turn:
            # cancelled in the middle, the ranks would be at different orders
            with trio.CancelScope(shield=True):
                return await self._given_to_all(order, buffers, own)
        raise AssertionError("a shield is never cancelled")

    async def end(self) -> None:
        """Have the other ranks end."""
        await self.give(Drain(), (), lambda: None)

    async def _given_to_all(
        self, order: Message, buffers: Sequence[memoryview], own: Callable[[], T]
    ) -> T:
        number, self._given = self._given, self._given + 1
        async with trio.open_nursery() as nursery:
            for rank, link in enumerate(self._links, start=1):
                nursery.start_soon(self._obeyed, rank, link, number, order, buffers)
            try:
                # a thread that waits for a lost rank ends with its process
                return await trio.to_thread.run_sync(own, abandon_on_cancel=True)
            except RuntimeError:  # as torch says of a collective that a rank left
                with trio.move_on_after(CAUSE_S):
                    await trio.sleep_forever()  # until a link says which
                raise
        raise AssertionError("a nursery lets through what ends it")

    async def _obeyed(
        self,
        rank: int,
        link: Link,
        number: int,
        order: Message,
        buffers: Sequence[memoryview],
    ) -> None:
        what = f"{NAMES[type(order)]} of rank {rank}"
        with self._waits.on(what, owner="trainer", deadline_s=self._patience_s):
            try:
                await link.send(order, *buffers)
                said, _ = await link.receive()
            except (LinkError, EndOfStream) as error:
                raise RankLost(rank, NAMES[type(order)]) from error
        if said != Obeyed(number):
            raise LinkError("malformed", f"rank {rank} answered order {number} with {said!r}")


@asynccontextmanager
async def open_orders(
    addresses: Sequence[Address],
    key: bytes,
    meet: Meet,
    waits: Waits,
    *,
    tls: Tls | None = None,
    start_s: float,
    patience_s: float,
) -> AsyncIterator[RankOrders]:
    """Rank 0's side of a trainer of several ranks: the others come to any of these addresses, and
    are told where all of them `meet`. `tls` is for those of other machines. Raises LinkError and
    WaitExpired, and OSError where an address is taken."""
    size = meet.size
    links, awaited = dict[int, Link](), set(range(1, size))
    complete, over = trio.Event(), trio.Event()

    async def keep(link: Link) -> None:
        hello = await first_message(link, Hello)
        if hello.role != "trainer" or hello.index not in awaited:
            raise LinkError("malformed", "only the other ranks talk to rank 0, each once")
        awaited.remove(hello.index)
        link.peer = f"rank {hello.index}"
        await link.send(meet)
        links[hello.index] = link
        if len(links) == size - 1:
            complete.set()
        await over.wait()

    async with trio.open_nursery() as nursery:
        for address in addresses:
            await nursery.start(partial(serve, address, key, keep, refused=_refused, tls=tls))
        with waits.on("the other ranks", owner="trainer", deadline_s=start_s):
            await complete.wait()
        yield RankOrders([links[rank] for rank in range(1, size)], waits, patience_s)
        over.set()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_rank(
    address: Address,
    key: bytes,
    hello: Hello,
    waits: Waits,
    *,
    tls: Tls | None = None,
    start_s: float,
) -> AsyncIterator[tuple[Link, Meet]]:
    """Another rank's link to rank 0, which may not listen yet, and where all ranks meet. Raises
    LinkError, and WaitExpired where rank 0 is not there within `start_s`."""
    with waits.on("rank 0", owner=f"rank {hello.index}", deadline_s=start_s):
        link = await reach(address, key, tls=tls)
    async with link:
        await link.send(hello)
        with waits.on("meeting", owner=f"rank {hello.index}", deadline_s=start_s):
            try:
                meet, _ = await link.receive()
            except (LinkError, EndOfStream) as error:
                raise RankLost(0, "meeting") from error
        if not isinstance(meet, Meet):
            raise LinkError("malformed", "rank 0 says first where all ranks meet")
        yield link, meet


async def obey(link: Link, hello: Hello, carry_out: Carried, waits: Waits) -> None:
    """Another rank's life: carry out rank 0's orders until it says that this is the end. Raises
    RankLost where rank 0 ends before."""
    order: Message | None = None
    given = 0
    while not isinstance(order, Drain):
        with waits.until("the link to rank 0 ends", "order", owner=f"rank {hello.index}"):
            try:
                order, buffers = await link.receive()
            except (LinkError, EndOfStream) as error:
                raise RankLost(0, "order") from error
        if not isinstance(order, Drain):
            await trio.to_thread.run_sync(carry_out, order, buffers)
        await link.send(Obeyed(given))
        given += 1


def _refused(reason: Refusal) -> None:
    """Nothing: whoever has not the run's key was closed, and the ranks are waited for by name."""
