"""The coordinator of a supervised run: it drives the trainer by the commands of any run, and asks
for no rollout. Invariant: the commands are a function of the settings, the data and the version
that the trainer holds, so a resumed run needs no journal.

    data → MicroBatch × n → CloseStep → (MeasureLoss × n) → (Save) → … → Save with the model → Drain

The points of all steps up to a checkpoint are on the disk before it is asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from asyncrl.actors.actor_context import ActorContext
from asyncrl.actors.coordinator.lifecycle import GOODBYE_S, Outcome
from asyncrl.actors.sft_progress import SftProgress
from asyncrl.experience.training_message import TrainingMessage
from asyncrl.explain import run_status, summary
from asyncrl.explain.conditions.disks import RESUMES
from asyncrl.explain.curve import read
from asyncrl.explain.curve_file import open_curve
from asyncrl.messages import (
    CloseStep,
    Consumed,
    Drain,
    Drained,
    Draining,
    Hello,
    MeasuredLoss,
    MeasureLoss,
    Message,
    Report,
    RunFinished,
    Save,
    Saved,
    Stepped,
    TrainerReady,
)
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import connect, first_message, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Pulse, WaitExpired
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.runtime.run_dir import COORDINATOR, IMAGES, LAUNCHER, METRICS, STALL, STATUS, SUMMARY
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.sft_data import Sequences, SftData, open_sft_data
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.checkpoint_index import CheckpointError, complete

AHEAD = 4
"""Commands that the trainer has at a time: the next ones are packed while it computes."""
MEASURED_ROWS = 256
"""Held-out rows that are read at a time."""
STATUS_S = 1.0
Flush = Callable[[bool], Awaitable[None]]

logger = logging.getLogger(__name__)


class TrainerLost(Exception):
    """The trainer's link ended before the trainer was drained."""


async def sft_coordinator(context: ActorContext) -> None:
    """The process of the coordinator. It ends when the launcher has heard that the run is over."""
    if context.resume:
        await trio.to_thread.run_sync(_set_damaged_aside, context.run)
    driver = _Driver(context)
    progress, key = driver.progress, context.key
    try:
        async with trio.open_nursery() as nursery:
            address = UnixAddress(context.run / COORDINATOR)
            await nursery.start(partial(serve, address, key, driver.attend, refused=lambda _: None))
            launcher = await connect(UnixAddress(context.run / LAUNCHER), key)
            await launcher.send(Hello("coordinator", 0, context.incarnation, context.pid))
            nursery.start_soon(driver.hear, launcher)
            nursery.start_soon(_tell, driver, launcher, context.run / STATUS)
            outcome = await driver.conduct(launcher)
            progress.phase, progress.ok, progress.reason = "stop", outcome.ok, outcome.reason
            _keep(driver.status, context.run / STATUS)
            _sum_up(progress, context.run)
            await launcher.send(RunFinished(*outcome))
            with trio.move_on_after(GOODBYE_S):
                await driver.launcher_gone.wait()
            nursery.cancel_scope.cancel()
    finally:
        if progress.ok is None:
            progress.reason = "the coordinator failed; its log says why"
            _sum_up(progress, context.run)


def _set_damaged_aside(run: Path) -> None:
    """Leave the trainer no checkpoint to start from that was changed since it was written."""
    for checkpoint in reversed(complete(run)):
        try:
            checkpoint.verify()
            return
        except CheckpointError as error:
            logger.warning("%s; it is set aside", error)
            checkpoint.set_aside()


async def _tell(driver: _Driver, launcher: Link, path: Path) -> None:
    """Tell the launcher and the disk every second how the run stands."""
    while True:
        await launcher.send(driver.progress.update())
        await trio.to_thread.run_sync(_keep, driver.status, path)
        await trio.sleep(STATUS_S)


def _keep(status: run_status.RunStatus, path: Path) -> None:
    """Write the status. On a full disk the run continues without it."""
    try:
        run_status.write(status, path)
    except OSError as error:
        logger.warning("the run's status is not written: %s", error)


def _sum_up(progress: SftProgress, run: Path) -> None:
    """Write the run's summary; a full disk goes without."""
    try:
        summary.write(progress.summary(), run / SUMMARY)
    except OSError as error:
        logger.warning("the run's summary is not written: %s", error)


class _Driver:
    """Gives the trainer its commands, and handles its answers."""

    def __init__(self, context: ActorContext) -> None:
        self.config, self.run = context.config, context.run
        self.progress = SftProgress(context.config)
        self.launcher_gone = trio.Event()
        self._context = context
        self._waits, self._changed = own_waits(), Pulse()
        self._link: Link | None = None
        self._ready: int | None = None  # the version with which the trainer came
        self._lost = self._drained = self._stopped = False
        self._work = trio.CancelScope()  # what ends when the run is to stop
        self._under_way = 0  # commands without an answer, but for a save
        self._steps = deque[tuple[int, float]]()  # rows and epochs of the steps that are under way
        self._measured: tuple[float, int] = (0.0, 0)
        self._saved: int | None = None
        self._saving = False

    @property
    def status(self) -> run_status.RunStatus:
        """The state of the run at this moment."""
        return self.progress.status(self._waits.table())

    # --------------------------------------------------------------------------------------- links

    async def hear(self, launcher: Link) -> None:
        """Heed the launcher until it hangs up."""
        try:
            async for message, _ in launcher:
                if isinstance(message, Drain):
                    self._stopped = True
                    self._work.cancel()
        except (LinkError, EndOfStream):
            pass
        self.launcher_gone.set()

    async def attend(self, link: Link) -> None:
        """Serve the trainer's link until it ends."""
        hello = await first_message(link, Hello)
        if (hello.role, hello.index) != ("trainer", 0) or self._link is not None:
            raise LinkError("malformed", "a supervised run has one trainer, which connects once")
        self._link, self.progress.trainer = link, (hello.incarnation, hello.pid)
        try:
            async for message, _ in link:
                self.progress.last_message = trio.current_time()
                self._heard(message)
                self._changed.set()
        finally:
            self._lost, self.progress.trainer = not self._drained, None
            self._changed.set()

    def _heard(self, message: Message) -> None:
        """Handle one message of the trainer. Raises LinkError for one that it may not send."""
        match message:
            case Report():
                self.progress.report = message
            case TrainerReady(version) if self._ready is None:
                self._ready = self._saved = self.progress.version = version
            case Consumed() if self._under_way:
                self._under_way -= 1
            case MeasuredLoss(_, nats, tokens) if self._under_way:
                self._under_way -= 1
                self._measured = self._measured[0] + nats, self._measured[1] + tokens
            case Stepped() if self._steps:
                self._under_way -= 1
                self.progress.stepped(message, *self._steps.popleft())
            case Saved(version, _, error) if self._saving:
                self._saving = False
                self.progress.unwritten_why = error
                self.progress.unwritten = self.progress.unwritten + 1 if error else 0
                if not error:
                    self._saved = version
            case Drained():
                self._drained = True
            case _:
                raise LinkError(
                    "malformed", f"a trainer of a supervised run sent {type(message).__name__}"
                )

    async def _command(self, message: Message, *buffers: bytes) -> None:
        """Give the trainer a command, once it has few enough. A command is sent whole."""
        await self._until("an answer", partial(self._has_at_most, AHEAD - 1))
        self._under_way += 1
        await self._send(message, *buffers)

    def _has_at_most(self, commands: int) -> bool:
        return self._under_way <= commands

    async def _send(self, message: Message, *buffers: bytes) -> None:
        assert self._link is not None
        with trio.CancelScope(shield=True):
            try:
                await self._link.send(message, *buffers)
            except (LinkError, EndOfStream) as error:
                raise TrainerLost from error

    async def _until(self, name: str, done: Callable[[], bool], limit_s: float = 0.0) -> None:
        """Wait for the trainer, for `supervision.compute_s` if nothing else is said. Raises
        WaitExpired and TrainerLost."""
        limit_s = limit_s or self.config.supervision.compute_s
        with self._waits.on(name, owner="trainer-0", deadline_s=limit_s):
            while not done():
                if self._lost:
                    raise TrainerLost
                await self._changed.wait()

    async def _settled(self) -> None:
        """Wait until the trainer has answered every command but a save."""
        for most in reversed(range(self._under_way)):
            await self._until("an answer", partial(self._has_at_most, most))

    # ------------------------------------------------------------------------------------- conduct

    async def conduct(self, launcher: Link) -> Outcome:
        """Run to the end, and drain. Raises TaskError for data that cannot be learned."""
        try:
            if (outcome := await self._conduct(launcher)) is None:
                with trio.move_on_after(self.config.supervision.grace_s):
                    await self._drain(launcher)
        except TrainerLost:
            return Outcome(False, "the trainer was lost; its log says why", "lost")
        except WaitExpired as late:
            _keep(self.status, self.run / STALL)
            reason = f"the trainer did not answer in time: {late}"
            return Outcome(False, reason, "stalled" if self._ready is not None else None)
        return outcome or Outcome(True, "stopped early, as asked; continue with --resume")

    def _stoppable(self) -> trio.CancelScope:
        """A scope that ends when the run is to stop."""
        self._work = trio.CancelScope()
        if self._stopped:
            self._work.cancel()
        return self._work

    async def _conduct(self, launcher: Link) -> Outcome | None:
        """Run to the end; None if the run is to stop before."""
        with self._stoppable() as reading:
            data = await self._read()
            start_s = self.config.supervision.start_s
            await self._until("the trainer", lambda: self._ready is not None, start_s)
        if self._ready is None or reading.cancelled_caught:
            return None
        version, path = self._ready, self.run / METRICS
        async with open_curve(path, version, version) as (curve, flush):
            points = list(read(path)) if path.exists() else []
            self.progress.opened(curve, points)
            self.progress.phase = "run"
            outcome = None
            with self._stoppable():
                outcome = await self._train(data, flush)
                await self._drain(launcher)
            if outcome is None:
                with trio.move_on_after(self.config.supervision.grace_s):
                    await self._settled()
                    if self._saved != self.progress.version:
                        await self._save(flush, last=False)
            return outcome

    async def _read(self) -> SftData:
        """Read the data. Raises TaskError."""

        def doing(done: int, of: int) -> None:
            self.progress.read = done, of

        chat, initial = self.config.task.chat, self._context.initial

        def read() -> SftData:
            images = KeptImages(self.run / IMAGES, int(self.config.run.images_gb * 1e9))
            tokenizer = Tokenizer(initial, chat=chat)
            return open_sft_data(self.config, tokenizer, doing, images.keep)

        data = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        self.progress.read = None
        return data

    async def _train(self, data: SftData, flush: Flush) -> Outcome:
        """Take all steps behind the version that the trainer has."""
        train, begun = self.config.train, self.progress.version
        steps, rows = train.steps, data.train.rows
        await self._measure(data, begun, last=begun >= steps)
        seen = 0
        for step, numbers in enumerate(data.step_rows()):
            if step >= steps:
                break
            seen += len(numbers)
            if step < begun:  # it is in the checkpoint
                continue
            for packed in await self._packed(data, step, rows, numbers):
                await self._command(packed.message, *packed.buffers)
            self._steps.append((len(numbers), seen / len(rows)))
            await self._command(CloseStep(step))
            await flush(False)
            made = step + 1
            await self._measure(data, made, last=made == steps)
            every = train.checkpoint_every
            if made != steps and every and made % every == 0:
                await self._settled()
                await self._until("the last checkpoint", lambda: not self._saving, self._save_s)
                await self._save(flush, last=False, written=False)
        await self._settled()
        await self._save(flush, last=True)
        if why := self.progress.unwritten_why:
            return Outcome(False, f"the last checkpoint was not written: {why}, {RESUMES}")
        return Outcome(True, f"all {steps} steps are done")

    async def _packed(
        self, data: SftData, step: int, rows: Sequence[Sequences], numbers: Sequence[int]
    ) -> list[TrainingMessage]:
        """Micro-batches of these rows, which are read and tokenized beside the loop."""
        return await trio.to_thread.run_sync(
            lambda: list(data.messages(step, [rows[number] for number in numbers])),
            abandon_on_cancel=True,
        )

    async def _measure(self, data: SftData, version: int, *, last: bool) -> None:
        """Measure the held-out loss, where it is due and not known."""
        every, held = self.config.train.eval_every, data.held_out.rows
        due = last or not version or (every and version % every == 0)
        if not (held and due) or version in self.progress.curve.figures:
            return
        await self._settled()
        self.progress.evaluating, self._measured = version, (0.0, 0)
        for first in range(0, len(held), MEASURED_ROWS):
            some = range(first, min(first + MEASURED_ROWS, len(held)))
            for packed in await self._packed(data, 0, held, some):
                message = MeasureLoss(packed.message.index, packed.message.samples)
                await self._command(message, *packed.buffers)
        await self._settled()
        self.progress.measured(version, *self._measured, len(held))
        self.progress.evaluating = None

    @property
    def _save_s(self) -> float:
        return self.config.supervision.checkpoint_s

    async def _save(self, flush: Flush, *, last: bool, written: bool = True) -> None:
        """Have the trainer's version saved, with the model for use elsewhere if it is the last one,
        and wait until that is `written`."""
        await self._until("the last checkpoint", lambda: not self._saving, self._save_s)
        await flush(True)
        known = self._saved == self.progress.version and self.progress.version > 0
        self._saving = True
        await self._send(Save(0, ("alone" if known else "too") if last else "no"))
        if written:
            await self._until("the checkpoint", lambda: not self._saving, self._save_s)

    async def _drain(self, launcher: Link) -> None:
        """Send the trainer home."""
        self.progress.phase = "drain"
        await launcher.send(Draining())
        if self._link is None or self._lost:
            return
        await self._send(Drain())
        await self._until("the drained trainer", lambda: self._drained)
