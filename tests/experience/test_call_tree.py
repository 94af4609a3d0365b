"""The tree: every sampled token once, after what the model saw, however contexts come."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate

from calls_world import Sampled, Samples, check, ids, leaves_of, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from some_values import drawn

from asyncrl.experience.call_tree import CallTree, TreePosition, common
from asyncrl.experience.episode import (
    Strand,
    Turn,
    errors_in,
    last_context,
    path_counts,
    rewritten,
    turn_tokens,
)

TOKENS = st.lists(
    st.integers(0, 2), max_size=6
)  # few different ones, so that contents meet by chance


class Calls(RuleBasedStateMachine):
    """Conversations that go on, are retried, edited, cut and mixed."""

    ends = Bundle("ends")

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.samples = CallTree(), Samples()
        self.made: list[tuple[TreePosition, Sampled]] = []
        self.contexts: list[list[int]] = []
        self.whole: list[list[int]] = []

    def call(self, context: list[int], sampled: list[int], version: int, change: int) -> list[int]:
        best = max((_shared(context, one) for one in self.whole), default=0)
        before, some = held(self.tree), self.samples(context, sampled, version, change)
        place = self.tree.add(ids(context), some.ids)
        self.made.append((place, some))
        assert held(self.tree) == before + len(context) - best + len(sampled)
        path = [*context, *sampled]
        assert tokens(self.tree.ids(place)) == path
        self.contexts.append(context)
        self.whole.append(path)
        return path

    @rule(
        target=ends,
        context=st.lists(st.integers(0, 2), min_size=1, max_size=6),
        sampled=TOKENS,
        version=st.integers(0, 3),
    )
    def opens(self, context: list[int], sampled: list[int], version: int) -> list[int]:
        return self.call(context, sampled, version, 0)

    @rule(
        target=ends,
        path=consumes(ends),
        more=TOKENS,
        sampled=TOKENS,
        version=st.integers(0, 3),
        change=st.integers(0, 5),
    )
    def goes_on(
        self, path: list[int], more: list[int], sampled: list[int], version: int, change: int
    ) -> list[int]:
        return self.call([*path, *more], sampled, version, change)

    @rule(target=ends, path=ends, cut=st.integers(1, 12), more=TOKENS, sampled=TOKENS)
    def goes_on_from_the_middle(
        self, path: list[int], cut: int, more: list[int], sampled: list[int]
    ) -> list[int]:
        return self.call([*path[:cut], *more], sampled, 0, 0)

    @rule(target=ends, data=st.data(), sampled=st.lists(TOKENS, min_size=1, max_size=3))
    def retries(self, data: st.DataObject, sampled: list[list[int]]) -> object:
        if not self.contexts:
            return multiple()
        context = data.draw(st.sampled_from(self.contexts))
        return multiple(*(self.call(context, one, 1, 0) for one in sampled))

    @invariant()
    def every_sampled_token_is_trained_once(self) -> None:
        check(leaves_of(self.tree, self.made), self.samples.made)

    @invariant()
    def the_last_turn_has_its_context_before_it(self) -> None:
        made = zip(self.contexts, self.made, strict=True)
        used = [(ids(context), some.ids) for context, (_, some) in made if some.ids]
        if used:
            tree, turns = CallTree(), [Turn(len(sampled) // 4, "stop") for _, sampled in used]
            places = [tree.add(context, sampled) for context, sampled in used]
            lie = tree.strands(places, [turn.tokens for turn in turns])
            strands = [Strand(*strand) for strand in lie]
            sampled = b"".join(sampled for _, sampled in used)
            assert last_context(sampled, turns, strands) == used[-1][0]


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=drawn(150), stateful_step_count=25, deadline=None)


@given(
    alike=st.integers(0, 400),
    rest=st.tuples(st.integers(0, 70), st.integers(0, 70)),
    before=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    byte=st.integers(0, 3),
)
def test_two_paths_have_all_in_common_up_to_the_first_token_that_differs(
    alike: int, rest: tuple[int, int], before: tuple[int, int], byte: int
) -> None:
    """Also far from their beginnings, and where the token differs in one byte alone."""
    shared = b"".join(number.to_bytes(4, "little") for number in range(alike))
    other = bytearray(4)
    other[byte] = 1
    one = bytes(4 * before[0]) + shared + bytes(4 * rest[0])
    two = bytes(4 * before[1]) + shared + (other * rest[1])
    assert common(one, 4 * before[0], two, 4 * before[1]) == len(shared)
    assert common(bytearray(two), 4 * before[1], one, 4 * before[0]) == len(shared)


def held(tree: CallTree) -> int:
    """Tokens that a tree holds."""
    return sum(strand.tokens for strand in tree._strands)


def _shared(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


FEW = st.lists(st.integers(0, 1), min_size=1, max_size=5)


class Watched(CallTree):
    """A tree of calls with different contexts, which sees how each one meets those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled: defaultdict[int, list[bool]] = defaultdict(list)  # by strand
        self.rewritten = 0

    def add(self, context: bytes, sampled: bytes) -> TreePosition:
        place, known = self._walk(self._root, context)
        strand, at = place.strand, place.tokens
        goes_on = at == strand.tokens or (id(strand), at) in self._ends
        self.rewritten += bool(known) and not goes_on and self.sampled[id(strand)][at]
        end = super().add(context, sampled)
        marks, reply = self.sampled[id(end.strand)], len(sampled) // 4
        marks += [False] * (end.tokens - reply - len(marks)) + [True] * reply
        return end


@settings(max_examples=drawn(300))
@given(calls=st.lists(st.tuples(FEW, FEW), max_size=6, unique_by=lambda call: tuple(call[0])))
def test_rewritten_calls_are_told_from_the_strands(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    """By the strands alone, as by the tree, which saw the calls one after the other. (The same
    context again leaves where the first one left.)"""
    tree = Watched()
    ends = [tree.add(ids(context), ids(reply)) for context, reply in calls]
    sizes = [len(reply) for _, reply in calls]
    strands = [Strand(*strand) for strand in tree.strands(ends, sizes)] if calls else []
    assert rewritten([Turn(size, "stop") for size in sizes], strands) == tree.rewritten


@given(
    calls=st.lists(st.tuples(FEW, FEW), min_size=1, max_size=6),
    bounds=st.sets(st.integers(0, 30), max_size=8),
)
def test_errors_lie_on_the_same_tokens_in_whatever_strand(
    calls: list[tuple[list[int], list[int]]], bounds: set[int]
) -> None:
    tree = CallTree()
    ends = [tree.add(ids(context), ids(reply)) for context, reply in calls]
    sizes = [len(reply) for _, reply in calls]
    turns = [Turn(size, "stop") for size in sizes]
    errors = list(zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False))
    wrong = {place for start, end in errors for place in range(start, end)}
    starts = [0, *accumulate(sizes)]
    for strand in (Strand(*strand) for strand in tree.strands(ends, sizes)):
        places = [
            starts[turn] + at for turn, size in turn_tokens(turns, strand) for at in range(size)
        ]
        found = errors_in(turns, strand, errors)
        marked = {place for start, end in found for place in range(start, end)}
        assert marked == {at for at, place in enumerate(places) if place in wrong}
        assert all(start < end for start, end in found)


@given(calls=st.lists(st.tuples(FEW, FEW), min_size=1, max_size=7))
def test_a_token_counts_once_for_each_leaf_that_is_behind_it(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    """Against paths that are written out, each token with the strand and the place it has there."""
    tree = CallTree()
    ends = [tree.add(ids(context), ids(reply)) for context, reply in calls]
    sizes = [len(reply) for _, reply in calls]
    turns = [Turn(size, "stop") for size in sizes]
    strands = [Strand(*strand) for strand in tree.strands(ends, sizes)]
    paths: list[list[tuple[int, int, bool]]] = []  # of each token: strand, place, sampled
    for number, strand in enumerate(strands):
        path = [] if strand.parent is None else paths[strand.parent][: strand.tokens]
        for piece in strand.pieces:
            size = len(piece) // 4 if isinstance(piece, bytes) else sizes[piece]
            path = path + [(number, len(path) + n, isinstance(piece, int)) for n in range(size)]
        paths.append(path)
    passing = Counter(token for path in paths for token in path)
    for number, runs in enumerate(path_counts(turns, strands)):
        own = [token for token in paths[number] if token[0] == number and token[2]]
        assert [count for count, size in runs for _ in range(size)] == [passing[t] for t in own]
