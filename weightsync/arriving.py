"""Weights of several ranks that are used while they are gathered. Invariant: gathering comes to its
end, whatever becomes of who uses them, and the model is nowhere whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.transport import WeightSource

T = TypeVar("T")


async def while_gathered(
    source: WeightSource,
    patience_s: float,
    use: Callable[[Sequence[Handoff]], Awaitable[T]],
    *,
    average: bool = False,
    beside: bool,
) -> T:
    """The result of `use` with the weights, and their `average` after them, which are gathered
    meanwhile, `beside` training or not. Raises TransferError, as `use` does."""
    handoffs = [Handoff(patience_s) for _ in range(1 + average)]

    async def hand_over() -> None:
        for handoff, of_average in zip(handoffs, (False, True), strict=False):
            await source.hand_over(handoff, average=of_average, beside=beside)

    made: list[T] = []
    failed: TransferError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over)
        try:
            made.append(await use(handoffs))
        except TransferError as error:  # out of the nursery by itself
            failed = error
        finally:
            for handoff in handoffs:
                handoff.leave()
    if failed is not None:
        raise failed
    return made[0]
