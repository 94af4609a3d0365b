"""The version of each token of one request. Invariant: its output is contiguous, with each token
once, under the version that sampled it.

A server reports a version with each event, the newest of the event's tokens, and the version of
each token only when the request ends. An event's version holds for all of its tokens if the event
before had the same, or if it has one token. Otherwise the event may straddle a change of weights:
it is held back, with all later ones, until the end of the request.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.server_types import ServerSpan, StreamEvent
from asyncrl.words import whole


class SpanError(Exception):
    """Raised where a server's versions are missing or contradict each other; its text is the end of
    a sentence that begins with the request."""


class TokenRun(msgspec.Struct, frozen=True):
    """Output tokens from index `start`, all sampled under `version`: `ids` int32 and `behaviour`
    float32, of equal length of at least 1."""

    version: int
    start: int
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]


class _KnownRun(msgspec.Struct):
    """The tokens up to `end`, from the end of the entry before, were returned under `version`."""

    version: int
    end: int


class SpanStream:
    """The tokens of one request, sent while the server served `version`."""

    def __init__(self, version: int) -> None:
        self.version = version
        """The newest version that was reported."""
        self._known: list[_KnownRun] = []
        self._held: list[StreamEvent] = []

    @property
    def held(self) -> int:
        """Number of tokens whose version is not known yet."""
        return sum(len(event.ids) for event in self._held)

    def feed(self, event: StreamEvent) -> list[TokenRun]:
        """The tokens whose version is certain now; all of them after the last event. Raises
        SpanError, and returns no tokens then."""
        before, self.version = self.version, _number(event.version)
        if event.ending is not None and event.spans is not None:
            return self._all(event, event.spans)
        if self._held or (self.version != before and len(event.ids) > 1):
            self._held.append(event)
            if event.ending is not None and self.held:
                raise SpanError(f"ended without a version for its last {self.held} tokens")
            return []
        return self._give(
            [TokenRun(self.version, event.start, event.ids, event.behaviour)]
            if len(event.ids)
            else []
        )

    def _all(self, event: StreamEvent, spans: tuple[ServerSpan, ...]) -> list[TokenRun]:
        """Release all held tokens, by spans that must tile the output and agree with earlier
        results."""
        total = event.start + len(event.ids)
        spans = tuple(span for span in spans if span.end > span.start)
        ends = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != ends[:-1] or ends[-1] != total:
            raise SpanError(
                f"ended with versions of tokens {[(span.start, span.end) for span in spans]}, "
                f"which do not tile its {total}"
            )
        position = 0
        for known in self._known:
            for span in spans:
                if (
                    span.start < known.end
                    and position < span.end
                    and _number(span.version) != known.version
                ):
                    raise SpanError(
                        f"ended with version {span.version} for tokens {span.start} to "
                        f"{span.end}, for which it reported {known.version} before"
                    )
            position = known.end
        rest = [*self._held, event]
        self._held = []
        ids, behaviour = (
            np.concatenate([e.ids for e in rest]),
            np.concatenate([e.behaviour for e in rest]),
        )
        runs = []
        for span in spans:
            if span.end > position:
                start = max(span.start, position)
                part = slice(start - position, span.end - position)
                runs.append(TokenRun(_number(span.version), start, ids[part], behaviour[part]))
        return self._give(runs)

    def _give(self, runs: list[TokenRun]) -> list[TokenRun]:
        for run in runs:
            end = run.start + len(run.ids)
            if self._known and self._known[-1].version == run.version:
                self._known[-1].end = end
            else:
                self._known.append(_KnownRun(run.version, end))
        return runs


def _number(version: str) -> int:
    """The number of a version: ours are decimal, and a server calls its weights `default` before
    its first one."""
    if (number := whole(version)) is None:
        raise SpanError(f"was sampled with weights called {version!r}, which this run did not load")
    return number
