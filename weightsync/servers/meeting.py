"""Meetings of the trainer with the rollout actors to whose servers it sends weights, one for each
direct publication. Invariant: no server is asked to join a group that any participant has refused.

    trainer   offers its plan → reads each answer → computes hashes → says go, or why not
    actor     compares the plan with its own → answers what its servers are → waits for go
    all       the servers join the trainer's group (`server_group`), unless they did in this epoch

All of it is in the trainer's store.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Job
from asyncrl.weightsync.servers.server_checksums import Expected, WantedHashes
from asyncrl.weightsync.stores import open_store

T = TypeVar("T")


class ServerOffer(msgspec.Struct, frozen=True):
    """The trainer's plan, and the group that servers are to join: the store's address, the name and
    the backend."""

    plan: Plan
    host: str
    port: int
    name: str
    backend: str


class WantedOfServer(msgspec.Struct, frozen=True):
    """The ranks of a server, the device whose hash it gives, and the hashes that its own are
    compared with; none from a server without checksums."""

    ranks: int
    device: str
    hashes: WantedHashes | None


class MeetingAnswer(msgspec.Struct, frozen=True):
    """A rollout actor's answer: its servers; or an `error`."""

    servers: list[WantedOfServer] = []
    error: str = ""

    @property
    def ranks(self) -> int:
        """Those of all servers together."""
        return sum(server.ranks for server in self.servers)


class ServerGo(msgspec.Struct, frozen=True):
    """The trainer's word to one actor: the processes of the group, the first rank of the actor's
    servers, and the hashes that each of these must give, with a digest of those of all actors; or
    an `error`."""

    world: int = 0
    first: int = 0
    hashes: list[Expected] = []
    digest: int = 0
    error: str = ""


class ServerMeeting:
    """One meeting, that of `publication`. Every method runs in a worker thread."""

    def __init__(self, job: Job, store: str, publication: int) -> None:
        self._job = job
        with job.step(f"looking for the trainer's store at {store}") as left:
            prefix = f"direct/{publication}"
            self._store: Store = PrefixStore(prefix, open_store(store, left))

    # ---- the trainer

    def ask(self, offer: ServerOffer, actors: int) -> list[MeetingAnswer]:
        """The answers of the actors, in rank order."""
        with self._job.step("offering the plan to the engines"):
            self._set("offer", offer)
        return [
            self._get(f"answer/{rank}", MeetingAnswer, f"the engine of rank {rank} to answer")
            for rank in range(1, actors + 1)
        ]

    def go(self, answers: list[ServerGo]) -> None:
        """Tell each actor, in rank order."""
        with self._job.step("answering the engines"):
            for rank, go in enumerate(answers, 1):
                self._set(f"go/{rank}", go)

    # ---- a rollout actor

    def offer(self, plan: Plan, rank: int) -> ServerOffer:
        """The trainer's offer. Raises PlanMismatch, which the trainer is told, too."""
        offer = self._get("offer", ServerOffer, "the trainer to offer its plan")
        if difference := plan.difference(offer.plan, "this engine's model", "the trainer's"):
            self.answer(MeetingAnswer(error=difference), rank)
            raise PlanMismatch(difference)
        return offer

    def answer(self, answer: MeetingAnswer, rank: int) -> None:
        with self._job.step("answering the trainer"):
            self._set(f"answer/{rank}", answer)

    def wait(self, rank: int) -> ServerGo:
        """The trainer's decision. Raises TransferError where a participant refused."""
        go = self._get(f"go/{rank}", ServerGo, "the other engines to answer")
        if go.error:
            raise TransferError(go.error)
        return go

    def _set(self, key: str, value: msgspec.Struct) -> None:
        self._store.set(key, msgspec.json.encode(value).decode())

    def _get(self, key: str, kind: type[T], whom: str) -> T:
        with self._job.step(f"waiting for {whom}") as left:
            self._store.wait([key], left)
            return msgspec.json.decode(bytes(self._store.get(key)), type=kind)
