"""Feed of a sink: the points of a run's curve that it has not had yet.

Invariant: a version is sent once, however often the run is killed and goes on; one that was sent,
and is then made again after the last checkpoint, stands there as it was made first. Where this
process is killed between sending and noting, what it has just sent is sent twice.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncrl.explain.curve import Point, StepPoint
from asyncrl.explain.json_files import read_json, write_json
from asyncrl.explain.run_files import RunFiles, curve_of
from asyncrl.explain.sinks.sink import OpenSink
from asyncrl.explain.sinks.sink_figures import figures_of
from asyncrl.runtime.run_dir import SINKS


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
        files, self._path = RunFiles(run), run / SINKS / f"{name}.json"
        try:
            self._sent = read_json(self._path, SinkNote)
        except FileNotFoundError:
            self._sent = SinkNote()
        self._reader = curve_of(run)
        self._sink = open_sink(run, files.tables, self._sent.identity)
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
        write_json(self._sent, self._path, forced=False)
