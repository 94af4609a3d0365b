"""A new link: its server is reached as soon as it is there, and its client says in time who it
is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from memory_link import memory_links

from asyncrl.messages import Drain, Hello
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import FIRST_S, first_message, reach, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link

KEY = b"k" * 32


async def test_the_first_message_says_who_it_is() -> None:
    here, there = memory_links()
    await there.send(Hello("trainer", 1, 0, 7))
    assert await first_message(here, Hello) == Hello("trainer", 1, 0, 7)


async def test_a_peer_that_says_nothing_is_waited_for_no_longer_than_it_may(
    autojump_clock: trio.testing.MockClock,
) -> None:
    here, _there = memory_links()
    with pytest.raises(LinkError, match=f"did not say who it is within {FIRST_S:g} s") as silent:
        await first_message(here, Hello)
    assert silent.value.reason == "silent" and trio.current_time() == FIRST_S


async def test_a_peer_that_begins_with_something_else_is_refused() -> None:
    here, there = memory_links()
    await there.send(Drain())
    with pytest.raises(LinkError, match="began with Drain instead of Hello") as refused:
        await first_message(here, Hello)
    assert refused.value.reason == "malformed"


async def test_a_peer_that_hangs_up_has_said_nothing() -> None:
    here, there = memory_links()
    await there.aclose()
    with pytest.raises(EndOfStream):
        await first_message(here, Hello)


async def greet(link: Link) -> None:
    await link.send(Drain())


async def test_a_server_that_is_not_there_yet_is_reached_when_it_is(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    address = UnixAddress(tmp_path / "late.sock")

    async def begin() -> None:
        await trio.sleep(0.2)
        await serve(address, KEY, greet, refused=print)

    nursery.start_soon(begin)
    with trio.fail_after(60):
        async with await reach(address, KEY) as link:
            assert await first_message(link, Drain) == Drain()


async def test_a_server_that_refuses_is_not_tried_again(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    address = UnixAddress(tmp_path / "other.sock")
    await nursery.start(partial(serve, address, new_key(), greet, refused=print))
    with trio.fail_after(60), pytest.raises(LinkError) as refused:
        await reach(address, KEY)
    assert refused.value.reason == "key"
