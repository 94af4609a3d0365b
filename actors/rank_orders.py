"""Orders of a trainer's rank 0 to its other ranks. Invariant: every rank carries out the same
orders in the same order, one at a time.

A pass of a model that is sharded is a collective of all ranks, and two collectives in different
orders deadlock. So rank 0 alone has a link to the coordinator. It gives each command that computes
to the others, does its own part, and goes on when all have answered: it waits for each of them
under its name, and no longer than `patience_s`. A rank that dies, or does not answer in time, ends
the trainer, by its name.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

import trio

from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.errors import RankLost
from asyncrl.actors.trainer_actor import COMPUTED
from asyncrl.messages import Drain, Gather, Hello, Meet, Message, Obeyed, Score
from asyncrl.messages.address import Address, UnixAddress
from asyncrl.runtime.ipc.endpoints import first_message, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import RANKS

T = TypeVar("T")
Carried = Callable[[Message, Sequence[memoryview]], None]
"""One rank's part of an order, computed in a thread."""
CAUSE_S = 5.0
"""Seconds in which a rank that was lost is seen to be, where a collective says that one was."""
NAMES: dict[type[Message], str] = {**COMPUTED, Gather: "weights", Score: "canary", Drain: "end"}
"""Words for what each order is about."""


class RankOrders:
    """Rank 0's side: `links` to the other ranks, from rank 1 on; a trainer of one rank has none."""

    def __init__(self, links: Sequence[Link], waits: Waits, patience_s: float) -> None:
        self._links, self._waits, self._patience_s = links, waits, patience_s
        self._turn = trio.Lock()
        self._numbers = itertools.count()

    async def give(self, order: Message, buffers: Sequence[memoryview], own: Callable[[], T]) -> T:
        """Have all ranks carry out an order, this one by `own`, in a thread; returns what that
        does. Raises RankLost, and WaitExpired where a rank does not answer in time."""
        if not self._links:
            return await trio.to_thread.run_sync(own)
        async with self._turn:
            # cancelled in the middle, the ranks would be at different orders
            with trio.CancelScope(shield=True):
                return await self._give_all(order, buffers, own)
        raise AssertionError("a shield is never cancelled")

    async def end(self) -> None:
        """Have the other ranks end."""
        await self.give(Drain(), (), lambda: None)

    async def _give_all(
        self, order: Message, buffers: Sequence[memoryview], own: Callable[[], T]
    ) -> T:
        answer = Obeyed(next(self._numbers))
        async with trio.open_nursery() as nursery:
            for rank, link in enumerate(self._links, start=1):
                nursery.start_soon(self._give, rank, link, order, buffers, answer)
            try:
                # a thread that waits for a lost rank ends with its process
                return await trio.to_thread.run_sync(own, abandon_on_cancel=True)
            except RuntimeError:  # as torch says of a collective that a rank left
                with trio.move_on_after(CAUSE_S):
                    await trio.sleep_forever()  # until a link says which
                raise
        raise AssertionError("a nursery lets through what ends it")

    async def _give(
        self, rank: int, link: Link, order: Message, buffers: Sequence[memoryview], answer: Obeyed
    ) -> None:
        """Have another rank carry out an order, of which this is the answer."""
        name = NAMES[type(order)]
        with (
            self._waits.on(f"{name} of rank {rank}", owner="trainer", deadline_s=self._patience_s),
            _loss_named(rank, name),
        ):
            await link.send(order, *buffers)
            received, _ = await link.receive()
        if received != answer:
            raise LinkError("malformed", f"rank {rank} answered {received!r} in place of {answer}")


@asynccontextmanager
async def open_orders(context: ActorContext, meet: Meet, waits: Waits) -> AsyncIterator[RankOrders]:
    """Rank 0's side of a trainer of several ranks: the others come to its socket, or from other
    machines to its port, and each is sent where all of them `meet`. Raises LinkError and
    WaitExpired, and OSError where an address is taken."""
    key, limits = context.key, context.config.supervision
    addresses: list[Address] = [UnixAddress(context.run / RANKS)]
    if context.rank_0 is not None:
        addresses.append(context.rank_0)
    links, awaited = dict[int, Link](), set(range(1, meet.size))
    complete, over = trio.Event(), trio.Event()

    async def keep(link: Link) -> None:
        hello = await first_message(link, Hello)
        if hello.role != "trainer" or hello.index not in awaited:
            raise LinkError("malformed", "only the other ranks connect to rank 0, each once")
        awaited.remove(hello.index)
        link.peer = f"rank {hello.index}"
        await link.send(meet)
        links[hello.index] = link
        if len(links) == meet.size - 1:
            complete.set()
        await over.wait()

    async with trio.open_nursery() as nursery:
        for address in addresses:
            # who is refused is none of the ranks, each of which is waited for
            await nursery.start(
                partial(serve, address, key, keep, refused=lambda _: None, tls=context.tls)
            )
        with waits.on("the other ranks", owner="trainer", deadline_s=limits.start_s):
            await complete.wait()
        yield RankOrders([links[rank] for rank in sorted(links)], waits, limits.stall_s)
        over.set()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_rank(context: ActorContext, waits: Waits) -> AsyncIterator[tuple[Link, Meet]]:
    """Another rank's link to rank 0, which may not listen yet, and where all ranks meet. Raises
    LinkError and RankLost, and WaitExpired where rank 0 is not there within `start_s`."""
    owner, start_s = f"rank {context.index}", context.config.supervision.start_s
    with waits.on("rank 0", owner=owner, deadline_s=start_s):
        link = await context.link_to_rank_0()
    async with link:
        with waits.on("meeting", owner=owner, deadline_s=start_s), _loss_named(0, "meeting"):
            meet, _ = await link.receive()
        if not isinstance(meet, Meet):
            raise LinkError("malformed", "rank 0 sends first where all ranks meet")
        yield link, meet


async def obey(link: Link, rank: int, carry_out: Carried, waits: Waits) -> None:
    """Another rank's life: carry out rank 0's orders until one says that this is the end. Raises
    RankLost where rank 0 ends before."""
    for number in itertools.count():
        with (
            waits.until("the link to rank 0 ends", "order", owner=f"rank {rank}"),
            _loss_named(0, "order"),
        ):
            order, buffers = await link.receive()
        ends = isinstance(order, Drain)
        if not ends:
            await trio.to_thread.run_sync(carry_out, order, buffers)
        await link.send(Obeyed(number))
        if ends:
            return


@contextmanager
def _loss_named(rank: int, at: str) -> Iterator[None]:
    """Name the rank at the other end of a link, and what it was at, where the link ends."""
    try:
        yield
    except (LinkError, EndOfStream) as error:
        raise RankLost(rank, at) from error
