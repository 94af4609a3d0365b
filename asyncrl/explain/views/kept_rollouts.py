"""The newest rollouts of a run, kept for whoever browses them. Invariant: the number of these
rollouts, and of their tokens, is bounded, whatever the journal has.
"""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import msgspec

from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.expected_answers import Expected, expected_answers
from asyncrl.explain.views.newest_rollouts import living, newest_ended
from asyncrl.explain.views.run_texts import RunTexts, run_texts
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.messages import Split

ENDED: dict[Split, int] = {"train": 120, "evaluation": 40}
LIVING = 8
"""Rollouts that are shown: of those that have ended, and of those that live and have tokens."""
FOLDED = 100_000
"""Events since the last checkpoint from which those that live are found, at most."""
SOUGHT = 2000
"""Rollouts at the end of the journal among which these are looked for."""
TOKENS = 1_000_000
"""Tokens of those of a split, at most."""


class FoundRollouts(msgspec.Struct, frozen=True):
    """The `rollouts`, the newest first, their `texts`, and what is to be said of them."""

    rollouts: list[SeenRollout]
    texts: RunTexts
    notes: list[str]


class KeptRollouts:
    """The newest rollouts of the run in a directory. Several threads may ask at a time."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._turn = threading.Lock()
        self._found: FoundRollouts | None = None
        self._answers: Expected | None = None

    def renewed(self) -> FoundRollouts:
        """Those of now. Raises ConfigError where the journal cannot be read."""
        with self._turn:
            files = RunFiles(self._run)
            found = _newest(files)
            notes: list[str] = []
            texts = run_texts(files, notes.append)
            texts = msgspec.structs.replace(texts, expected=self._expected(files))
            self._found = FoundRollouts(found, texts, notes)
            return self._found

    def _expected(self, files: RunFiles) -> Expected:
        """Right answers; the task is opened once."""
        if self._answers is None:
            self._answers = expected_answers(files)
        return self._answers

    def known(self) -> FoundRollouts:
        """Those that were found last. Raises ConfigError."""
        return self._found if self._found is not None else self.renewed()


def _newest(files: RunFiles) -> list[SeenRollout]:
    """The newest rollouts, the newest first, those that live before all. Raises ConfigError."""
    left, tokens = dict(ENDED), dict.fromkeys(ENDED, TOKENS)
    found = list[SeenRollout]()
    with files.journal() as history:
        last = next((number for number, _ in history.backward(history.forgotten)), 0)
        base = max((number for number, _ in history.snapshots()), default=0)
        found_living = living(history) if last - base <= FOLDED else ()
        now = [one for one in found_living if one.ids][-LIVING:]
        for _, seen in islice(newest_ended(history, history.forgotten), SOUGHT):
            if left[seen.split] and tokens[seen.split] > 0:
                found.append(seen)
                left[seen.split] -= 1
                tokens[seen.split] -= seen.tokens
            if not any(left.values()):
                break
    return [*reversed(now), *found]
