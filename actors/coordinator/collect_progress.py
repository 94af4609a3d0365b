"""Collects the long tasks that are running now. It only reads."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.lifecycle import Phase
from asyncrl.actors.coordinator.underway import Found
from asyncrl.explain.diagnosis import listed


def under_way(parts: Components) -> Iterator[Found]:
    """All tasks that may take long."""
    stepping, lifecycle = parts.stepping, parts.lifecycle
    if lifecycle.phase is Phase.INIT:
        expected, missing = len(lifecycle.expected), lifecycle.missing
        note = f"waiting for {listed(missing)}"
        yield Found("starting", "starting actors", expected - len(missing), expected, note)
    if stepping is None or lifecycle.ending:
        return
    if stepping.redoing:
        begun, last = stepping.began_with, parts.store.experience.closed
        what = f"redoing the steps since checkpoint {begun}"
        yield Found("redoing", what, stepping.version - begun, max(1, last - begun))
    elif lifecycle.phase is Phase.READY:
        yield Found("publishing", f"publishing version {stepping.version} to every engine")
    if (version := parts.evaluation.running) is not None:
        answered, asked = parts.evaluation.answered
        averaged = parts.config.evaluation.weights == "ema"
        what = f"the average of weights at version {version}" if averaged else f"version {version}"
        yield Found("evaluating", f"evaluating {what}", answered, asked)
    if stepping.saving is not None:
        yield Found("saving", f"saving version {stepping.saving}")
