"""A slow and obvious account of the same calls: what the tree is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncrl.experience.call_tree import CallTree, TreePosition, joined
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import Span


class Sampled(NamedTuple):
    """Tokens that one call sampled: parallel `ids` and `behaviour`, and the spans of both."""

    ids: bytes
    behaviour: bytes
    spans: tuple[Span, ...]


def ids(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def tokens(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


class Samples:
    """Makes samples of which each token can be told by its behaviour: the n-th sampled ever has
    -n."""

    def __init__(self) -> None:
        self.count = 0
        self.made: dict[float, tuple[list[int], int, int]] = {}
        """By behaviour: all that the model saw before, the token, its version."""

    def __call__(
        self,
        context: list[int],
        sampled: list[int],
        version: int,
        change: int = 0,
    ) -> Sampled:
        """`change` tokens of `version`, the rest of the next (0: all of `version`)."""
        behaviour = []
        for i, token in enumerate(sampled):
            self.count += 1
            behaviour.append(-float(self.count))
            self.made[-float(self.count)] = (
                [*context, *sampled[:i]],
                token,
                version + (0 < change <= i),
            )
        cut = change if 0 < change < len(sampled) else len(sampled)
        spans = [Span(version, 0, cut), Span(version + 1, cut, len(sampled))]
        return Sampled(
            ids(sampled),
            np.array(behaviour, np.float32).tobytes(),
            tuple(s for s in spans if s.start < s.end),
        )


def leaves_of(
    tree: CallTree, calls: Sequence[tuple[TreePosition, Sampled]]
) -> list[TrainingSequence]:
    """A sequence for each strand in which a call ended: a call sampled what lies before its end."""
    found = []
    for strand in {id(end.strand): end.strand for end, sampled in calls if sampled.ids}.values():
        last = TreePosition(strand, strand.tokens)
        path = tree.ids(last)
        mask, behaviour, spans = bytearray(len(path) // 4), bytearray(len(path)), list[Span]()
        of_strand = [(e.tokens, s) for e, s in calls if e.strand is strand and s.ids]
        for end, sampled in sorted(of_strand, key=lambda call: call[0]):
            start, stop = strand.base + end - len(sampled.ids) // 4, strand.base + end
            mask[start:stop] = b"\x01" * (stop - start)
            behaviour[4 * start : 4 * stop] = sampled.behaviour
            spans += [Span(s.version, start + s.start, start + s.end) for s in sampled.spans]
        found.append(TrainingSequence(path, bytes(mask), bytes(behaviour), tuple(joined(spans))))
    return found


def check(leaves: list[TrainingSequence], made: dict[float, tuple[list[int], int, int]]) -> None:
    """Each sampled token is trained exactly once, after exactly what the model saw, at its
    version."""
    seen: list[float] = []
    for leaf in leaves:
        path, mask = tokens(leaf.ids), list(leaf.mask)
        behaviour = np.frombuffer(leaf.behaviour, np.float32).tolist()
        assert len(path) == len(mask) == len(behaviour) == leaf.tokens
        assert set(mask) <= {0, 1} and any(mask) and sum(mask) == leaf.trained
        versions = {at: span.version for span in leaf.spans for at in range(span.start, span.end)}
        assert len(versions) == sum(span.end - span.start for span in leaf.spans)
        assert sorted(versions) == [at for at, marked in enumerate(mask) if marked]
        assert list(leaf.spans) == sorted(leaf.spans, key=lambda span: span.start)
        for at, marked in enumerate(mask):
            assert marked or behaviour[at] == 0
            if marked:
                assert made[behaviour[at]] == (path[:at], path[at], versions[at])
                seen.append(behaviour[at])
    assert sorted(seen) == sorted(made)
