"""The trainer actor: a nursery around a learner.

Invariant: commands that compute are carried out one at a time, in the order in which they came.

    MicroBatch      accumulate its gradients                       → Consumed
    ScoreProximal   score tokens under the present weights, and keep the scores → ScoredProximal
    MeasureLoss     measure the loss of held-out samples           → MeasuredLoss
    CloseStep       one optimizer step, one version more           → Stepped
    Publish         send the present weights                       → Transferred
                    (a direct one: join → Joined; send at Transfer)
    Save            copy the present state, and write the copy     → Saved

Weights are sent beside accumulation, never beside an optimizer step. A copy for a checkpoint is
written beside all commands that follow, one at a time. The actor waits only for commands, and at
its end for the checkpoint; the seconds of these waits are the trainer's idle time. What it is at,
and since when, is in its reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import trio

from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.reporting import Reporter
from asyncrl.messages import (
    Abort,
    CloseStep,
    Command,
    Consumed,
    Drain,
    Drained,
    Joined,
    LastRank,
    MeasuredLoss,
    MeasureLoss,
    Message,
    MicroBatch,
    Publish,
    Resend,
    Save,
    Saved,
    ScoredProximal,
    ScoreProximal,
    Stepped,
    TokenCount,
    TrainerReady,
    Transfer,
    Transferred,
)
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.training.checkpoint_index import CheckpointError
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.transport import Publisher

COMMANDS = 64
"""Commands that may wait here. The coordinator has fewer outstanding (`TrainerCommands`)."""


COMPUTED: dict[type[Message], Command] = {
    MicroBatch: "micro-batch",
    ScoreProximal: "proximal scores",
    MeasureLoss: "held-out loss",
    CloseStep: "optimizer step",
    Save: "checkpoint",
}
"""The work that each message is to a trainer."""
Write = Callable[[], Awaitable[Path]]
"""Writes the copy of a learner's state as a checkpoint, and returns its path. Raises
CheckpointError where that is not possible."""


class LearnerProtocol(Protocol):
    """A learner, as a trainer actor drives it. Its methods are called one at a time, and let links
    go on while they compute."""

    @property
    def version(self) -> int: ...

    @property
    def counts(self) -> list[TokenCount]:
        """Counts of the micro-batches that were held until the last step was closed."""
        ...

    @property
    def last_rank(self) -> LastRank | None:
        """The rank that others waited for in the last step; None if there is one rank."""
        ...

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]: ...

    async def score_proximal(
        self, message: ScoreProximal, buffers: Sequence[memoryview]
    ) -> None: ...

    async def measure(
        self, message: MeasureLoss, buffers: Sequence[memoryview]
    ) -> tuple[float, int]:
        """The loss of held-out samples: nats, and the tokens that they are of."""
        ...

    async def step(self) -> dict[str, float]: ...

    async def copy(self, save: Save) -> Write:
        """Copy the state that is to be saved. What is returned writes the copy, whatever the
        learner does meanwhile; no other copy is made before it has."""
        ...


async def trainer_actor(
    link: Link,
    learner: LearnerProtocol,
    sender: Publisher,
    waits: Waits,
    reporter: Reporter,
) -> None:
    """Serve the coordinator until it drains this actor. Raises CoordinatorLost if the link ends
    before. The wait for a command ends at the latest with the link, which ends with the
    coordinator, whose watchdog ends a run that makes no progress."""
    publications = _Publications(link, learner, sender)
    checkpoints = _Checkpoints(link, learner, waits, reporter)
    send, commands = trio.open_memory_channel[_Queued](COMMANDS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, link, publications, send, nursery)
        nursery.start_soon(reporter.run, link)
        await link.send(TrainerReady(learner.version, sender.store))
        while True:
            reporter.busy_with(None)
            with waits.until("the coordinator's link ends", "command", owner="trainer"):
                try:
                    message, buffers = await commands.receive()
                except trio.EndOfChannel:
                    raise CoordinatorLost("the trainer") from None
            start = trio.current_time()
            reporter.busy_with(COMPUTED.get(type(message)))
            match message:
                case MicroBatch(step, index):
                    counts = await learner.accumulate(message, buffers)
                    await link.send(Consumed(step, index, counts, trio.current_time() - start))
                case ScoreProximal(step):
                    await learner.score_proximal(message, buffers)
                    await link.send(ScoredProximal(step))
                case MeasureLoss(index):
                    await link.send(MeasuredLoss(index, *await learner.measure(message, buffers)))
                case CloseStep():
                    async with publications.weights:
                        metrics = await learner.step()
                    seconds = trio.current_time() - start
                    counts, last = learner.counts, learner.last_rank
                    await link.send(Stepped(learner.version, seconds, metrics, counts, last))
                case Save():
                    await checkpoints.save(message, nursery)
                case Drain():
                    break
                case _:
                    raise ValueError(f"a trainer does not understand {type(message).__name__}")
        reporter.busy_with(None)
        await checkpoints.last_written()
        await link.send(Drained())  # before a report can be cut off amid its frame
        nursery.cancel_scope.cancel()


_Queued = tuple[Message, tuple[memoryview, ...]]


async def _read(
    link: Link,
    publications: _Publications,
    send: trio.MemorySendChannel[_Queued],
    nursery: trio.Nursery,
) -> None:
    """Take publications at once, beside whatever is computed, and queue the rest. This never waits
    for what is computed. Raises trio.WouldBlock if the coordinator gives more commands than may
    wait."""
    transfer_scope = trio.CancelScope()
    async with send:
        async for message, buffers in link:
            match message:
                case Publish():
                    transfer_scope = await nursery.start(publications.publish, message)
                case Transfer(publication):
                    publications.transfer(publication)
                case Abort() | Resend():
                    transfer_scope.cancel()
                case _:
                    send.send_nowait((message, buffers))
                    if isinstance(message, Drain):
                        return


class _Publications:
    """Sends the weights, beside accumulation."""

    def __init__(self, link: Link, learner: LearnerProtocol, sender: Publisher) -> None:
        self._link = link
        self._learner = learner
        self._sender = sender
        self.weights = trio.Lock()
        """Held while the weights must not change."""
        self._paused = dict[int, trio.Event]()
        """Set when every engine is paused, by direct publication."""

    async def publish(
        self,
        message: Publish,
        *,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send the present weights, and report. `started` gives the scope that aborts it."""
        checksums, canary, sent_bytes, error = list[int](), list[float](), 0, "aborted"
        version, start = self._learner.version, trio.current_time()
        with trio.CancelScope() as scope:
            if self.weights.locked():  # by a step; an abort is read meanwhile
                task_status.started(scope)
                await self.weights.acquire()
            else:  # before a command that is read next can change them
                self.weights.acquire_nowait()
                task_status.started(scope)
            version, start = self._learner.version, trio.current_time()
            try:
                if message.direct:
                    paused = self._paused[message.publication] = trio.Event()
                    await self._sender.join(message)
                    await self._link.send(Joined(message.publication))
                    await paused.wait()
                sent = await self._sender.send(message)
                checksums, canary = sent.checksums, sent.canary
                sent_bytes, error = sent.sent_bytes, ""
            except TransferError as failure:
                error = str(failure)
            finally:
                self._paused.pop(message.publication, None)
                self.weights.release()
        seconds = trio.current_time() - start
        await self._link.send(
            Transferred(message.publication, version, checksums, sent_bytes, seconds, error, canary)
        )

    def transfer(self, publication: int) -> None:
        """Send a direct publication now that every engine is paused, unless it was given up."""
        if publication in self._paused:
            self._paused[publication].set()


class _Checkpoints:
    """Writes one checkpoint at a time, beside all commands that follow."""

    def __init__(
        self, link: Link, learner: LearnerProtocol, waits: Waits, reporter: Reporter
    ) -> None:
        self._link = link
        self._learner = learner
        self._waits = waits
        self._reporter = reporter
        self._written = trio.Event()  # the answer about the last one is sent
        self._written.set()

    async def save(self, save: Save, nursery: trio.Nursery) -> None:
        """Copy the present state once the last checkpoint is written, and have the copy written."""
        await self.last_written()
        self._written = trio.Event()
        nursery.start_soon(self._write, self._learner.version, await self._learner.copy(save))

    async def last_written(self) -> None:
        """Wait until the last checkpoint is written, or has failed."""
        with self._waits.until("the watchdog restarts the trainer", "checkpoint", owner="trainer"):
            await self._written.wait()

    async def _write(self, version: int, copy: Write) -> None:
        try:
            with self._reporter.saving():
                saved = Saved(version, str(await copy()))
        except CheckpointError as error:
            saved = Saved(version, "", str(error))
        await self._link.send(saved)
        self._written.set()
