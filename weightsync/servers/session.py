"""A server's update session, in which it is paused and loads weights bucket by bucket, each from a
broadcast of rank 0 in a group that it has joined."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.gather import gather
from asyncrl.engines.servers.served import ServerClient
from asyncrl.weightsync.servers.server_group import ServerBucket


async def begin(client: ServerClient) -> None:
    """Begin a session in a paused server, and end the one that an actor that was killed may have
    left open."""
    try:
        await client.begin_update()
    except RequestRefused:  # the second refusal is the answer
        await client.end_update()
        await client.begin_update()


async def take(
    client: ServerClient,
    buckets: Sequence[ServerBucket],
    *,
    group: str,
    version: int,
    flush: bool,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Make the server load all buckets, while `beside` sends each, and end the session. It gives
    itself the version with the last one, and forgets its prefix cache where `flush`. Raises
    RequestRefused where a broadcast failed."""
    for number, bucket in enumerate(buckets, 1):
        last = number == len(buckets)
        ask = partial(
            client.update,
            bucket.names,
            bucket.dtypes,
            bucket.shapes,
            group=group,
            version=version if last else None,
            flush=flush and last,
        )
        await (gather(ask, beside) if beside else ask())
    await client.end_update()
