"""Orders of rank 0: all ranks obey the same ones in the same order, and one that does not ends the
trainer by its name. Links are real, and so are the threads and the seconds."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from rank_support import only

from asyncrl.actors.errors import RankLost
from asyncrl.actors.rank_orders import RankOrders, obey, open_orders, open_rank
from asyncrl.messages import CloseStep, Gather, Hello, Meet, Message, Save
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import connect
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

KEY = b"k" * 32
SIZE = 3
PATIENCE_S = 0.5
STORE = "file:/meeting"


class Ranks:
    """All ranks of a test: what each was told to carry out, in order."""

    def __init__(self) -> None:
        self.carried: dict[int, list[Message]] = {rank: [] for rank in range(SIZE)}
        self.held = threading.Event()
        self.held.set()
        self.stands_still: int | None = None

    def carry_out(self, rank: int, order: Message, _: Sequence[memoryview] = ()) -> str:
        if rank == self.stands_still:
            self.held.wait(10.0)
        self.carried[rank].append(order)
        return f"rank {rank}"


@asynccontextmanager
async def opened(tmp_path: Path, ranks: Ranks) -> AsyncIterator[tuple[RankOrders, trio.Nursery]]:
    """Rank 0's orders, and a nursery in which the others live, each in a scope of its own."""
    address = UnixAddress(tmp_path / "ranks.sock")

    async def life(rank: int) -> None:
        hello = Hello("trainer", rank, 0, 1)

        def carry_out(order: Message, buffers: Sequence[memoryview]) -> None:
            ranks.carry_out(rank, order, buffers)

        async with open_rank(address, KEY, hello, Waits(), start_s=5.0) as (link, meet):
            assert meet == Meet(STORE, SIZE)
            await obey(link, hello, carry_out, Waits())

    async with trio.open_nursery() as nursery:
        for rank in range(1, SIZE):
            nursery.start_soon(life, rank)
        async with open_orders(
            [address], KEY, Meet(STORE, SIZE), Waits(), start_s=5.0, patience_s=PATIENCE_S
        ) as orders:
            yield orders, nursery
            await orders.end()


async def test_all_ranks_obey_all_orders_in_one_order(tmp_path: Path) -> None:
    ranks = Ranks()
    given = [CloseStep(0), Gather(), Save(3), CloseStep(1)]
    async with opened(tmp_path, ranks) as (orders, _), trio.open_nursery() as nursery:
        for order in given:
            nursery.start_soon(
                orders.give, order, (), lambda order=order: ranks.carry_out(0, order)
            )
    assert sorted(map(repr, ranks.carried[0])) == sorted(map(repr, given))
    assert ranks.carried[1] == ranks.carried[2] == ranks.carried[0]


async def test_a_cancelled_order_is_carried_out_by_all_before_the_next(tmp_path: Path) -> None:
    ranks = Ranks()
    ranks.stands_still = 1
    ranks.held.clear()
    async with opened(tmp_path, ranks) as (orders, _):
        with trio.move_on_after(0.05) as scope:
            threading.Timer(0.2, ranks.held.set).start()
            await orders.give(Gather(), (), lambda: ranks.carry_out(0, Gather()))
        assert scope.cancel_called
        await orders.give(Save(1), (), lambda: ranks.carry_out(0, Save(1)))
    assert all(carried == [Gather(), Save(1)] for carried in ranks.carried.values())


async def test_a_rank_that_stands_still_is_waited_for_by_name(tmp_path: Path) -> None:
    ranks = Ranks()
    ranks.stands_still = 2
    ranks.held.clear()
    with pytest.raises(BaseExceptionGroup) as failed:
        async with opened(tmp_path, ranks) as (orders, _):
            threading.Timer(4 * PATIENCE_S, ranks.held.set).start()
            await orders.give(CloseStep(0), (), lambda: ranks.carry_out(0, CloseStep(0)))
    expired = only(failed.value, WaitExpired, but=(RankLost, LinkBroken))
    assert expired.name == "optimizer step of rank 2"


async def test_a_rank_that_dies_is_named_though_a_collective_fails_first(tmp_path: Path) -> None:
    """The thread of rank 0 sees that somebody is gone before the link says who."""
    ranks, gone = Ranks(), threading.Event()

    def dies(rank: int, order: Message, _: Sequence[memoryview] = ()) -> str:
        if rank == 1:
            gone.set()
            threading.Event().wait(0.1)
            raise OSError("killed")
        return "well"

    def collective() -> None:
        gone.wait(5.0)
        raise RuntimeError("Connection closed by peer")

    ranks.carry_out = dies  # type: ignore[method-assign]
    with pytest.raises(BaseExceptionGroup) as failed:
        async with opened(tmp_path, ranks) as (orders, _):
            await orders.give(Gather(), (), collective)
    found = only(failed.value, RankLost, but=(OSError, LinkBroken))
    assert "rank 1 of the trainer was lost at its weights" in str(found)


async def test_an_error_of_one_rank_reaches_rank_0_as_it_is(tmp_path: Path) -> None:
    def wrong() -> None:
        raise ValueError("a micro-batch of step 3 came")

    with pytest.raises(BaseExceptionGroup) as failed:
        async with opened(tmp_path, Ranks()) as (orders, _):
            await orders.give(Gather(), (), wrong)
    assert (
        str(only(failed.value, ValueError, but=(RankLost, LinkBroken)))
        == "a micro-batch of step 3 came"
    )


async def test_one_rank_alone_computes_in_a_thread() -> None:
    orders = RankOrders((), Waits(), 0.0)
    here = threading.current_thread()
    assert await orders.give(Gather(), (), threading.current_thread) is not here


async def test_strangers_and_the_same_rank_twice_are_closed(tmp_path: Path) -> None:
    ranks = Ranks()
    async with opened(tmp_path, ranks) as (orders, _):
        for hello in (Hello("trainer", 1, 0, 1), Hello("rollout", 5, 0, 1)):
            async with await connect(UnixAddress(tmp_path / "ranks.sock"), KEY) as link:
                await link.send(hello)
                with pytest.raises(EndOfStream):
                    await link.receive()
        await orders.give(Save(1), (), lambda: ranks.carry_out(0, Save(1)))
    assert ranks.carried[2] == [Save(1)]
