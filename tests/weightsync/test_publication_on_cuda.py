"""Publication from and to a CUDA device that is pretended (`pretend_cuda`): NCCL takes what is on
the device alone, and a bucket of the host's tensors gets there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import trio
from pretend_cuda import CUDA, CudaTensor, FakeNccl, pretended_cuda
from torch import Tensor
from torch.distributed import FileStore, PrefixStore

from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.checksum import checksum
from asyncrl.weightsync.process_group import Job, connect_group
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.server_hashes import of_gpu
from asyncrl.weightsync.stores import open_store

HOST, AMPLE = "127.0.0.1", 20.0


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    with pretended_cuda():
        yield


def model(device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor.to(device)
        for name, tensor in {
            "embed": torch.randn(300, 64, generator=generator),
            "norm": torch.randn(64, generator=generator),
            "bias": torch.randn(32, generator=generator),
            "transposed": torch.randn(64, 50, generator=generator).t(),
            "up": torch.randn(512, 300, generator=generator),  # sent from where it lies
        }.items()
    }


def numbers(weights: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([weights[name].cpu().contiguous().view(-1) for name in names])


@pytest.mark.parametrize("held", ["cpu", "cuda"])
async def test_servers_get_weights_by_nccl_wherever_they_are_held(held: str) -> None:
    weights = model(held)
    received = list[Tensor]()
    async with ServerGroup.open(HOST, 1, bucket_bytes=20_000, device=CUDA) as group:
        assert group.backend == "nccl"
        stream = group.stream(weights)
        assert any(len(bucket.names) > 1 for bucket in stream.buckets)

        def server() -> None:
            """A rank of a server, which meets rank 0 as SGLang's do on CUDA."""
            job, name = Job(AMPLE), group.name
            with job.step("looking for the store") as left:
                store = open_store(f"tcp:{HOST}:{group.port}", left)
            meeting = PrefixStore("cuda/", PrefixStore(f"{name}/", PrefixStore(name, store)))
            own = FakeNccl(meeting, 1, 2, FakeNccl.Options())
            for bucket in stream.buckets:
                flat = torch.empty(bucket.total_bytes, dtype=torch.uint8, device="cuda")
                own.broadcast(flat, 0, job.left).wait(job.left)
                received.append(flat.cpu().clone())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, server)
            await group.join(AMPLE)
            for _ in stream.buckets:
                await stream.send(AMPLE)
    for bucket, flat in zip(stream.buckets, received, strict=True):
        assert torch.equal(flat.view(torch.float32), numbers(weights, bucket.names))


def test_a_group_takes_a_device_without_a_number(tmp_path: Path) -> None:
    job = Job(AMPLE)
    store = FileStore(str(tmp_path / "store"), 1)
    group = connect_group(store, 0, 1, address=HOST, device=torch.device("cuda"), timeout=job.left)
    with pytest.raises(RuntimeError, match="device type cpu"):
        group.broadcast(torch.zeros(1), 0, job.left)
    group.abort()


@pytest.mark.parametrize("full_every", [1, 2])
async def test_weights_on_the_device_reach_engines_in_host_memory(
    tmp_path: Path, full_every: int
) -> None:
    weights, received = model("cuda"), list[dict[str, Tensor]]()
    plan = Plan.of(weights, 1 << 14)
    async with (
        GroupSender.open(HOST, tmp_path / "store", full_every=full_every) as sender,
        GroupReceiver.open(full_every=full_every) as receiver,
    ):

        async def receive() -> None:
            staged = await receiver.receive(sender.store, 0, 1, 2, plan, AMPLE)
            checksums.append(staged.checksums)
            received.append({name: each.clone() for name, each in dict(staged.weights).items()})

        for version in range(2):
            checksums = list[list[int]]()
            weights["norm"][version] += 1.0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                sent = await sender.send(0, 2, plan, weights.items(), AMPLE)
            assert checksums == [sent.checksums]
            for name, weight in weights.items():
                assert torch.equal(received[-1][name], weight.cpu()), name


@pytest.mark.parametrize("size", [4, 4096, 4 * 8192 * 3, 4 * 8192 * 40])
def test_hashes_and_checksums_are_computed_where_the_weights_are(size: int) -> None:
    bytes_ = torch.randint(0, 256, (size,), dtype=torch.uint8)
    there = bytes_.to("cuda")
    assert isinstance(there, CudaTensor)
    assert of_gpu([there[: size // 4], there[size // 4 :]]) == of_gpu([bytes_])
    assert checksum(there) == checksum(bytes_)
