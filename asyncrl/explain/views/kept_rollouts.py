"""The newest rollouts of a run, kept for whoever browses them, and those before, which are looked
for as they are asked for. Invariant: the number of rollouts that are held, of their tokens, and the
time of a look are bounded, whatever the journal has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappush, heappushpop
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
"""Tokens of those of a split, at most, and of those that a look finds."""
LOOK = 100
"""Rollouts that a look finds, at most."""
LOOK_S = 1.5
"""Processor time after which a look ends, in seconds."""


class FoundRollouts(msgspec.Struct, frozen=True):
    """The `rollouts`, the newest first, their `texts`, and what is to be said of them. `ends` are
    the events that ended those that have ended. All that ended after event `older` are among these
    (None: all there are); a look begins there, and has `looked` through so many."""

    rollouts: list[SeenRollout]
    texts: RunTexts
    notes: list[str]
    ends: dict[int, int] = {}
    older: int | None = None
    looked: int = 0


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
            found, ends, older = _newest(files)
            notes: list[str] = []
            texts = run_texts(files, notes.append)
            texts = msgspec.structs.replace(texts, expected=self._expected(files))
            self._found = FoundRollouts(found, texts, notes, ends, older)
            return self._found

    def _expected(self, files: RunFiles) -> Expected:
        """Right answers; the task is opened once."""
        if self._answers is None:
            self._answers = expected_answers(files)
        return self._answers

    def known(self) -> FoundRollouts:
        """Those that were found last. Raises ConfigError."""
        return self._found if self._found is not None else self.renewed()

    def one(self, number: int, end: int | None) -> SeenRollout | None:
        """A rollout by its number, and by the event that ended it where it may be an older one;
        None where it is neither. Raises ConfigError."""
        known = self.known()
        found = next((one for one in known.rollouts if one.rollout == number), None)
        if found is not None or end is None:
            return found
        with RunFiles(self._run).journal() as history:
            ended = newest_ended(history, history.forgotten, end - 1, end)
            return next((one for _, one in ended if one.rollout == number), None)

    def look(
        self,
        until: int,
        fits: Callable[[SeenRollout], bool],
        rank: Callable[[SeenRollout], float | None] | None,
    ) -> FoundRollouts:
        """Those that fit of the rollouts that ended by event `until`: the newest, or without end
        those of the highest `rank`, of which None is none. Raises ConfigError."""
        known = self.known()
        best, tokens, looked = list[tuple[float, int, int, SeenRollout]](), 0, 0
        older: int | None = None
        stop = time.thread_time() + LOOK_S
        with RunFiles(self._run).journal() as history:
            for number, one in newest_ended(history, history.forgotten, 0, until):
                # several may end by one event: a look ends between two events
                full = rank is None and (len(best) >= LOOK or tokens > TOKENS)
                if older is not None and number != older and (full or time.thread_time() > stop):
                    break
                older, looked = number, looked + 1
                value = rank(one) if rank is not None else -looked
                if value is None or not fits(one):
                    continue
                tokens += one.tokens
                if rank is not None and (len(best) >= LOOK or tokens > TOKENS):
                    tokens -= heappushpop(best, (value, number, looked, one))[-1].tokens
                else:
                    heappush(best, (value, number, looked, one))
            else:
                number = 0
        every = [
            (one, end) for _, end, _, one in sorted(best, key=lambda item: item[:3], reverse=True)
        ]
        return FoundRollouts(
            [one for one, _ in every],
            known.texts,
            [],
            {one.rollout: end for one, end in every},
            number or None,
            looked,
        )


def _newest(files: RunFiles) -> tuple[list[SeenRollout], dict[int, int], int | None]:
    """The newest rollouts, the newest first, those that live before all; the events that ended
    them; and the event by which the newest ended that is none of them. Raises ConfigError."""
    left, tokens = dict(ENDED), dict.fromkeys(ENDED, TOKENS)
    found, ends = list[SeenRollout](), dict[int, int]()
    older: int | None = None
    with files.journal() as history:
        last = next((number for number, _ in history.backward(history.forgotten)), 0)
        base = max((number for number, _ in history.snapshots()), default=0)
        found_living = living(history) if last - base <= FOLDED else ()
        now = [one for one in found_living if one.ids][-LIVING:]
        for number, seen in islice(newest_ended(history, history.forgotten), SOUGHT):
            if not any(left.values()):
                older = older or number
                break
            if left[seen.split] and tokens[seen.split] > 0:
                found.append(seen)
                ends[seen.rollout] = number
                left[seen.split] -= 1
                tokens[seen.split] -= seen.tokens
            else:
                older = older or number
    return [*reversed(now), *found], ends, older
