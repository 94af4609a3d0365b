"""Weights that the trainer sends straight into one server. Invariant: from `pause` on the server
is paused until `adopt` has found it to hold the trainer's weights, or `resume` says that nothing
was sent.

    wanted     the hashes that the trainer is to compute, in the server's own layout
    join       the server's ranks meet the trainer and the other servers
    pause      the server is paused from here on, in an update session
    receive    an update call for each bucket, beside the trainer's broadcast → session ended →
               the server's checksums against the trainer's
    adopt      from here it decodes; its log-probabilities of the canary against the trainer's
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines import canary
from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_types import Mode
from asyncrl.weightsync.servers import session
from asyncrl.weightsync.servers.meeting import WantedOfServer
from asyncrl.weightsync.servers.server_checksums import Checks, Expected
from asyncrl.weightsync.servers.server_group import ServerBucket
from asyncrl.weightsync.servers.weight_loader import HalfLoaded, acquainted, verify

if TYPE_CHECKING:
    from torch import Tensor


class ServerPlace(msgspec.Struct, frozen=True):
    """A server's place in a group: the address of the trainer's store, the group's processes, the
    rank of the server's first one, its name and backend."""

    host: str
    port: int
    world: int
    first: int
    name: str
    backend: str


class DirectServer:
    """One server. `tensors` are what may be sent, by the names of its checkpoint (their numbers are
    not read), of a model of the class `architecture`; the rest is as of `WeightLoader`."""

    def __init__(
        self,
        client: ServerClient,
        tensors: Mapping[str, Tensor],
        architecture: str,
        text: NDArray[np.int32],
        *,
        mode: Mode,
        tolerance: float,
        deadline_s: float,
    ) -> None:
        self._client, self.tensors, self._architecture = client, tensors, architecture
        self._text, self._mode, self._tolerance = text, mode, tolerance
        self._deadline_s = deadline_s
        self._checks: Checks | None = None
        self._acquainted = False
        self._group = ""

    async def wanted(self) -> WantedOfServer:
        """The hashes that the next `receive` needs."""
        if not self._acquainted:
            self._checks = await acquainted(self._client, self._architecture, self.tensors)
            self._acquainted = True
        server = await self._client.server_info()
        if server.dp_size != 1:
            raise HalfLoaded(f"{self._client.url} has data-parallel ranks, which cannot be updated")
        hashes = None if self._checks is None else self._checks.wanted
        return WantedOfServer(server.tp_size, server.device, hashes)

    async def join(self, meeting: ServerPlace) -> None:
        """Make the server's ranks join the others, unless they have already."""
        if meeting.name == self._group:
            return
        if self._group:
            old, self._group = self._group, ""
            await self._forget(old)
        await self._client.init_group(
            meeting.host,
            meeting.port,
            meeting.world,
            meeting.name,
            meeting.backend,
            first=meeting.first,
        )
        self._group = meeting.name

    async def _forget(self, name: str) -> None:
        """Make the server leave a group, of which it need not know."""
        try:
            await self._client.destroy_group(name)
        except RequestRefused:
            return

    async def pause(self) -> None:
        """Pause the server."""
        await self._client.pause(self._mode)
        await session.begin(self._client)

    async def receive(
        self, buckets: Sequence[ServerBucket], version: int, hashes: Expected
    ) -> None:
        """Take what the trainer broadcasts, bucket by bucket, and compare all of it. Raises
        RequestRefused where a broadcast failed, WrongWeights, and trio's TooSlowError."""
        with trio.fail_after(self._deadline_s):
            flush = self._mode != "in_place"
            await session.take(
                self._client, buckets, group=self._group, version=version, flush=flush
            )
            if self._checks is not None:
                await verify(self._client, self._checks, hashes)

    async def adopt(self, version: int, reference: Sequence[float]) -> None:
        """Go on with what was received and verified. Raises HalfLoaded where the server computes
        something else than the trainer."""
        with trio.fail_after(self._deadline_s):
            await self._client.resume()
            scores = await self._client.score(self._text, extra_key=uuid.uuid4().hex)
        try:
            canary.compare(version, reference, scores, self._tolerance)
        except canary.CanaryDied as died:
            raise HalfLoaded(f"{self._client.url} can no longer be used: {died}") from died

    async def resume(self) -> None:
        """Go on as before: nothing was sent."""
        try:
            await self._client.end_update()
        except RequestRefused:
            pass  # it was paused, and no session begun
        finally:
            await self._client.resume()
