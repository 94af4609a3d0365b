"""Parts of the tests of sandboxes that agents open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.config.schema import SandboxConfig
from asyncrl.sandbox.boxes.box import BoxThing
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin, OpenBoxes

RUN = "0a1b2c3d4e5f"


def settings(**given: Any) -> BoxSettings:
    """Settings of sandboxes, checked as those of run.toml."""
    return BoxSettings.of(SandboxConfig(**given))


def opener(
    folder: Path,
    entry: dict[str, Any] | None = None,
    hook: Callable[[str, BoxThing], None] = lambda event, thing: None,
    **given: Any,
) -> OpenBoxes:
    """The sandboxes of an attempt."""
    origin = BoxOrigin(settings(**given), RUN, str(folder / "scratch"))
    return OpenBoxes(origin, "r12-1", entry or {}, hook)


def directories(folder: Path, **more: Any) -> OpenBoxes:
    """Those of an attempt whose sandboxes are folders."""
    return opener(folder, kind="directory", hosts=("*",), **more)
