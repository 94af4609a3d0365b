"""Either end of the link between the launcher and the agent of a machine. Invariant: sending never
waits, and an end that has received nothing for SILENCE_S considers the other lost."""

from __future__ import annotations

from collections.abc import Callable

import trio

from asyncrl.messages import Alive, Message
from asyncrl.runtime.ipc.errors import LinkBroken
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Pulse
from asyncrl.runtime.processes.standstill import Patience

BEAT_S = 2.0
"""Seconds between two `Alive`."""
SILENCE_S = 15.0
"""Seconds of silence after which either end considers the other lost."""
UNREAD = 4096
"""Messages that may wait for the other end to read them."""


class MachineLink:
    """One end. `lost` is called with each reason for which the other end is considered lost."""

    def __init__(self, link: Link, lost: Callable[[str], None]) -> None:
        self._link, self._lost = link, lost
        self._silence = Patience()
        self._send, self._unsent = trio.open_memory_channel[tuple[Message, bytes]](UNREAD)
        self._sent = Pulse()
        self._queued = self._written = 0

    async def sent(self) -> None:
        """Wait until all that is queued now is with the other end's system."""
        due = self._queued
        while self._written < due:
            await self._sent.wait()

    def send(self, message: Message, contents: bytes = b"") -> None:
        """Queue a message."""
        try:
            self._send.send_nowait((message, contents))
            self._queued += 1
        except trio.WouldBlock:
            self._lost(f"left {UNREAD} messages unread")

    async def receive(self) -> tuple[Message, tuple[memoryview, ...]]:
        """The next message other than `Alive`. Raises as `Link.receive`."""
        while True:
            message, buffers = await self._link.receive()
            self._silence.deadline = trio.current_time() + SILENCE_S
            if not isinstance(message, Alive):
                return message, buffers

    async def keep(self) -> None:
        """Send what is queued, and `Alive`, and watch for silence, until cancelled."""
        self._silence.deadline = trio.current_time() + SILENCE_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._beat)
            await self._silence.over()
            self._lost(f"sent nothing for {SILENCE_S:g} s")

    async def _write(self) -> None:
        async for message, contents in self._unsent:
            try:
                await self._link.send(message, *([contents] if contents else []))
            except LinkBroken:
                return  # the reader gets the error, too
            self._written += 1
            self._sent.set()

    async def _beat(self) -> None:
        while True:
            self.send(Alive())
            await trio.sleep(BEAT_S)
