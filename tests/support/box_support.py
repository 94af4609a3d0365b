"""Parts of the tests of sandboxes that agents open."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asyncrl.config.schema import SandboxConfig
from asyncrl.sandbox.boxes.box import BoxThing
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin, OpenBoxes

RUN = "0a1b2c3d4e5f"
REAL_IMAGE = "busybox"
"""An image that a real engine may have; no test pulls one."""


def real_engine() -> str:
    """The client of an engine of this machine that has REAL_IMAGE; "" if there is none."""
    for client in filter(shutil.which, ("docker", "podman")):
        asked = [client, "image", "inspect", REAL_IMAGE]
        if not subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode:
            return client
    return ""


def settings(**given: Any) -> BoxSettings:
    """Settings of sandboxes, checked as those of run.toml."""
    return BoxSettings.of(SandboxConfig(**given))


def opener(
    folder: Path,
    entry: dict[str, Any] | None = None,
    told: Callable[[str, BoxThing], None] = lambda event, thing: None,
    **given: Any,
) -> OpenBoxes:
    """The sandboxes of an attempt. `told` hears of each before it is created, and after its
    end."""

    @asynccontextmanager
    async def noted(thing: BoxThing) -> AsyncIterator[None]:
        told("opens", thing)
        try:
            yield
        finally:
            told("gone", thing)

    origin = BoxOrigin(settings(**given), RUN, str(folder / "scratch"))
    return OpenBoxes(origin, "r12-1", entry or {}, noted)


def directories(folder: Path, **more: Any) -> OpenBoxes:
    """Those of an attempt whose sandboxes are folders."""
    return opener(folder, kind="directory", hosts=("*",), **more)
