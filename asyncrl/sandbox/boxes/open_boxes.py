"""Sandboxes of one attempt at an episode: opened with names of the attempt, and each ended.

Invariant: a sandbox is created and ended within its note, so what a killed attempt left can be
ended. One that was not created whole is ended too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry, derived_from, file_names
from asyncrl.config.sandbox_hosts import NO_PROVIDER
from asyncrl.sandbox.boxes.box import Box, BoxProvider, BoxSpec, BoxThing, refused_hosts
from asyncrl.sandbox.boxes.box_errors import BoxError, ImageError
from asyncrl.sandbox.boxes.box_names import box_name, wrong_image
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.image_store import ImageStore

MOST = 8
"""Sandboxes that an attempt may have open at a time."""
SETTLE_S = 2.0
"""Seconds after which a sandbox that was not created whole is looked for again."""
END_S = 90.0
"""Seconds that the end of one may take."""

_PACKAGE = "asyncrl.sandbox.boxes.providers"
PROVIDERS: Registry[type[BoxProvider]] = Registry(
    "sandbox",
    {
        kind: f"{_PACKAGE}.{kind}:{kind.capitalize()}Boxes"
        for kind in file_names("sandbox/boxes/providers")
    },
    derived_from(BoxProvider),
)
"""The providers, a file each. That of a run is imported alone: others need what it has no use
for."""

BoxNote = Callable[[BoxThing], AbstractAsyncContextManager[object]]
"""Notes a sandbox for a block, in which it is created and ended."""

logger = logging.getLogger(__name__)


class BoxOrigin(msgspec.Struct, frozen=True):
    """The origin of a run's sandboxes: its settings, its id, and its folder for directories."""

    settings: BoxSettings
    run: str
    scratch: str


def provider_of(settings: BoxSettings, scratch: Path) -> BoxProvider:
    """The provider that the settings name: a file of the folder, or a user's own class. Raises
    ConfigError."""
    if settings.kind == NO_PROVIDER:
        raise ConfigError("sandbox.kind is none: set it to where agents' sandboxes are, as docker.")
    return PROVIDERS.find(settings.kind)(settings, scratch)


def store_of(origin: BoxOrigin) -> ImageStore | None:
    """The images that the provider has on this machine; None if it has none here."""
    return provider_of(origin.settings, Path(origin.scratch)).images()


def refuse_without_provider(settings: BoxSettings, scratch: Path) -> str:
    """Raise ConfigError if this machine has not what the settings of sandboxes need. Return a
    sentence on limits that it does not keep, or "". It may block for two minutes, and creates no
    sandbox."""
    if settings.kind == NO_PROVIDER:
        return ""
    provider = provider_of(settings, scratch)
    if settings.image and (wrong := wrong_image(settings.image)):
        raise ConfigError(f"sandbox.image: {wrong}.")
    if wrong := provider.unenforceable(settings.hosts):
        raise ConfigError(f"sandbox.hosts cannot be kept: {wrong}.")
    if wrong := provider.missing():
        raise ConfigError(
            f"sandbox.kind is {settings.kind}, and this machine does not have it: {wrong}."
        )
    return provider.unbounded()


def image_of(entry: Mapping[str, Any], settings: BoxSettings) -> str:
    """The image of a row of the data: its own, or that of the settings; "" if there is neither."""
    image = entry.get(settings.image_key)
    return settings.image if image is None or image == "" else str(image)


def end_now(settings: BoxSettings, scratch: Path, name: str) -> None:
    """End the sandbox of a name, which may be gone. It blocks, for END_S at most. Raises BoxError
    if it may live on."""
    asyncio.run(_ended(provider_of(settings, scratch), name, SETTLE_S))


class OpenBoxes:
    """Opens the sandboxes of the attempt whose session is called `attempt`."""

    def __init__(
        self,
        origin: BoxOrigin,
        attempt: str,
        entry: Mapping[str, Any],
        noted: BoxNote,
    ) -> None:
        self._origin, self._attempt, self._entry, self._noted = origin, attempt, entry, noted
        self._provider = provider_of(origin.settings, Path(origin.scratch))
        self._opened, self._open = 0, 0

    @asynccontextmanager
    async def open(self, image: str = "", hosts: Sequence[str] | None = None) -> AsyncIterator[Box]:
        """Open a sandbox for the block: of this image, the row's, or the settings', in this order;
        it reaches these hosts, or all of `sandbox.hosts`. Raises BoxError."""
        settings = self._origin.settings
        allowed = settings.hosts if hosts is None else tuple(hosts)
        if wrong := refused_hosts(allowed, settings.hosts):
            raise BoxError(f"a sandbox was asked for with a host that it may not reach: {wrong}")
        if wrong := self._provider.unenforceable(allowed):
            raise BoxError(f"a sandbox cannot be held to its hosts: {wrong}")
        chosen = image or image_of(self._entry, settings)
        if self._provider.thing != "directory" and (wrong := wrong_image(chosen)):
            raise ImageError(wrong if chosen else "no image: neither the row nor sandbox.image has")
        if self._open >= MOST:
            raise BoxError(f"the attempt has {MOST} sandboxes open, and may have no more")
        name = box_name(self._origin.run, self._attempt, self._opened)
        self._opened, self._open = self._opened + 1, self._open + 1
        try:
            async with self._created(
                BoxSpec(name=name, run=self._origin.run, image=chosen, hosts=allowed)
            ) as box:
                yield box
        finally:
            self._open -= 1

    @asynccontextmanager
    async def _created(self, spec: BoxSpec) -> AsyncIterator[Box]:
        settle_s = SETTLE_S
        async with self._noted(BoxThing(self._provider.thing, spec.name, self._provider.named)):
            try:
                backend = await self._provider.create(spec)
                settle_s = 0.0
                yield Box(spec.name, backend)
            except ImageError:  # then nothing was asked to create it
                settle_s = 0.0
                raise
            finally:
                await self._end(spec.name, settle_s)

    async def _end(self, name: str, settle_s: float) -> None:
        """End a sandbox, and again after `settle_s`, if it is not 0. The end of its note tries
        again, and keeps the note of one that may live on; the agent's own error is not replaced."""
        ending = asyncio.ensure_future(_ended(self._provider, name, settle_s))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])  # it takes END_S at most
            if (error := ending.exception()) is not None:
                logger.warning("%s", error)
            raise
        except BoxError as error:
            logger.warning("%s", error)


async def _ended(provider: BoxProvider, name: str, settle_s: float) -> None:
    """End a sandbox. Where its creation failed or was stopped, the engine or the provider may have
    the order by then, so it is looked for once more. Raises BoxError."""
    try:
        async with asyncio.timeout(END_S):
            await provider.end(name)
            if settle_s:
                await asyncio.sleep(settle_s)
                await provider.end(name)
    except TimeoutError:
        raise BoxError(
            f"the sandbox {name} may live on: it did not end within {END_S:g} s"
        ) from None
