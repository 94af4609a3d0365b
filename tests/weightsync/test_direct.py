"""Weights straight into an engine's own: equal bytes, and nothing written by who was cancelled."""

from __future__ import annotations

import pytest
import torch
import trio
from test_collective import AMPLE, HOST, PLAN, ends, model
from torch import Tensor

from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.bucket_pieces import pieces
from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.checksum import BucketSums, checksum
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.narrowed import narrowed
from asyncrl.weightsync.process_group import Job
from asyncrl.weightsync.transport import Sent

assert HOST


def contiguous(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: weight.clone(memory_format=torch.contiguous_format)
        for name, weight in weights.items()
    }


def empty(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(w) for name, w in contiguous(weights).items()}


async def published(
    sender: GroupSender,
    receivers: list[GroupReceiver],
    epoch: int,
    weights: dict[str, Tensor],
    engines: list[DirectWeights],
) -> tuple[Sent, list[list[int]]]:
    """A direct publication: all join, and only then is anything sent."""
    world, plan = len(receivers) + 1, engines[0].plan
    joined, everybody = 0, trio.Event()
    found: dict[int, list[int]] = {}
    sent: list[Sent] = []

    async def came() -> None:
        nonlocal joined
        joined += 1
        if joined == world:
            everybody.set()
        await everybody.wait()

    async def send() -> None:
        await sender.join(epoch, world, plan, AMPLE)
        await came()
        sent.append(await sender.send(epoch, world, plan, weights.items(), AMPLE))

    async def receive(rank: int) -> None:
        receiver, place = receivers[rank - 1], (sender.store, epoch, rank, world)
        await receiver.join(*place, plan, AMPLE)
        await came()
        found[rank] = await receiver.receive_direct(*place, engines[rank - 1], AMPLE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for rank in range(1, world):
            nursery.start_soon(receive, rank)
    return sent[0], [found[rank] for rank in range(1, world)]


async def test_two_engines_hold_the_trainers_bytes_after_each_of_several_epochs() -> None:
    held = [empty(model()) for _ in range(2)]
    plan = Plan.of(model(), 8192, still="embed")
    engines = [DirectWeights(plan, each) for each in held]
    async with ends(2) as (sender, receivers):
        for epoch, seed in ((1, 0), (1, 1), (2, 2)):
            weights = model(seed) | {"embed": model(epoch)["embed"]}
            sent, found = await published(sender, receivers, epoch, weights, engines)
            assert found == [sent.checksums] * 2 and len(sent.checksums) == PLAN.bucket_count > 5
            left_out = 9 * 8192 if seed == 1 else 0  # what never changes is sent once an epoch
            assert sent.sent_bytes == plan.total_bytes - left_out
            for each in held:
                assert all(torch.equal(each[name], weights[name]) for name in weights)


async def test_rounded_weights_are_widened_and_have_the_checksums_of_what_was_sent() -> None:
    whole = {name: w for name, w in model().items() if w.dtype == torch.float32}
    rounded = dict(narrowed(whole.items(), torch.bfloat16))
    held = empty(whole)
    engine = DirectWeights(Plan.of(rounded, 8192), held)
    async with ends(1) as (sender, receivers):
        sent, (found,) = await published(sender, receivers, 1, rounded, [engine])
    assert found == sent.checksums
    for name, weight in rounded.items():
        assert held[name].dtype == torch.float32 and torch.equal(held[name], weight.float())


def test_what_is_checked_is_what_stands_in_the_weights() -> None:
    """A bit that flips after it was written shows."""
    weights, job = contiguous(model()), Job(AMPLE)
    held = empty(weights)
    engine = DirectWeights(PLAN, held)
    sums, packing = [], PLAN.pack(weights.items(), [torch.empty(8192, dtype=torch.uint8)])
    for piece, bucket in zip(pieces(PLAN), packing, strict=True):
        engine.write(job, piece, bucket)
        sums.append(checksum(bucket))
    assert len(sums) == PLAN.bucket_count

    def read() -> list[int]:
        found = []
        for piece in pieces(PLAN):
            assert piece.within == 0
            of_bucket = BucketSums(piece.end - piece.start)
            engine.add(of_bucket, piece)
            found.append(of_bucket.checksum)
        return found

    assert read() == sums
    held["half"].view(torch.int16)[7] ^= 4
    assert sum(now != before for now, before in zip(read(), sums, strict=True)) == 1


def test_who_was_cancelled_writes_nothing() -> None:
    held = empty(model())
    engine, job = DirectWeights(PLAN, held), Job(AMPLE)
    job.abandoned = True
    with pytest.raises(TransferError, match="while writing bucket 1"):
        engine.write(job, next(pieces(PLAN)), torch.full((8192,), 7, dtype=torch.uint8))
    assert all(not each.any() for each in held.values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"scalar": None},
            r"the trainer sends scalar \(float32 \[\]\), and the engine has no such",
        ),
        (
            {"half": torch.zeros(10)},
            r"half \(bfloat16 \[1000\]\), and the engine's tensor is float32",
        ),
        ({"embed": torch.zeros(300, 64).bfloat16()}, "the engine's tensor is bfloat16"),
        ({"embed": torch.zeros(64, 300).t()}, r"the engine's tensor is float32 \[300, 64\]"),
    ],
)
def test_other_weights_are_refused_by_name_and_shape(
    changed: dict[str, Tensor | None], said: str
) -> None:
    held = {k: v for k, v in (empty(model()) | changed).items() if v is not None}
    with pytest.raises(PlanMismatch, match=said):
        DirectWeights(PLAN, held)


async def test_another_layout_is_refused_before_anything_is_sent() -> None:
    other = Plan.of({**model(), "half": torch.zeros(999).bfloat16()}, 8192)
    errors: list[Exception] = []

    async def meet(join: object, *place: object) -> None:
        try:
            await join(*place)  # type: ignore[operator]
        except (TransferError, PlanMismatch) as error:
            errors.append(error)

    async with ends(1) as (sender, receivers), trio.open_nursery() as nursery:
        nursery.start_soon(meet, sender.join, 1, 2, PLAN, AMPLE)
        nursery.start_soon(meet, receivers[0].join, sender.store, 1, 1, 2, other, AMPLE)
    assert len(errors) == 2
    assert all("tensor 1 is half (bfloat16 [999])" in str(error) for error in errors)


async def test_a_sender_that_ends_in_the_middle_is_an_error_in_time_and_mended_by_the_next() -> (
    None
):
    weights, held = model(1), empty(model())
    engine = DirectWeights(PLAN, held)

    def breaks():  # type: ignore[no-untyped-def]
        for i, item in enumerate(weights.items()):
            if i == 1:
                raise TransferError("the trainer has had enough")
            yield item

    async with ends(1) as (sender, receivers):
        await_error: list[str] = []

        async def receive() -> None:
            try:
                await receivers[0].receive_direct(sender.store, 1, 1, 2, engine, AMPLE)
            except TransferError as error:
                await_error.append(str(error))

        async def send() -> None:
            with pytest.raises(TransferError, match="had enough"):
                await sender.send(1, 2, PLAN, breaks(), AMPLE)

        with trio.fail_after(AMPLE / 2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                nursery.start_soon(send)
        assert await_error and "receiving bucket" in await_error[0]
        assert not all(torch.equal(held[name], weights[name]) for name in weights)
        sent, (found,) = await published(sender, receivers, 2, weights, [engine])
    assert found == sent.checksums
    assert all(torch.equal(held[name], weights[name]) for name in weights)
