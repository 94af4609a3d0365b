"""Feed of a sink: the points of a run's curve that it has not had yet.

Invariant: a version is sent once, however often the run is killed and goes on; one that was sent,
and is then made again after the last checkpoint, stands there as it was made first. Where this
process is killed between sending and noting, what it has just sent is sent twice.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from asyncrl.explain.curve import Point, StepPoint
from asyncrl.explain.curve_reader import CurveReader
from asyncrl.explain.sinks.sink import OpenSink
from asyncrl.explain.sinks.sink_figures import figures_of
from asyncrl.runtime.run_dir import METRICS, RUN_TOML, SINKS


class SinkNote(msgspec.Struct):
    """Note of how far a sink is: the last version of which it has the step, and all of which it has
    the evaluation; `identity` is the sink's name of the run."""

    identity: str = ""
    step: int = 0
    evaluations: set[int] = set()

    def has(self, point: Point) -> bool:
        """True if the point was sent."""
        if isinstance(point, StepPoint):
            return point.version <= self.step
        return point.version in self.evaluations

    def note(self, point: Point) -> None:
        """Note that the point was sent."""
        if isinstance(point, StepPoint):
            self.step = point.version
        else:
            self.evaluations.add(point.version)


class SinkFeed:
    """Sends a run's points to one sink, and notes in RUN/sinks how far it is."""

    def __init__(self, run: Path, name: str, open_sink: OpenSink) -> None:
        """Open the sink. Raises what its library does, OSError, and msgspec.DecodeError where the
        note is damaged."""
        self._path = run / SINKS / f"{name}.json"
        try:
            self._sent = msgspec.json.decode(self._path.read_bytes(), type=SinkNote)
        except FileNotFoundError:
            self._sent = SinkNote()
        self._reader = CurveReader(run / METRICS)
        settings = tomllib.loads((run / RUN_TOML).read_text())
        self._sink = open_sink(run, settings, self._sent.identity)
        self._sent.identity = self._sink.identity
        self._keep()

    def send(self) -> int:
        """Send the points that were added. Returns their number."""
        self._reader.replaced()
        count = 0
        for point in self._reader.added():
            if not self._sent.has(point):
                self._sink.add(point.version, point.at, figures_of(point))
                self._sent.note(point)
                count += 1
        if count:
            self._keep()
        return count

    def close(self) -> None:
        """Send what is left, and close the sink."""
        self.send()
        self._sink.close()

    def _keep(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(self._sent))
        partial.replace(self._path)
