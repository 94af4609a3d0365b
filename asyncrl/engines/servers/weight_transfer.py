"""Transfers of weights into one server: by broadcast into its update session, or by files that it
reads. Invariant: between `prepare` and `forget` lies one transfer at most, and nothing but
`transfer` changes a weight of the server."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.gather import gather
from asyncrl.engines.servers.served import ServerClient

if TYPE_CHECKING:
    from torch import Tensor


class WeightTransfer(Protocol):
    """A kind of transfer, for one server."""

    async def prepare(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor]
    ) -> None:
        """Do what can be done while the server decodes. Changes nothing of its weights."""
        ...

    async def begin(self, client: ServerClient) -> None:
        """Take the last step that changes no weights, in a paused server."""
        ...

    async def transfer(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor], *, flush: bool
    ) -> None:
        """Send all of the weights; the server gives itself the version with the last of them, and
        forgets its prefix cache where `flush`."""
        ...

    async def forget(self, client: ServerClient, *, failed: bool) -> None:
        """Clear up, after success and failure alike."""
        ...


# ------------------------------------------------------------------------------------ by broadcast


class UpdateBucket(Protocol):
    """The arguments of one update call."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def dtypes(self) -> Sequence[str]: ...
    @property
    def shapes(self) -> Sequence[Sequence[int]]: ...


class BucketSender(Protocol):
    """Weights cut into buckets; `send` broadcasts the next one within `deadline_s` seconds."""

    @property
    def buckets(self) -> Sequence[UpdateBucket]: ...
    async def send(self, deadline_s: float) -> None: ...


class UpdateGroup(Protocol):
    """Rank 0 of a group with the server's ranks: `weightsync.server_group.ServerGroup`."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def joined(self) -> bool: ...
    async def join(self, deadline_s: float) -> None: ...
    def transfer(self, weights: Mapping[str, Tensor]) -> BucketSender: ...
    def leave(self) -> None: ...


class BroadcastTransfer:
    """Broadcasts in a group that is joined once and renewed after a failure. `deadline_s` bounds
    the meeting, and each bucket.

    A server that cannot reach the group's host stands still in the meeting for as long as
    torch.distributed waits: half an hour.
    """

    def __init__(self, group: UpdateGroup, deadline_s: float) -> None:
        self._group = group
        self._deadline_s = deadline_s

    async def prepare(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor]
    ) -> None:
        group = self._group
        if not group.joined:
            server = await client.server_info()
            if (server.tp_size, server.dp_size) != (group.world - 1, 1):
                found = f"{server.tp_size} tensor-parallel and {server.dp_size} data-parallel ranks"
                raise ValueError(
                    f"it has {found}, and the run's tensor_parallel is {group.world - 1}; "
                    "data-parallel ones cannot be updated"
                )
            invite = partial(
                client.init_group, group.host, group.port, group.world, group.name, group.backend
            )
            await gather(invite, partial(group.join, self._deadline_s))

    async def begin(self, client: ServerClient) -> None:
        try:
            await client.begin_update()
        # an actor that was killed may have left its session open; the second refusal is the answer
        except RequestRefused:
            await client.end_update()
            await client.begin_update()

    async def transfer(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor], *, flush: bool
    ) -> None:
        sending = self._group.transfer(weights)
        for i, bucket in enumerate(sending.buckets, 1):
            last = i == len(sending.buckets)
            ask = partial(
                client.update,
                bucket.names,
                bucket.dtypes,
                bucket.shapes,
                group=self._group.name,
                version=version if last else None,
                flush=flush and last,
            )
            await gather(ask, partial(sending.send, self._deadline_s))
        await client.end_update()

    async def forget(self, client: ServerClient, *, failed: bool) -> None:
        if failed:
            name = self._group.name
            # before the server is asked to: a rank that still waits for a broadcast answers when we
            # are gone
            self._group.leave()
            await client.destroy_group(name)


# ----------------------------------------------------------------------------------------- by disk


class DiskTransfer:
    """Safetensors under `directory`, which the server sees under the same path; removed again when
    they are read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: Path | None = None

    async def prepare(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor]
    ) -> None:
        self._written = self._directory / f"version-{version}-{uuid.uuid4().hex}"
        await trio.to_thread.run_sync(_write, self._written, weights)

    async def begin(self, client: ServerClient) -> None:
        """A server takes files without a session."""

    async def transfer(
        self, client: ServerClient, version: int, weights: Mapping[str, Tensor], *, flush: bool
    ) -> None:
        await client.update_from_disk(str(self._written), version, flush=flush)

    async def forget(self, client: ServerClient, *, failed: bool) -> None:
        if self._written is not None:
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._written, ignore_errors=True))


def _write(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Write all of it, or nothing, to `directory`."""
    from safetensors.torch import save_file

    partial_ = directory.with_name(directory.name + ".partial")
    partial_.mkdir(parents=True)
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            partial_ / "model.safetensors",
            {"format": "pt"},
        )
        partial_.rename(directory)
    except BaseException:
        shutil.rmtree(partial_, ignore_errors=True)
        raise
