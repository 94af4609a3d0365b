"""Images of the prompts that an agents actor plays, made ready before their agents start.

Invariant: an attempt's clock does not run while its image is pulled, and an attempt whose image
is not available ends by name, without an agent. Attempts that want one image wait for one pull.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import trio

from asyncrl.agents.endings import AgentFailed, failed
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.sandbox.boxes.box_errors import ImageError
from asyncrl.sandbox.boxes.client_command import ClientCommand
from asyncrl.sandbox.boxes.image_store import ImageStore
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin, image_of, store_of
from asyncrl.sandbox.programs.program import Program, ProgramError, Ran
from asyncrl.sandbox.programs.under_trio import run_in_trio

LOOKS = 4
"""Looks for images at a time."""
SPARE_S = 120.0
"""Seconds that an image may take on top of its pull's: to look for it."""
OWNER = 100
"""Characters of an image in the table of waits."""
READY_S = 60.0
"""Seconds for which an image that was there is not looked for again."""


class _Pull:
    """An image that is made ready, or could not be."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.failure: AgentFailed | None = None


class EntryImages:
    """The images of one actor, of the engine that `origin` names."""

    def __init__(self, origin: BoxOrigin, waits: Waits) -> None:
        self.origin = origin
        self._waits = waits
        self._store: ImageStore | None = store_of(origin)
        self._underway: dict[str, _Pull] = {}
        self._ready: dict[str, float] = {}
        self._looking = trio.CapacityLimiter(LOOKS)
        self._pulling = trio.CapacityLimiter(origin.settings.pulls)

    async def wrong(self, entry: Mapping[str, Any]) -> AgentFailed | None:
        """Have the image of a row here; returns the attempt's end if it is not available."""
        image = image_of(entry, self.origin.settings)
        if self._store is None or not image:  # an agent may name one by itself
            return None
        try:
            with self._waits.on("image", owner=image[:OWNER], deadline_s=self._longest_s):
                return await self._once(self._store, image)
        except WaitExpired as error:
            return failed("image", str(error))

    async def _once(self, store: ImageStore, image: str) -> AgentFailed | None:
        while (underway := self._underway.get(image)) is not None:
            await underway.over.wait()  # bounded by the wait around this
            if underway.failure is not None:
                return underway.failure
        if trio.current_time() < self._ready.get(image, -math.inf):
            return None
        pull = self._underway[image] = _Pull()
        try:
            if not store.is_here(image, await _ran(store.looks(image), self._looking)):
                store.refuse(image, await _ran(store.pulls(image), self._pulling))
            self._keep(image)
        except (ImageError, ProgramError) as error:
            pull.failure = failed("image", str(error))
        finally:
            del self._underway[image]
            pull.over.set()
        return pull.failure

    @property
    def _longest_s(self) -> float:
        return self.origin.settings.pull_s + SPARE_S

    def _keep(self, image: str) -> None:
        now = trio.current_time()
        self._ready = {name: until for name, until in self._ready.items() if until > now}
        self._ready[image] = now + READY_S


async def _ran(program: Program, limiter: trio.CapacityLimiter) -> Ran:
    return await run_in_trio(program, ClientCommand(), limiter)
