"""The trainer actor: a nursery around a learner.

Invariant: commands that compute are carried out one at a time, in the order in which they came.

    MicroBatch      accumulate its gradients                       → Consumed
    ScoreProximal   score tokens under the present weights, and keep the scores → ScoredProximal
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

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]: ...

    async def score_proximal(
        self, message: ScoreProximal, buffers: Sequence[memoryview]
    ) -> None: ...

    async def step(self) -> dict[str, float]: ...

    async def copy(self, cursor: int) -> Write:
        """Copy the state for a checkpoint. What is returned writes the copy, whatever the learner
        does meanwhile; no other copy is made before it has."""
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
    coordinator, whose watchdog ends a run that stands still."""
    weights = trio.Lock()  # held while the weights must not change
    engines_still = dict[int, trio.Event]()  # by publication

    async def publish(
        message: Publish,
        *,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        checksums, canary, sent_bytes, error = list[int](), list[float](), 0, "aborted"
        version, start = learner.version, trio.current_time()
        with trio.CancelScope() as scope:
            if weights.locked():  # by a step; an abort is read meanwhile
                task_status.started(scope)
                await weights.acquire()
            else:  # before a command that is read next can change them
                weights.acquire_nowait()
                task_status.started(scope)
            version, start = learner.version, trio.current_time()
            try:
                if message.direct:
                    still = engines_still[message.publication] = trio.Event()
                    await sender.join(message)
                    await link.send(Joined(message.publication))
                    await still.wait()
                sent = await sender.send(message)
                checksums, canary = sent.checksums, sent.canary
                sent_bytes, error = sent.sent_bytes, ""
            except TransferError as failure:
                error = str(failure)
            finally:
                engines_still.pop(message.publication, None)
                weights.release()
        seconds = trio.current_time() - start
        await link.send(
            Transferred(message.publication, version, checksums, sent_bytes, seconds, error, canary)
        )

    written = trio.Event()  # the answer about the last checkpoint is sent
    written.set()

    async def write(version: int, copy: Write) -> None:
        try:
            with reporter.saving():
                saved = Saved(version, str(await copy()))
        except CheckpointError as error:
            saved = Saved(version, "", str(error))
        await link.send(saved)
        written.set()

    async def last_written() -> None:
        with waits.until("the watchdog restarts the trainer", "checkpoint", owner="trainer"):
            await written.wait()

    send, commands = trio.open_memory_channel[tuple[Message, tuple[memoryview, ...]]](COMMANDS)

    async def read() -> None:
        """Take publications at once, beside whatever is computed, and queue the rest. This never
        waits for what is computed. Raises trio.WouldBlock if the coordinator gives more commands
        than may wait."""
        transfer_scope = trio.CancelScope()
        async with send:
            async for message, buffers in link:
                match message:
                    case Publish():
                        transfer_scope = await nursery.start(publish, message)
                    case Transfer(publication) if publication in engines_still:
                        engines_still[publication].set()
                    case Transfer():
                        pass  # given up meanwhile
                    case Abort() | Resend():
                        transfer_scope.cancel()
                    case _:
                        send.send_nowait((message, buffers))
                        if isinstance(message, Drain):
                            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
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
                case CloseStep():
                    async with weights:
                        metrics = await learner.step()
                    seconds = trio.current_time() - start
                    await link.send(Stepped(learner.version, seconds, metrics, learner.counts))
                case Save(cursor):
                    await last_written()
                    written = trio.Event()
                    nursery.start_soon(write, learner.version, await learner.copy(cursor))
                case Drain():
                    break
                case _:
                    raise ValueError(f"a trainer does not understand {type(message).__name__}")
        reporter.busy_with(None)
        await last_written()
        await link.send(Drained())  # before a report can be cut off amid its frame
        nursery.cancel_scope.cancel()
