"""Staged weights into one server, by the rollout actor's broadcast into its update session."""

from __future__ import annotations

from functools import partial

from asyncrl.engines.servers.gather import gather
from asyncrl.weightsync.servers import session
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.weight_loader import Load
from asyncrl.weightsync.transport import Sent


class ByBroadcast:
    """Broadcasts in a group that is joined once and renewed after a failure. `deadline_s` bounds
    the meeting, and each bucket.

    A server that cannot reach the group's host blocks in the meeting for as long as
    torch.distributed waits: half an hour.
    """

    def __init__(self, group: ServerGroup, deadline_s: float) -> None:
        self._group, self._deadline_s = group, deadline_s

    async def join(self, load: Load, /) -> None:
        group, client = self._group, load.client
        if group.joined:
            return
        server = await client.server_info()
        if (server.tp_size, server.dp_size) != (group.world - 1, 1):
            actual = f"{server.tp_size} tensor-parallel and {server.dp_size} data-parallel ranks"
            raise ValueError(
                f"it has {actual}, and the run's tensor_parallel is {group.world - 1}; "
                "data-parallel ones cannot be updated"
            )
        invite = partial(
            client.init_group, group.host, group.port, group.world, group.name, group.backend
        )
        await gather(invite, partial(group.join, self._deadline_s))

    async def begin(self, load: Load) -> None:
        await session.begin(load.client)

    async def send(self, load: Load, /) -> Sent:
        stream = self._group.stream(load.weights)
        await session.take(
            load.client,
            stream.buckets,
            group=self._group.name,
            version=load.version,
            flush=load.flush,
            beside=partial(stream.send, self._deadline_s),
        )
        return Sent([], sum(bucket.total_bytes for bucket in stream.buckets), [])

    async def leave(self, load: Load, *, failed: bool) -> None:
        if failed:
            name = self._group.name
            # before the server is asked to: a rank that still waits for a broadcast answers when we
            # are gone
            self._group.leave()
            await load.client.destroy_group(name)
