"""Orders of rank 0: all ranks carry out the same ones in the same order, and one that does not ends
the trainer by its name. Links are real, and so are the threads and the seconds."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio
from rank_support import leaves, only

from asyncrl.actors import rank_orders
from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.errors import RankLost
from asyncrl.actors.rank_orders import RankOrders, obey, open_orders, open_rank
from asyncrl.config import load
from asyncrl.messages import CloseStep, Gather, Hello, Meet, Message, Save
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import connect
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.runtime.run_dir import KEY, RANKS
from asyncrl.training.ranks import last_rank
from asyncrl.training.ranks.collective_times import CollectiveTimes

PROVED = b"k" * 32
SIZE = 3
PATIENCE_S = 0.5
CONFIG = load(
    None,
    [
        f"train.ranks={SIZE}",
        "supervision.start_s=5.0",
        f"supervision.stall_s={PATIENCE_S}",
        "task.verdict_s=0.1",
    ],
    {},
)
MEET = Meet("file:/meeting", SIZE)


class Ranks:
    """All ranks of a test, and the orders that each carried out."""

    def __init__(self) -> None:
        self.carried: dict[int, list[Message]] = {rank: [] for rank in range(SIZE)}
        self.released = threading.Event()
        self.released.set()
        self.held: int | None = None
        """The rank that carries out nothing before it is released."""
        self.waits_in_a_collective = False
        """The others wait for it then."""
        self.times = [CollectiveTimes() for _ in range(SIZE)]

    def carry_out(self, rank: int, order: Message, _: Sequence[memoryview] = ()) -> str:
        if rank == self.held:
            self.released.wait(10.0)
        elif self.held is not None and self.waits_in_a_collective:
            with self.times[rank].waiting():
                self.released.wait(10.0)
        self.carried[rank].append(order)
        return f"rank {rank}"


@asynccontextmanager
async def opened(tmp_path: Path, ranks: Ranks) -> AsyncIterator[tuple[RankOrders, trio.Nursery]]:
    """Rank 0's orders, and a nursery in which the others live, each in a scope of its own."""
    write_key(tmp_path / KEY, PROVED)

    def context(rank: int) -> ActorContext:
        return ActorContext("trainer", rank, 0, 1, os.getpid(), tmp_path, CONFIG, resume=False)

    async def life(rank: int) -> None:
        def carry_out(order: Message, buffers: Sequence[memoryview]) -> None:
            ranks.carry_out(rank, order, buffers)

        async with open_rank(context(rank), Waits()) as (link, meet):
            assert meet == MEET
            await obey(link, rank, carry_out, Waits(), ranks.times[rank])

    async with trio.open_nursery() as nursery:
        for rank in range(1, SIZE):
            nursery.start_soon(life, rank)
        async with open_orders(context(0), MEET, Waits()) as orders:
            orders.times = ranks.times[0]
            yield orders, nursery
            await orders.end()


async def test_all_ranks_obey_all_orders_in_one_order(tmp_path: Path) -> None:
    ranks = Ranks()
    sent = [CloseStep(0), Gather(), Save(3), CloseStep(1)]
    async with opened(tmp_path, ranks) as (orders, _), trio.open_nursery() as nursery:
        for order in sent:
            nursery.start_soon(
                orders.give, order, (), lambda order=order: ranks.carry_out(0, order)
            )
    assert sorted(map(repr, ranks.carried[0])) == sorted(map(repr, sent))
    assert ranks.carried[1] == ranks.carried[2] == ranks.carried[0]


async def test_a_cancelled_order_is_carried_out_by_all_before_the_next(tmp_path: Path) -> None:
    ranks = Ranks()
    ranks.held = 1
    ranks.released.clear()
    async with opened(tmp_path, ranks) as (orders, _):
        with trio.move_on_after(0.05) as scope:
            threading.Timer(0.2, ranks.released.set).start()
            await orders.give(Gather(), (), lambda: ranks.carry_out(0, Gather()))
        assert scope.cancel_called
        await orders.give(Save(1), (), lambda: ranks.carry_out(0, Save(1)))
    assert all(carried == [Gather(), Save(1)] for carried in ranks.carried.values())


async def test_a_rank_that_does_not_answer_in_time_is_named(tmp_path: Path) -> None:
    ranks = Ranks()
    ranks.held = 2
    ranks.released.clear()
    with pytest.raises(BaseExceptionGroup) as failed:
        async with opened(tmp_path, ranks) as (orders, _):
            threading.Timer(4 * PATIENCE_S, ranks.released.set).start()
            await orders.give(CloseStep(0), (), lambda: ranks.carry_out(0, CloseStep(0)))
    expired = only(failed.value, WaitExpired, but=(RankLost, LinkBroken))
    assert expired.name.startswith(f"optimizer step of rank 2 on {platform.node()} (")


@pytest.mark.parametrize("hangs", [0, 1, 2])
async def test_of_ranks_that_wait_for_one_that_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: int
) -> None:
    monkeypatch.setattr(rank_orders, "TELL_S", 0.1)
    ranks = Ranks()
    ranks.held, ranks.waits_in_a_collective = hangs, True
    ranks.released.clear()
    with pytest.raises(BaseExceptionGroup) as failed:
        async with opened(tmp_path, ranks) as (orders, _):
            threading.Timer(2 * PATIENCE_S, ranks.released.set).start()
            await orders.give(Save(0), (), lambda: ranks.carry_out(0, Save(0)))
    expired = [each for each in leaves(failed.value) if isinstance(each, WaitExpired)]
    name = f"checkpoint of rank {hangs} on {platform.node()}"
    why = "it has begun 0 collectives, and others 1"
    assert {each.name for each in expired} == {f"{name} ({why})"}


async def test_a_rank_that_says_nothing_is_named_before_one_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_rank, "SILENT_S", 0.3)
    monkeypatch.setattr(rank_orders, "TELL_S", 0.1)
    ranks = Ranks()
    async with opened(tmp_path, ranks) as (orders, _):
        ranks.held, ranks.waits_in_a_collective = 1, True
        ranks.released.clear()
        threading.Timer(0.2, ranks.released.set).start()
        await orders.give(CloseStep(0), (), lambda: ranks.carry_out(0, CloseStep(0)))
        spent = orders.spent()
        assert last_rank.last_rank(spent).rank == 1
        assert spent[1].waited_s == 0.0 and orders.spent() == [last_rank.Spent()] * SIZE
    heard = {0: last_rank.Heard(ranks.times[0].stand, 0.0)}
    heard[2] = last_rank.Heard(ranks.times[2].stand, 9.0)
    assert last_rank.held_up_by(heard) == (2, "it has said nothing for 9 s")


async def test_all_that_a_rank_waits_counts_however_often_it_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_orders, "TELL_S", 0.01)
    ranks = Ranks()

    def carry_out(rank: int, order: Message, _: Sequence[memoryview] = ()) -> str:
        for _ in range(4):
            with nullcontext() if rank == 1 else ranks.times[rank].waiting():
                time.sleep(0.05)
            ranks.times[rank].given(2.0)
        return "well"

    ranks.carry_out = carry_out  # type: ignore[method-assign]
    async with opened(tmp_path, ranks) as (orders, _):
        for _ in range(2):
            await orders.give(CloseStep(0), (), lambda: carry_out(0, CloseStep(0)))
            spent = orders.spent()
            assert [round(each.work) for each in spent] == [8] * SIZE
            assert spent[1].waited_s == 0.0
            assert all(spent[at].waited_s >= 0.2 for at in (0, 2)), spent


async def test_a_rank_that_dies_is_named_though_a_collective_fails_first(tmp_path: Path) -> None:
    """The thread of rank 0 sees that a rank is gone before the link says which."""
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
    lost = only(failed.value, RankLost, but=(OSError, LinkBroken))
    assert "rank 1 of the trainer was lost at its weights" in str(lost)


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
            async with await connect(UnixAddress(tmp_path / RANKS), PROVED) as link:
                await link.send(hello)
                with pytest.raises(EndOfStream):
                    await link.receive()
        await orders.give(Save(1), (), lambda: ranks.carry_out(0, Save(1)))
    assert ranks.carried[2] == [Save(1)]
