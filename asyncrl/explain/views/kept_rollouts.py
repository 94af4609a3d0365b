"""The newest rollouts of a run, kept for whoever browses them. Invariant: the number of these
rollouts, and of their tokens, is bounded, whatever the journal has.
"""

from __future__ import annotations

import threading
from collections import deque
from operator import itemgetter
from pathlib import Path

import msgspec

from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.rollout_records import Decode, decoder, since
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.messages import Split

ENDED: dict[Split, int] = {"train": 120, "evaluation": 40}
LIVING = 8
"""Rollouts that are shown: of those that have ended, and of those that live and have tokens."""
TOKENS = 1_000_000
"""Tokens of those of a split, at most."""

OVER = ("trained", "discarded", "buried")
"""States of a rollout that has ended."""


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
            found = _newest(files, 1)
            if len(found) < ENDED["train"]:  # the last checkpoint is new
                found = _newest(files, 2)
            notes: list[str] = []
            decode = decoder(files, notes.append)
            self._found = FoundRollouts(found, decode, notes)
            return self._found

    def known(self) -> FoundRollouts:
        """Those that were found last. Raises ConfigError."""
        return self._found if self._found is not None else self.renewed()


def _newest(files: RunFiles, checkpoints: int) -> list[SeenRollout]:
    """The newest of those since so many checkpoints, the newest first, those that live before
    all."""
    ended = {split: deque[tuple[int, SeenRollout]]() for split in ENDED}  # with when they ended
    tokens = dict.fromkeys(ENDED, 0)
    living = deque[SeenRollout](maxlen=LIVING)
    for number, seen in enumerate(since(files, checkpoints)):
        if seen.status not in OVER:
            if seen.ids:
                living.append(seen)
            continue
        split, kept = seen.split, ended[seen.split]
        kept.append((-number, seen))
        tokens[split] += seen.tokens
        while len(kept) > ENDED[split] or (tokens[split] > TOKENS and len(kept) > 1):
            tokens[split] -= kept.popleft()[1].tokens
    newest = sorted((one for kept in ended.values() for one in kept), key=itemgetter(0))
    return [*reversed(living), *(seen for _, seen in newest)]
