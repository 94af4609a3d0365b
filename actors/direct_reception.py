"""Direct publications as a rollout actor takes part in them. Invariant: from the first byte that is
written into the engine's weights it stands still, until all of them are there, verified, and
committed.

    Prepare    join the group, compare plans           → Joined
    Quiesce    the engine stands still                 → Quiesced
               receive into its weights                → Prepared: checksums of what is there
    Commit     the engine goes on with them            → Committed
    Abort      the engine goes on as before: nothing was sent
    Resend     the engine stands still until another Prepare has brought everything
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import trio

from asyncrl.engines.protocol import CanaryEngine, DirectEngine
from asyncrl.ipc.messages import (
    Commit,
    Committed,
    Joined,
    Message,
    Prepare,
    Prepared,
    Quiesced,
)
from weightsync.errors import TransferError

if TYPE_CHECKING:
    import torch

    from asyncrl.config.schema import PublicationConfig
    from asyncrl.engines.protocol import Engine

Say = Callable[[Message], Awaitable[None]]


class DirectReceive(Protocol):
    """An engine's side of direct transfers."""

    async def join(self, message: Prepare) -> None:
        """Join the group of a publication. Raises TransferError."""
        ...

    async def receive(self, message: Prepare, weights: Mapping[str, torch.Tensor]) -> list[int]:
        """Receive into the engine's own weights; checksums of what is there then. Raises
        TransferError."""
        ...


class DirectReception:
    """The one direct publication that this actor takes part in."""

    def __init__(self, engine: DirectEngine, direct: DirectReceive, say: Say) -> None:
        self._engine, self._direct, self._say = engine, direct, say
        self._publication = -1
        self._aborted = -1
        self._complete = False
        self._torn = False
        self._still = trio.Event()
        self._scope = trio.CancelScope()

    def begin(self, message: Prepare) -> trio.CancelScope:
        """Make `message` the publication that is taken part in, at once, so that an abort that is
        read right after it finds it. Returns the scope for `take_part`."""
        self._scope.cancel()
        self._publication, self._complete = message.publication, False
        self._still, self._scope = trio.Event(), trio.CancelScope()
        return self._scope

    async def take_part(self, message: Prepare, scope: trio.CancelScope) -> None:
        """Join, stand still and receive. Every Prepare has one answer in the end, whatever ends
        it."""
        checksums, error, still = list[int](), "aborted", self._still
        with scope:
            await trio.lowlevel.checkpoint()
            try:
                await self._direct.join(message)
                await self._say(Joined(message.publication))
                await still.wait()
                weights = await self._engine.quiesce()
                await self._say(Quiesced(message.publication))
                received = await self._direct.receive(message, weights)
                if message.publication == self._publication:
                    checksums, error, self._complete = received, "", True
            except TransferError as failure:
                error = str(failure)
        if message.publication == self._aborted:  # it may have come to stand still since
            self._go_on()
        await self._say(Prepared(message.publication, checksums, error))

    def quiesce(self, publication: int) -> None:
        """Everybody has joined."""
        if publication == self._publication:
            self._still.set()

    async def commit(self, message: Commit) -> None:
        """Decode with what was received, and was verified by the coordinator."""
        if message.publication == self._publication and self._complete:
            self._complete = False
            if isinstance(self._engine, CanaryEngine):
                self._engine.expect(message.version, message.canary)
            pause = await self._engine.adopt(message.version, pin=message.pin)
            self._torn = False
            await self._say(Committed(message.publication, message.version, pause))

    def abort(self, publication: int) -> None:
        """Nothing was sent: go on as before."""
        if self._give_up(publication):
            self._aborted = publication
            self._go_on()

    def resend(self, publication: int) -> None:
        """All weights will be sent again; these may be of two versions."""
        if self._give_up(publication):
            self._torn = True

    def _go_on(self) -> None:
        if not self._torn:
            self._engine.resume()

    def _give_up(self, publication: int) -> bool:
        """End the publication that is taken part in; False if it is another one."""
        if publication != self._publication:
            return False
        self._scope.cancel()
        self._publication, self._complete = -1, False
        return True


def reception_of_servers(
    engine: Engine, parameters: Mapping[str, torch.Tensor], publication: PublicationConfig
) -> DirectReceive:
    """The side of an engine whose weights are in servers. What it imports no other engine needs."""
    from actors.engines.sglang_direct import ServerReception
    from asyncrl.engines.sglang.direct_engine import DirectSglangEngine

    assert isinstance(engine, DirectSglangEngine), "no other has servers"
    return ServerReception(engine, parameters, publication.bucket_bytes, publication.deadline_s)
