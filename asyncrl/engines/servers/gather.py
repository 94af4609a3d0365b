"""Concurrent calls. Invariant: all of them have ended when this returns or raises, and an error is
raised as the call raised it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def gather(*calls: Callable[[], Awaitable[T]]) -> list[T]:
    """The results, in the order of the calls. The first failure cancels the others, and is raised
    alone."""
    results: dict[int, T] = {}
    failures: list[Exception] = []

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[number] = await call()
        except Exception as error:  # noqa: BLE001 (raised below, alone)
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(run, number, call)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(calls))]
