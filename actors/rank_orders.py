"""Orders of a trainer's rank 0 to its other ranks. Invariant: every rank carries out the same
orders in the same order, one at a time.

A pass of a model that is sharded is a collective of all ranks, and two collectives in different
orders deadlock. So rank 0 alone has a link to the coordinator. It gives each command that computes
to the others, does its own part, and goes on when all have answered: it waits for each of them
under its name, and no longer than `patience_s`. A rank that dies ends the trainer, by its name. If
they do not answer in time, the trainer ends by the name of the one for which the others wait: at an
order each tells every second how far it is. Who came last is known of each step, too.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.errors import RankLost
from asyncrl.actors.trainer_actor import COMPUTED
from asyncrl.messages import (
    AtOrder,
    Drain,
    Gather,
    Hello,
    Meet,
    Message,
    Obeyed,
    RankStand,
    Score,
)
from asyncrl.messages.address import Address, UnixAddress
from asyncrl.runtime.ipc.endpoints import first_message, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.runtime.run_dir import RANKS
from asyncrl.training.ranks.collective_times import CollectiveTimes
from asyncrl.training.ranks.last_rank import Heard, Spent, held_up_by

T = TypeVar("T")
Carried = Callable[[Message, Sequence[memoryview]], None]
"""One rank's part of an order, computed in a thread."""
CAUSE_S = 5.0
"""Seconds in which a rank that was lost is seen to be, where a collective says that one was."""
TELL_S = 1.0
"""Seconds between two words of a rank about an order."""
NAMES: dict[type[Message], str] = {**COMPUTED, Gather: "weights", Score: "canary", Drain: "end"}
"""Words for what each order is about."""


class RankOrders:
    """Rank 0's side: `links` to the other ranks, from rank 1 on; a trainer of one rank has none."""

    def __init__(self, links: Sequence[Link], waits: Waits, patience_s: float) -> None:
        self._links, self._waits, self._patience_s = links, waits, patience_s
        self._turn = trio.Lock()
        self._numbers = itertools.count()
        self._heard = [(RankStand(), 0.0)] * (1 + len(links))  # and when
        self._begun = [RankStand()] * (1 + len(links))  # where each was before the order
        self._at = set[int]()  # the ranks that have not carried out the order
        self._spent = [Spent()] * (1 + len(links))
        self.times = CollectiveTimes()
        """Those of rank 0."""

    def spent(self) -> list[Spent]:
        """The time of each rank at orders since the last call."""
        spent, self._spent = self._spent, [Spent()] * len(self._spent)
        return spent

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
        number, now = next(self._numbers), trio.current_time()
        self._at = set(range(len(self._heard)))
        self._begun = [stand for stand, _ in self._heard]
        self._heard = [(stand, now) for stand in self._begun]
        async with trio.open_nursery() as nursery:
            for rank, link in enumerate(self._links, start=1):
                nursery.start_soon(self._give, rank, link, order, buffers, number)
            try:
                # a thread that waits for a lost rank ends with its process
                found = await trio.to_thread.run_sync(own, abandon_on_cancel=True)
            except RuntimeError:  # as torch says of a collective that a rank left
                with trio.move_on_after(CAUSE_S):
                    await trio.sleep_forever()  # until a link says which
                raise
            self._done(0, trio.current_time() - now, stand_of(self.times))
            return found
        raise AssertionError("a nursery lets through what ends it")

    async def _give(
        self, rank: int, link: Link, order: Message, buffers: Sequence[memoryview], number: int
    ) -> None:
        """Have another rank carry out an order."""
        name = NAMES[type(order)]
        waits = self._waits.on(
            f"{name} of rank {rank}", owner="trainer", deadline_s=self._patience_s
        )
        try:
            with waits, _loss_named(rank, name, self._heard[rank][0].machine):
                await link.send(order, *buffers)
                while isinstance((received := (await link.receive())[0]), AtOrder):
                    self._heard[rank] = received.stand, trio.current_time()
        except WaitExpired as expired:
            raise self._late(name, expired) from None
        if not isinstance(received, Obeyed) or received.order != number:
            raise LinkError("malformed", f"rank {rank} answered {received!r} to order {number}")
        self._done(rank, received.seconds, received.stand)

    def _done(self, rank: int, seconds: float, stand: RankStand) -> None:
        """Note that a rank has carried out the order."""
        before = self._begun[rank]
        self._heard[rank] = stand, trio.current_time()
        self._at.discard(rank)
        waited_s = min(seconds, stand.waited_s - before.waited_s)
        spent = Spent(waited_s, seconds - waited_s, stand.work - before.work, stand.machine)
        self._spent[rank] = self._spent[rank].and_then(spent)

    def _late(self, name: str, expired: WaitExpired) -> WaitExpired:
        """The error by the name of the rank for which the others wait."""
        now = trio.current_time()
        heard = {rank: Heard(stand, now - at) for rank, (stand, at) in enumerate(self._heard)}
        if 0 in self._at:  # it hears itself
            heard[0] = Heard(stand_of(self.times), 0.0)
        rank, why = held_up_by({rank: heard[rank] for rank in self._at})
        machine = heard[rank].stand.machine
        where = f" on {machine}" if machine else ""
        return WaitExpired(f"{name} of rank {rank}{where} ({why})", expired.owner, expired.seconds)


def stand_of(times: CollectiveTimes) -> RankStand:
    """The stand of a rank of this machine."""
    return replace(times.stand, machine=platform.node())


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


async def obey(
    link: Link, rank: int, carry_out: Carried, waits: Waits, times: CollectiveTimes
) -> None:
    """Another rank's life: carry out rank 0's orders until one says that this is the end. Raises
    RankLost where rank 0 ends before."""
    await link.send(AtOrder(stand_of(times)))  # says which machine it has
    for number in itertools.count():
        with (
            waits.until("the link to rank 0 ends", "order", owner=f"rank {rank}"),
            _loss_named(0, "order"),
        ):
            order, buffers = await link.receive()
        ends, began = isinstance(order, Drain), time.monotonic()
        if not ends:
            async with _telling(link, times):
                await trio.to_thread.run_sync(carry_out, order, buffers)
        await link.send(Obeyed(number, time.monotonic() - began, stand_of(times)))
        if ends:
            return


@asynccontextmanager
async def _telling(link: Link, times: CollectiveTimes) -> AsyncIterator[None]:
    """Tell rank 0 during the block how far this rank is. Raises what the block raises, alone."""
    failed: Exception | None = None

    async def tell() -> None:
        # whoever sends next meets a link that has ended, too
        with suppress(LinkError, EndOfStream):
            while True:
                await trio.sleep(TELL_S)
                with trio.CancelScope(shield=True):  # no frame is cut off in the middle
                    await link.send(AtOrder(stand_of(times)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        try:
            yield
        except Exception as error:  # noqa: BLE001 (raised below, outside of the group)
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        if times.broken:  # by a rank that is lost, whose end is to be seen first
            await trio.sleep(CAUSE_S)
        raise failed


@contextmanager
def _loss_named(rank: int, at: str, machine: str = "") -> Iterator[None]:
    """Name the rank at the other end of a link, and what it was at, where the link ends."""
    try:
        yield
    except (LinkError, EndOfStream) as error:
        raise RankLost(rank, at, machine) from error
