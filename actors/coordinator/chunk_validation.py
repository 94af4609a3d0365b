"""What no engine of this run can have sampled. Invariant: a chunk with a defect is nobody's tokens:
none of it is kept, booked or counted.

A frame is looked at as a whole, and chunk by chunk only where something in it is wrong. The rollout
of a bad chunk is buried under the defect, whatever it held: with the bad chunk its engine may have
lost more than it says. The good chunks of the same frame stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from asyncrl.experience.rollout import ImpossibleEvent, Rollout
from asyncrl.ipc.link import LinkError
from asyncrl.ipc.messages import ChunkHead

SUSPECT = 3
"""Bad chunks that cost an engine its place. One may be a flipped bit, and costs a rollout; whoever
sends three is broken, and what else it samples is not to be believed. A frame whose arrays do not
fit counts once: nobody knows which of its chunks is bad."""

Defect = Literal[
    "unequal",
    "vocabulary",
    "nan",
    "future_version",
    "negative_version",
    "wrong_version",
    "wrong_start",
    "over_budget",
]
"""Why a rollout is buried for what came of it: arrays that do not fit the heads, an id outside of
the vocabulary, a log-probability that is not finite, a version that is not published, none at all,
or not the one that the rollout is pinned to, tokens that do not follow those that there are, or
more of them than were asked for."""


def fits(heads: Sequence[ChunkHead], ids: memoryview, behaviour: memoryview) -> bool:
    """Whether both arrays are as long as the heads say together."""
    counts = [head.count for head in heads]
    return min(counts, default=0) >= 0 and len(ids) == len(behaviour) == 4 * sum(counts)


def defects(
    heads: Sequence[ChunkHead],
    ids: memoryview,
    behaviour: memoryview,
    *,
    vocabulary: int,
    published: int | None,
) -> dict[int, Defect]:
    """The bad chunks of a frame whose arrays fit, by their place in `heads`, as far as that can be
    told without the rollouts. `published` is the newest version that may have sampled anything."""
    if not len(ids):
        return {}
    tokens, scores = (
        np.frombuffer(ids, np.uint32),
        np.frombuffer(behaviour, np.float32),
    )  # a negative id is a large one
    newest = -1 if published is None else published
    finite = np.isfinite(scores)
    if (
        tokens.max() < vocabulary
        and finite.all()
        and max([head.version for head in heads]) <= newest
    ):
        return {}
    known = tokens < vocabulary
    found: dict[int, Defect] = {}
    at = 0
    for place, head in enumerate(heads):
        end = at + head.count
        if not known[at:end].all():
            found[place] = "vocabulary"
        elif not finite[at:end].all():
            found[place] = "nan"
        elif head.count and head.version > newest:
            found[place] = "future_version"
        at = end
    return found


def refusal(head: ChunkHead, rollout: Rollout) -> Defect:
    """Why the heart did not take these tokens for this rollout, which is leased for this
    attempt."""
    if head.version < 0:
        return "negative_version"
    if head.start != rollout.tokens:
        return "wrong_start"
    return "over_budget" if head.count > rollout.remaining else "wrong_version"


class Suspects:
    """The engines that have sent bad chunks."""

    def __init__(self, heard: Callable[[Defect], None]) -> None:
        """`heard` hears of each bad chunk."""
        self._heard = heard
        self.seen: dict[str, Counter[Defect]] = {}

    def add(self, sender: str, found: Sequence[Defect], *, engine: bool) -> None:
        """`sender`, who has an `engine` or has none, has sent these. Raises Refused where that
        makes `SUSPECT` of them, and LinkError where there is no engine to be suspected."""
        for defect in found:
            self._heard(defect)
        if not engine:
            raise LinkError(
                "malformed", f"{sender} has no engine, and sent bad chunks: {', '.join(found)}"
            )
        seen = self.seen.setdefault(sender, Counter())
        seen.update(found)
        if seen.total() >= SUSPECT:
            kinds = ", ".join(f"{count} {defect}" for defect, count in seen.most_common())
            raise ImpossibleEvent(f"{seen.total()} bad chunks ({kinds})")

    def forget(self, sender: str) -> None:
        """This engine is gone: its successor begins without a past."""
        self.seen.pop(sender, None)
