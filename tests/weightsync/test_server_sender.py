"""The trainer's side of direct publications into servers: who meets, what each is told, and what
arrives, in groups of real processes that join as SGLang's do."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
import trio
from test_server_group import AMPLE, HOST, Rank, flat, model, server

from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Worker
from asyncrl.weightsync.servers.meeting import (
    MeetingAnswer,
    ServerGo,
    ServerMeeting,
    WantedOfServer,
)
from asyncrl.weightsync.servers.server_checksums import Expected, WantedHashes
from asyncrl.weightsync.servers.server_group import cut
from asyncrl.weightsync.servers.servers_sender import ServersSender

BUCKET = 4096
WEIGHTS = {name: weight.contiguous() for name, weight in model().items()}
PLAN = Plan.of(WEIGHTS, BUCKET)


def wanted(rank: int) -> WantedOfServer:
    """The wishes of an actor with one server of one rank: the hash of a tensor, by its own name."""
    return WantedOfServer(1, "cpu", WantedHashes(1, {f"of {rank}": (("norm",), ("whole",))}))


def hashes(rank: int) -> Expected:
    """The hash that this server must give: SGLang's, of the tensor."""
    norm = WEIGHTS["norm"].view(torch.uint8).numpy().tobytes()
    return {f"of {rank}": {"whole": [hashlib.sha256(norm).hexdigest()[:16]]}}


async def meets(
    store: str, publication: int, rank: int, own: Rank | None, group: str = "", plan: Plan = PLAN
) -> tuple[ServerGo, str]:
    """A rollout actor with one server of one rank: what it is told, and the group's name."""
    worker = Worker()
    async with worker.turn(AMPLE) as job:

        def meet() -> tuple[ServerGo, str]:
            meeting = ServerMeeting(job, store, publication)
            offer = meeting.offer(plan, rank)
            meeting.answer(MeetingAnswer([wanted(rank)]), rank)
            go = meeting.wait(rank)
            if own is not None and offer.name != group:
                place = {"host": offer.host, "port": offer.port, "name": offer.name}
                own.say(what="meet", rank=go.first, world=go.world, **place)
            return go, offer.name

        found = await worker.run(meet, lambda: None)
        if own is not None and found[1] != group:
            assert await own.hear() == {}
        return found


@pytest.mark.processes
async def test_servers_of_two_actors_get_each_version_in_one_group_and_each_what_it_wanted(
    tmp_path: Path,
) -> None:
    async with (
        server(2) as ranks,
        ServersSender.open(HOST, tmp_path / "s", bucket_bytes=BUCKET) as sender,
    ):
        group = ""
        for publication, epoch in ((1, 1), (2, 1), (3, 4)):
            digest, found = await joined(sender, publication, epoch, ranks, group)
            told = [go for go, _ in found]
            assert [(go.first, go.world) for go in told] == [(1, 3), (2, 3)]
            assert [go.hashes for go in told] == [[hashes(1)], [hashes(2)]] != [[hashes(1)]] * 2
            assert {go.digest for go in told} == {digest}
            (name,) = {name for _, name in found}
            assert (name == group) == (publication == 2)
            group = name
            await assert_sent(sender, ranks)


async def joined(
    sender: ServersSender, publication: int, epoch: int, ranks: list[Rank], group: str = ""
) -> tuple[int, list[tuple[ServerGo, str]]]:
    """A meeting of all: the trainer's digest, and what each actor was told."""
    digests: list[int] = []
    found: dict[int, tuple[ServerGo, str]] = {}

    async def join() -> None:
        actors = len(ranks)
        digests.append(await sender.join(publication, epoch, actors, PLAN, WEIGHTS.items(), AMPLE))

    async def come(rank: int, own: Rank) -> None:
        found[rank] = await meets(sender.store, publication, rank, own, group)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        for rank, own in enumerate(ranks, 1):
            nursery.start_soon(come, rank, own)
    return digests[0], [found[rank] for rank in sorted(found)]


async def assert_sent(sender: ServersSender, ranks: list[Rank]) -> None:
    buckets = cut(WEIGHTS, BUCKET)
    for bucket in buckets:
        for each in ranks:
            each.say(what="take", bytes=bucket.total_bytes)
    assert await sender.send(WEIGHTS, AMPLE) == sum(bucket.total_bytes for bucket in buckets)
    for bucket in buckets:
        digest = hashlib.sha256(flat(WEIGHTS, bucket)).hexdigest()
        for each in ranks:
            assert await each.hear() == {"digest": digest}


async def test_another_model_is_refused_by_both_before_any_server_is_asked(tmp_path: Path) -> None:
    other = Plan.of({**WEIGHTS, "norm": torch.zeros(63)}, BUCKET)
    errors: list[Exception] = []
    async with ServersSender.open(HOST, tmp_path / "s", bucket_bytes=BUCKET) as sender:

        async def join() -> None:
            with pytest.raises(TransferError, match=r"rank 2 refused: tensor 1 is norm"):
                await sender.join(1, 1, 2, PLAN, WEIGHTS.items(), AMPLE)

        async def come(rank: int, plan: Plan) -> None:
            try:
                await meets(sender.store, 1, rank, None, plan=plan)
            except (TransferError, PlanMismatch) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            nursery.start_soon(come, 1, PLAN)
            nursery.start_soon(come, 2, other)
        with pytest.raises(TransferError, match="have not joined"):
            await sender.send(WEIGHTS, AMPLE)
    assert {type(error) for error in errors} == {TransferError, PlanMismatch}


async def test_nobody_comes_and_an_epoch_does_not_come_back(tmp_path: Path) -> None:
    async with ServersSender.open(HOST, tmp_path / "s", bucket_bytes=BUCKET) as sender:
        with (
            trio.fail_after(AMPLE),
            pytest.raises(TransferError, match="waiting for the engine of rank 1 to answer"),
        ):
            await sender.join(1, 2, 1, PLAN, WEIGHTS.items(), 2.0)
        with pytest.raises(TransferError, match="epoch 1 is over"):
            await sender.join(2, 1, 1, PLAN, WEIGHTS.items(), 2.0)


@pytest.mark.explore
@pytest.mark.processes
async def test_a_server_that_dies_amid_it_is_an_error_in_time_and_the_next_epoch_goes_without_it(
    tmp_path: Path,
) -> None:
    async with (
        server(2) as [first, second],
        ServersSender.open(HOST, tmp_path / "s", bucket_bytes=BUCKET) as sender,
    ):
        await joined(sender, 1, 1, [first, second])
        first.process.kill()
        first.process.wait()
        second.say(what="take", bytes=cut(WEIGHTS, BUCKET)[0].total_bytes)
        with trio.fail_after(AMPLE / 2):
            with pytest.raises(TransferError, match="sending bucket"):
                await sender.send(WEIGHTS, AMPLE)
            await second.hear()  # it is told, or has what it was sent
        await joined(sender, 2, 2, [second])
        await assert_sent(sender, [second])
