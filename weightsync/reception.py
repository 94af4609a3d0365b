"""A rollout actor's part in publications. Invariant: every Prepare has one answer, and the engine
decodes only with committed weights.

    staged     Prepare    receive beside decoding          → Prepared
               Commit     the engine loads it              → Committed
               Abort      forget it

    direct     Prepare    join the group, compare plans    → Joined
               Quiesce    the engine pauses                → Quiesced
                          receive into its weights         → Prepared: checksums of what is there
               Commit     the engine resumes with them     → Committed
               Abort      the engine resumes as before: nothing was sent
               Resend     the engine stays paused until another Prepare has brought all weights

An engine is paused from the first byte that is written into its weights until all of them are
there, verified and committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import trio

from asyncrl.engines.protocol import AveragingEngine, CanaryEngine, DirectEngine, Engine
from asyncrl.messages import (
    Abort,
    Commit,
    Committed,
    Joined,
    Message,
    Prepare,
    Prepared,
    Quiesce,
    Quiesced,
    Resend,
)
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.transport import Received, Receiver

Say = Callable[[Message], Awaitable[None]]


class Reception(ABC):
    """The one publication that an engine takes part in, or has received and not committed; answers
    go to `say`."""

    def __init__(self, engine: Engine, receiver: Receiver, say: Say) -> None:
        self._engine, self._receiver, self._say = engine, receiver, say
        self._publication = -1
        self._scope = trio.CancelScope()

    def begin(self, message: Prepare) -> trio.CancelScope:
        """Make `message` the publication that is taken part in, at once, so that an abort that is
        read right after it finds it. Returns the scope for `take_part`."""
        self._scope.cancel()
        self._publication, self._scope = message.publication, trio.CancelScope()
        return self._scope

    @abstractmethod
    async def take_part(self, message: Prepare, scope: trio.CancelScope) -> None:
        """Receive the weights, and answer, whatever ends it."""

    async def commit(self, message: Commit) -> None:
        """Decode with what was received, and was verified by the coordinator."""
        if message.publication != self._publication or not self._complete:
            return
        if isinstance(self._engine, CanaryEngine):
            self._engine.expect(message.version, message.canary)
        pause = await self._adopt(message)
        await self._say(Committed(message.publication, message.version, pause))

    @property
    @abstractmethod
    def _complete(self) -> bool:
        """True if all was received and nothing of it is committed."""

    @abstractmethod
    async def _adopt(self, message: Commit) -> float:
        """Load it into the engine, once. Returns the seconds that decoding was paused."""

    @abstractmethod
    def hear(self, message: Quiesce | Abort | Resend) -> None:
        """Do as the coordinator says of the publication meanwhile."""


class StagedReception(Reception):
    """Weights are received beside the engine's own."""

    _staged: Received | None = None

    def begin(self, message: Prepare) -> trio.CancelScope:
        self._staged = None
        return super().begin(message)

    async def take_part(self, message: Prepare, scope: trio.CancelScope) -> None:
        checksums, error = list[int](), "aborted"
        with scope:
            await trio.lowlevel.checkpoint()
            try:
                received = await self._receiver.receive(message, {})
                if message.publication == self._publication:
                    self._staged, checksums, error = received, received.checksums, ""
            except TransferError as failure:
                error = str(failure)
        await self._say(Prepared(message.publication, checksums, error))

    @property
    def _complete(self) -> bool:
        return self._staged is not None

    async def _adopt(self, message: Commit) -> float:
        staged, self._staged = self._staged, None
        assert staged is not None, "it is complete"
        if staged.average is None:
            return await self._engine.load(message.version, staged.weights, pin=message.pin)
        assert isinstance(self._engine, AveragingEngine), "others are refused before a run"
        kept_s = await self._engine.keep(message.version, staged.average)
        return kept_s + await self._engine.load(message.version, staged.weights)

    def hear(self, message: Quiesce | Abort | Resend) -> None:
        if not isinstance(message, Abort):
            raise ValueError(f"a staged publication has no {type(message).__name__}")
        self._scope.cancel()
        self._publication, self._staged = -1, None


class DirectReception(Reception):
    """Weights are received into the engine's own, or into its servers."""

    _complete = False
    _torn = False
    _aborted = -1

    def __init__(self, engine: Engine, receiver: Receiver, say: Say) -> None:
        super().__init__(engine, receiver, say)
        assert isinstance(engine, DirectEngine), "others are refused before a run"
        self._direct: DirectEngine = engine
        self._still = trio.Event()

    def begin(self, message: Prepare) -> trio.CancelScope:
        self._complete, self._still = False, trio.Event()
        return super().begin(message)

    async def take_part(self, message: Prepare, scope: trio.CancelScope) -> None:
        checksums, error, still = list[int](), "aborted", self._still
        with scope:
            await trio.lowlevel.checkpoint()
            try:
                await self._receiver.join(message)
                await self._say(Joined(message.publication))
                await still.wait()
                own = await self._direct.quiesce()
                await self._say(Quiesced(message.publication))
                received = await self._receiver.receive(message, own)
                if message.publication == self._publication:
                    checksums, error, self._complete = received.checksums, "", True
            except TransferError as failure:
                error = str(failure)
        if message.publication == self._aborted:  # it may have paused since
            self._go_on()
        await self._say(Prepared(message.publication, checksums, error))

    async def _adopt(self, message: Commit) -> float:
        self._complete = False
        pause = await self._direct.adopt(message.version, pin=message.pin)
        self._torn = False
        return pause

    def hear(self, message: Quiesce | Abort | Resend) -> None:
        if message.publication != self._publication:
            return
        if isinstance(message, Quiesce):  # every member has joined
            self._still.set()
            return
        self._scope.cancel()
        self._publication, self._complete = -1, False
        if isinstance(message, Resend):  # all will be sent again; these may be of two versions
            self._torn = True
        else:  # nothing was sent
            self._aborted = message.publication
            self._go_on()

    def _go_on(self) -> None:
        if not self._torn:
            self._direct.resume()


RECEPTIONS: dict[str, type[Reception]] = {"staged": StagedReception, "direct": DirectReception}
"""By `publication.path`."""
