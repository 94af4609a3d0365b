"""The newest rollouts of a run, kept for whoever browses them. Invariant: the number of these
rollouts, and of their tokens, is bounded, whatever the journal has.
"""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import msgspec

from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.newest_rollouts import living, newest_ended
from asyncrl.explain.views.rollout_records import decoder
from asyncrl.explain.views.seen_messages import Decode
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.messages import Split

ENDED: dict[Split, int] = {"train": 120, "evaluation": 40}
"""Rollouts of each split that are shown, of those that have ended."""
LOOKED_AT = 4 * sum(ENDED.values())
"""Rollouts that have ended, among which those are looked for."""
LIVING = 8
"""Rollouts that are shown of those that live and have tokens."""
TOKENS = 1_000_000
"""Tokens of those of a split, at most."""


class FoundRollouts(msgspec.Struct, frozen=True):
    """The `rollouts`, the newest first, how to `decode` their tokens, and what is to be said of
    them."""

    rollouts: list[SeenRollout]
    decode: Decode
    notes: list[str]


class KeptRollouts:
    """The newest rollouts of the run in a directory. Several threads may ask at a time."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._turn = threading.Lock()
        self._found: FoundRollouts | None = None

    def renewed(self) -> FoundRollouts:
        """Those of now. Raises ConfigError where the journal cannot be read."""
        with self._turn:
            files = RunFiles(self._run)
            notes: list[str] = []
            decode = decoder(files, notes.append)
            self._found = FoundRollouts(_newest(files), decode, notes)
            return self._found

    def known(self) -> FoundRollouts:
        """Those that were found last. Raises ConfigError."""
        return self._found if self._found is not None else self.renewed()


def _newest(files: RunFiles) -> list[SeenRollout]:
    """Those that live before all that have ended, each the newest first."""
    left, tokens = dict(ENDED), dict.fromkeys(ENDED, 0)
    with files.journal() as history:
        found = [one for one in living(history) if one.ids][-LIVING:][::-1]
        ended = newest_ended(history, history.forgotten)
        for _, one in islice(ended, LOOKED_AT):
            split = one.split
            if not left[split] or (tokens[split] and tokens[split] + one.tokens > TOKENS):
                left[split] = 0
                if not any(left.values()):
                    break
                continue
            left[split] -= 1
            tokens[split] += one.tokens
            found.append(one)
    return found
