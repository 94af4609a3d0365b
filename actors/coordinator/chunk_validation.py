"""Finds chunks that no engine of this run can have sampled.

Invariant: the tokens of a chunk with a defect belong to no rollout: none of them is kept or
counted.

A frame is looked at as a whole, and chunk by chunk only if something in it is wrong. The rollout of
a bad chunk is buried under the defect's name with all its tokens, because its engine may have lost
more tokens. The good chunks of the same frame are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from asyncrl.experience.call import Call, ImpossibleEvent
from asyncrl.messages import ChunkHead
from asyncrl.runtime.ipc.errors import LinkError

SUSPECT = 3
"""Bad chunks after which an engine is replaced. One may be a flipped bit, and costs a rollout. An
engine that sends three is broken, and its other tokens are not trustworthy. A frame whose arrays do
not fit counts once, because it is unknown which of its chunks is bad."""

Defect = Literal[
    "unequal",
    "vocabulary",
    "nan",
    "future_version",
    "negative_version",
    "wrong_version",
    "wrong_start",
    "over_budget",
    "routing",
]
"""The name of a chunk's defect.

    unequal            the arrays of the frame do not fit its heads
    vocabulary         an id is outside of the vocabulary
    nan                a log-probability is not finite
    future_version     the version is not committed yet
    negative_version   the version is negative
    wrong_version      the version is not the one that the rollout is pinned to
    wrong_start        the tokens do not follow those that there are
    over_budget        there are more tokens than were asked for
    routing            experts come for tokens that there are not, or with other numbers of bytes
"""


def fits(
    heads: Sequence[ChunkHead],
    ids: memoryview,
    behaviour: memoryview,
    routing: memoryview | bytes = b"",
) -> bool:
    """True if both arrays, of four bytes a token, are as long as all heads say together, and the
    routing has as many bytes for each token that comes with any."""
    counts, routed = [head.count for head in heads], [head.routed for head in heads]
    tokens, records = sum(counts), sum(routed)
    whole = min(counts + routed, default=0) >= 0 and len(ids) == len(behaviour) == 4 * tokens
    if not records:
        return whole and not len(routing)
    return whole and len(routing) > 0 and not len(routing) % records


def defects(
    heads: Sequence[ChunkHead],
    ids: memoryview,
    behaviour: memoryview,
    *,
    vocabulary: int,
    newest: int | None,
) -> dict[int, Defect]:
    """The defects of a frame whose arrays fit, by the chunk's index in `heads`, as far as they are
    visible without the rollouts. `newest` is the newest version that may have sampled tokens; None
    if none may.

    Example: heads with the counts 2 and 1, the ids 5, 6 and 700, and a vocabulary of 100 give
    {1: "vocabulary"}.
    """
    if not len(ids):
        return {}
    tokens, scores = (
        np.frombuffer(ids, np.uint32),
        np.frombuffer(behaviour, np.float32),
    )  # a negative id is a large one
    newest = -1 if newest is None else newest
    finite = np.isfinite(scores)
    if (
        tokens.max() < vocabulary
        and finite.all()
        and max([head.version for head in heads]) <= newest
    ):
        return {}
    known = tokens < vocabulary
    bad: dict[int, Defect] = {}
    at = 0
    for number, head in enumerate(heads):
        end = at + head.count
        if not known[at:end].all():
            bad[number] = "vocabulary"
        elif not finite[at:end].all():
            bad[number] = "nan"
        elif head.count and head.version > newest:
            bad[number] = "future_version"
        at = end
    return bad


def refusal(head: ChunkHead, call: Call) -> Defect:
    """The defect by which a chunk cannot follow its call, which is leased for this attempt."""
    if head.version < 0:
        return "negative_version"
    if head.start != call.tokens:
        return "wrong_start"
    return "over_budget" if head.count > call.remaining else "wrong_version"


def misrouted(head: ChunkHead, call: Call, width: int) -> bool:
    """True if the experts that come with a chunk, of `width` bytes a token, cannot be those of its
    call's tokens. An empty chunk may come with those of earlier ones."""
    end = head.start + head.count
    held = len(call.routing) not in (0, width * call.tokens)
    return held or head.routed > end or (not head.count and end > call.tokens)


class Suspects:
    """The engines that have sent bad chunks."""

    def __init__(self, report: Callable[[Defect], None]) -> None:
        """`report(defect)` is called for each bad chunk."""
        self._report = report
        self.seen: dict[str, Counter[Defect]] = {}

    def add(self, sender: str, defects: Sequence[Defect], *, engine: bool) -> None:
        """Count bad chunks of the actor `sender`, which has an `engine` or not. Raises
        ImpossibleEvent if there are `SUSPECT` of them, and LinkError without an engine."""
        for defect in defects:
            self._report(defect)
        if not engine:
            raise LinkError(
                "malformed", f"{sender} has no engine, but sent bad chunks: {', '.join(defects)}"
            )
        seen = self.seen.setdefault(sender, Counter())
        seen.update(defects)
        if seen.total() >= SUSPECT:
            kinds = ", ".join(f"{count} {defect}" for defect, count in seen.most_common())
            raise ImpossibleEvent(f"{seen.total()} bad chunks ({kinds})")

    def forget(self, sender: str) -> None:
        """Forget an engine that is gone: its successor starts clean."""
        self.seen.pop(sender, None)
