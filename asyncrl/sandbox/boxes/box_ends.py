"""Ends of remote sandboxes by the provider of a run, for notes of what was opened."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from asyncrl.config.sandbox_hosts import NO_PROVIDER
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.open_boxes import end_now, provider_of
from asyncrl.sandbox.enders import EndFailed, RemoteEnd
from asyncrl.sandbox.opened import SCRATCH


def remote_ends(settings: BoxSettings, run: Path) -> Mapping[str, RemoteEnd]:
    """The end of the run's remote sandboxes, by the name that their notes have; empty if it has
    none. Raises ConfigError."""
    scratch = run / SCRATCH
    if settings.kind == NO_PROVIDER or provider_of(settings, scratch).thing != "remote":
        return {}
    return {provider_of(settings, scratch).named: partial(_end, settings, scratch)}


def _end(settings: BoxSettings, scratch: Path, name: str) -> bool:
    """End the sandbox of a name. Raises EndFailed. `end_now` has looked twice, so it is never told
    that there was none."""
    try:
        end_now(settings, scratch, name)
    except BoxError as error:
        raise EndFailed(str(error)) from None
    return True
