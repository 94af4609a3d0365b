"""The ends of one actor, and which of them is the last: a run is not served by a restart that ends
as the one before. Pure.

Invariant: an actor that a signal ended (SIGKILL, the kernel's for memory, a crash of native code),
or that names a cause outside of itself, is judged by its restarts alone.

    exit status 2                     it refuses what it was given: final
    an error, equal to the last one   final, if its role did nothing in between
    anything else                     not final

Errors are equal if their last words name the same exception, and differ in numbers alone
(`asyncrl.runtime.reasons`).
"""

from __future__ import annotations

from asyncrl.config.errors import BAD_INPUT
from asyncrl.runtime.processes.process import last_words, names_exception
from asyncrl.runtime.reasons import cause_of, same


class RepeatedEnds:
    """The ends of one actor, in order."""

    def __init__(self) -> None:
        self._last = ""
        self._done: int | None = None  # what its role had done after that end

    def progressed(self, done: int) -> None:
        """Note a report of what the actor's role has done so far. The first one after an end tells
        what was done until then."""
        if self._done is None:
            self._done = done
        elif done > self._done:
            self._last, self._done = "", done

    def final(self, code: int, output: str) -> bool:
        """True if the actor, which ended with `code` and this last output, would end so again."""
        words = last_words(output)
        error = code > 0 and names_exception(words) and cause_of(words) != "outside"
        reason = same(words) if error else ""
        repeated = bool(reason) and reason == self._last
        self._last, self._done = reason, None
        return code == BAD_INPUT or repeated
