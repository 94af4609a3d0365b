"""The protocol of every way by which weights travel. Invariant: `join` changes no weights and goes
on beside decoding; whatever fails before `send` leaves every engine as it was.

    trainer   WeightSource.gather, Sender.join, Sender.send    Sent
    engine    Receiver.join, Receiver.receive            Received

    transport      weights go                                      settings
    staged         into memory beside the engine's own             publication.path = "staged"
    direct         into the engine's own                           "direct"
    into_servers   into all servers of all engines                 "direct", servers decode

Staged weights of an engine that has servers take one step more, from the rollout actor into its
own server. Its two ways are `Sender`s of a `Load` (`asyncrl.weightsync.servers`): by broadcast, and
from disk.

A kind of engine names its transport (`Capabilities.direct_transport`), so neither the trainer nor
a rollout actor asks for an engine by its name. Nothing here needs torch to be imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.config.plugins import Registry, derived_from
from asyncrl.config.published import phase_s
from asyncrl.engines.protocol import Engine
from asyncrl.messages import Prepare, Publish

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from asyncrl.weightsync.buckets import Plan
    from asyncrl.weightsync.handoff import Handoff

Order = TypeVar("Order", contravariant=True)


class Sent(NamedTuple):
    """A finished sending: one checksum a bucket (or a digest of all of it), the bytes that each
    receiver was sent, and the canary of the weights, empty where no engine compares one."""

    checksums: list[int]
    sent_bytes: int
    canary: list[float]


class Received(NamedTuple):
    """A finished reception: checksums as of `Sent`, those of an average last. `weights` by name;
    None where they are in their place already. `average`: None where none was sent."""

    checksums: list[int]
    weights: Mapping[str, Tensor] | None = None
    average: Mapping[str, Tensor] | None = None


class Sender(Protocol[Order]):
    """The sending end."""

    async def join(self, order: Order, /) -> None:
        """Do all that can be done while engines decode: meet, compare plans, write files. Raises
        TransferError."""
        ...

    async def send(self, order: Order, /) -> Sent:
        """Send all weights of `order`. Raises TransferError."""
        ...


class Publisher(Sender[Publish], Protocol):
    """The trainer's end. It is joined before it is told to send where the publication is direct;
    else `send` joins."""

    @property
    def store(self) -> str:
        """The address at which receivers find the trainer."""
        ...


class Receiver(Protocol):
    """A rollout actor's end."""

    async def join(self, message: Prepare) -> None:
        """Meet the others and compare plans, while the engine decodes. Raises TransferError."""
        ...

    async def receive(self, message: Prepare, own: Mapping[str, Tensor]) -> Received:
        """Receive one version; a direct one into `own`, the weights of a paused engine. Raises
        TransferError."""
        ...


class Gathered(NamedTuple):
    """A version's weights in the plan's order and types, which do not change while they are sent,
    the average where it was asked for, and the canary."""

    weights: Iterable[tuple[str, Tensor]]
    average: Iterable[tuple[str, Tensor]] | None
    canary: list[float]


class WeightSource(Protocol):
    """The trainer's weights."""

    @property
    def plan(self) -> Plan: ...

    @property
    def sharded(self) -> bool:
        """True if several ranks have a part of them each."""
        ...

    async def gather(self, average: bool = False) -> Gathered:
        """The weights of the present version, whole."""
        ...

    async def hand_over(self, handoff: Handoff, *, average: bool, beside: bool) -> None:
        """Fill `handoff` with each tensor of several ranks' weights, or of their average, when it
        is gathered, so that the model is nowhere whole; `beside` training, some at a time."""
        ...

    async def canary(self) -> list[float]:
        """The canary of several ranks' weights; empty where no engine compares one."""
        ...


@dataclass(frozen=True)
class TrainerSide:
    """Everything that the trainer's end is opened with. `store`: the file in which processes of one
    machine meet. `model` is the trainer's, for the names of its checkpoint."""

    config: Config
    store: Path
    source: WeightSource
    model: PreTrainedModel

    @property
    def deadline_s(self) -> float:
        """Seconds for each phase of a publication."""
        return phase_s(self.config.publication.deadline_s, self.source.plan.total_bytes)


@dataclass(frozen=True)
class EngineSide:
    """Everything that a rollout actor's end is opened with. `plan`: of what this actor is sent.
    `merge` makes whole weights of adapters that were received; None where whole weights are
    sent."""

    config: Config
    plan: Plan
    engine: Engine
    merge: Callable[[Received], Received] | None = None

    @property
    def deadline_s(self) -> float:
        """Seconds for each phase of a publication."""
        return phase_s(self.config.publication.deadline_s, self.plan.total_bytes)


class Transport(ABC):
    """One way from the trainer to engines: both ends of it."""

    @classmethod
    @abstractmethod
    def open_sender(cls, side: TrainerSide) -> AbstractAsyncContextManager[Publisher]:
        """The trainer's end, for the length of a block. Raises TransferError."""

    @classmethod
    @abstractmethod
    def open_receiver(cls, side: EngineSide) -> AbstractAsyncContextManager[Receiver]:
        """A rollout actor's end, for the length of a block."""


TRANSPORTS: Registry[type[Transport]] = Registry(
    "transport",
    {
        "staged": "asyncrl.weightsync.staged:Staged",
        "direct": "asyncrl.weightsync.direct:Direct",
        "into_servers": "asyncrl.weightsync.servers.into_servers:IntoServers",
    },
    derived_from(Transport),
)
"""Names that `Capabilities.direct_transport` may have, and "staged", which every engine takes."""


def transport_of(config: Config) -> type[Transport]:
    """The transport of a run. Raises ConfigError."""
    if config.publication.path == "staged":
        return TRANSPORTS.find("staged")
    return TRANSPORTS.find(capabilities(config.engine.kind).direct_transport)
