"""The trainer's direct publications into servers, as the trainer actor drives them. Invariant: what
is computed of a version's weights (the servers' hashes, the canary) is computed before any server
stands still.

    join    gather the weights → canary → meet: plans, hashes, the group
    send    broadcast them
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from asyncrl.ipc.messages import Publish
from weightsync.buckets import Plan
from weightsync.errors import TransferError
from weightsync.server_sender import ServerSender


class ToPublish(NamedTuple):
    """A version's weights by name, which do not change while they are sent, and its canary."""

    weights: dict[str, Tensor]
    canary: list[float]


class SentToServers(NamedTuple):
    """A finished sending, for the coordinator."""

    checksums: list[int]
    sent_bytes: int
    canary: list[float]


class ComputesForServers(Protocol):
    """An engine's way to compute what its servers are compared with."""

    def __call__(self, wanted: bytes, weights: dict[str, Tensor]) -> bytes: ...


class TransferToServers:
    """A `TransferProtocol` (`trainer_actor`). `gather` gives the weights of the learner's
    version."""

    def __init__(
        self,
        sender: ServerSender,
        plan: Plan,
        gather: Callable[[], Awaitable[ToPublish]],
        compute: ComputesForServers,
        deadline_s: float,
    ) -> None:
        self._sender, self._plan, self._gather = sender, plan, gather
        self._compute, self._deadline_s = compute, deadline_s
        self._joined: tuple[int, ToPublish, int] | None = None

    @property
    def store(self) -> str:
        return self._sender.store

    async def join(self, message: Publish) -> None:
        """Do all that can be done while engines decode."""
        self._joined = None
        found = await self._gather()

        def compute(wanted: list[bytes]) -> list[bytes]:
            # most want the same: who does not has another server, or has seen less of it
            once = {each: self._compute(each, found.weights) for each in dict.fromkeys(wanted)}
            return [once[each] for each in wanted]

        digest = await self._sender.join(
            message.publication,
            message.epoch,
            message.world - 1,
            self._plan,
            compute,
            self._deadline_s,
        )
        self._joined = message.publication, found, digest

    async def send(self, message: Publish) -> SentToServers:
        """Broadcast what was gathered."""
        joined, self._joined = self._joined, None
        if joined is None or joined[0] != message.publication:
            raise TransferError(f"publication {message.publication} was not joined")
        _, found, digest = joined
        sent_bytes = await self._sender.send(found.weights, self._deadline_s)
        return SentToServers([digest], sent_bytes, found.canary)
