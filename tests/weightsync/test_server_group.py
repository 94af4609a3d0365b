"""Rank 0 of a group with a server's ranks: how weights are cut, what arrives, and what happens
when a rank dies, is late, or is left."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
import trio
import warm_process
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.servers.server_group import (
    CALLS,
    MOST_BYTES,
    ServerBucket,
    ServerGroup,
    bucket_bytes_of,
    cut,
)

HOST = "127.0.0.1"
AMPLE = 60.0
DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.int64]


def model(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(300, 64, generator=generator),
        "norm": torch.randn(64, generator=generator),
        "odd": torch.randn(3, generator=generator).bfloat16(),
        "after": torch.randn(64, generator=generator),
        "transposed": torch.randn(64, 50, generator=generator).t(),
        "scalar": torch.tensor(3.5),
    }


def flat(weights: dict[str, Tensor], bucket: ServerBucket) -> bytes:
    return b"".join(
        weights[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name in bucket.names
    )


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=12),
    st.integers(1, 200),
)
@example([(1, torch.float32), (1, torch.float32), (15, torch.float32), (40, torch.float32)], 1)
def test_buckets_hold_everything_once_in_order_aligned_and_within_their_size(
    tensors: list, bucket_bytes: int
) -> None:
    weights = {
        str(i): torch.empty(size, dtype=dtype, device="meta")
        for i, (size, dtype) in enumerate(tensors)
    }
    buckets = cut(weights, bucket_bytes)
    assert [name for bucket in buckets for name in bucket.names] == list(weights)
    most = max(bucket_bytes, math.ceil(sum(each.nbytes for each in weights.values()) / CALLS))
    for bucket in buckets:
        offset = 0
        for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            assert offset % weights[name].itemsize == 0
            assert (getattr(torch, dtype), shape) == (
                weights[name].dtype,
                tuple(weights[name].shape),
            )
            offset += weights[name].nbytes
        assert offset == bucket.total_bytes
        assert offset <= most or len([name for name in bucket.names if weights[name].nbytes]) == 1


class Rank:
    """One rank of a server, in a process of its own."""

    def __init__(self) -> None:
        self.process = warm_process.Popen(
            [sys.executable, "-m", "server_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )

    def say(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    async def hear(self) -> dict:
        assert self.process.stdout is not None
        return json.loads(
            await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
        )


@asynccontextmanager
async def server(count: int) -> AsyncIterator[list[Rank]]:
    ranks = [Rank() for _ in range(count)]
    try:
        for rank in ranks:
            await rank.hear()
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()


async def meet(group: ServerGroup, ranks: list[Rank]) -> None:
    for i, rank in enumerate(ranks, 1):
        rank.say(
            what="meet",
            host=group.host,
            port=group.port,
            rank=i,
            world=group.world,
            name=group.name,
        )
    await group.join(AMPLE)
    for rank in ranks:
        assert await rank.hear() == {}


@pytest.mark.processes
async def test_two_ranks_get_the_same_bytes_version_after_version_in_one_group() -> None:
    async with server(2) as ranks, ServerGroup.open(HOST, 2, bucket_bytes=4096) as group:
        await meet(group, ranks)
        name = group.name
        for seed in range(2):
            weights = model(seed)
            transfer = group.stream(weights)
            assert len(transfer.buckets) >= 4
            for bucket in transfer.buckets:
                for rank in ranks:
                    rank.say(what="take", bytes=bucket.total_bytes)
                await transfer.send(AMPLE)
                for rank in ranks:
                    assert await rank.hear() == {
                        "digest": hashlib.sha256(flat(weights, bucket)).hexdigest()
                    }
            with pytest.raises(ValueError, match="buckets were sent"):
                await transfer.send(AMPLE)
        assert group.name == name


@pytest.mark.explore
@pytest.mark.processes
async def test_a_rank_that_dies_ends_the_group_and_the_next_one_has_another_name() -> None:
    async with server(1) as [rank], ServerGroup.open(HOST, 1, bucket_bytes=1 << 20) as group:
        await meet(group, [rank])
        rank.process.kill()
        rank.process.wait()
        transfer = group.stream(model())
        with (
            trio.fail_after(AMPLE / 2),
            pytest.raises(TransferError, match="failed while sending bucket 1"),
        ):
            await transfer.send(AMPLE)
        assert not group.joined
        name = group.name
        group.leave()
        assert group.name != name
        async with server(1) as ranks:
            await meet(group, ranks)
            assert group.joined


@pytest.mark.processes
async def test_a_server_whose_other_side_leaves_is_told_at_once() -> None:
    """Else its scheduler would stand still for torch's half hour."""
    async with server(1) as [rank], ServerGroup.open(HOST, 1, bucket_bytes=1 << 20) as group:
        await meet(group, [rank])
        rank.say(what="take", bytes=100)
        group.leave()
        with trio.fail_after(AMPLE / 2):
            assert "error" in await rank.hear()


async def test_nobody_comes() -> None:
    async with ServerGroup.open(HOST, 1, bucket_bytes=1 << 20) as group:
        with (
            trio.fail_after(AMPLE),
            pytest.raises(
                TransferError, match="waiting for the 1 ranks of servers to join asyncrl-"
            ),
        ):
            await group.join(3.0)
        assert not group.joined
        with pytest.raises(ValueError, match="not joined"):
            await group.stream(model()).send(1)


@pytest.mark.explore
@pytest.mark.processes
async def test_a_rank_that_does_not_take_part_is_out_of_time_by_name() -> None:
    async with server(1) as [rank], ServerGroup.open(HOST, 1, bucket_bytes=1 << 22) as group:
        await meet(group, [rank])
        with trio.fail_after(AMPLE), pytest.raises(TransferError, match="sending bucket 1 of 1"):
            await group.stream({"large": torch.zeros(1 << 22)}).send(3.0)
        assert not group.joined


def listening(port: int) -> set[str]:
    """The local addresses at which somebody listens on this port, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A" and local.endswith(f":{port:04X}"):
                found.add(local.partition(":")[0])
    return found


async def test_the_store_listens_on_its_host_alone() -> None:
    async with ServerGroup.open(HOST, 1, bucket_bytes=1 << 20) as group:
        assert listening(group.port) == {"0100007F"}


@given(st.integers(0, 2**42), st.integers(1024, 2**31))
def test_servers_get_few_calls_or_large_buckets(total: int, least: int) -> None:
    bucket = bucket_bytes_of(total, least)
    assert bucket >= least
    assert total <= CALLS * bucket or bucket >= MOST_BYTES
    assert bucket == least or bucket <= MOST_BYTES  # nobody asked for more


def test_projections_that_a_server_fuses_within_one_call_are_in_one_bucket() -> None:
    attention = ["q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
    weights = {
        f"layers.{layer}.self_attn.{module}.weight": torch.empty(10)
        for layer in range(2)
        for module in attention
    }
    held = [[name.split(".")[3] for name in bucket.names] for bucket in cut(weights, 50)]
    assert held == [attention[:4], attention[4:], attention[:4], attention[4:]]
