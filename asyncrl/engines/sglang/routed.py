"""Servers behind a router, as one. Invariant: requests go to the router, and all other calls go to
each server directly, since a router need not forward them. The router balances requests by load and
by the prefixes that servers have cached. An abort names a request that one server has, and the
others ignore it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asyncrl.engines.servers.gather import gather
from asyncrl.engines.sglang.sglang_client import SglangClient


class Routed:
    """`servers` (at least one) behind `router`."""

    def __init__(self, router: SglangClient, servers: Sequence[SglangClient]) -> None:
        self._router, self._servers = router, servers
        self.url = router.url
        self.generate = router.generate

    async def ready(self) -> bool:
        """True if each server takes requests."""
        return all(await gather(*(server.ready for server in self._servers)))

    async def abort(self, rid: str) -> None:
        """Abort as a client does; raises the error of a server that does not answer."""
        await gather(*(partial(server.abort, rid) for server in self._servers))
