"""The tree: every sampled token once, after what the model saw, however contexts come."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from calls_world import Samples, check, ids, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from asyncrl.experience.call_tree import CallTree, Sampled, common
from asyncrl.ipc.messages import Span

TOKENS = st.lists(
    st.integers(0, 2), max_size=6
)  # few different ones, so that contents meet by chance


class Calls(RuleBasedStateMachine):
    """Conversations that go on, are retried, edited, cut and mixed."""

    ends = Bundle("ends")

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.samples = CallTree(), Samples()
        self.contexts: list[list[int]] = []
        self.whole: list[list[int]] = []

    def call(self, context: list[int], sampled: list[int], version: int, change: int) -> list[int]:
        best = max((_shared(context, one) for one in self.whole), default=0)
        assert self.tree.known(ids(context)) == best
        before = self.tree.tokens
        place = self.tree.add(ids(context), self.samples(context, sampled, version, change))
        assert self.tree.tokens == before + len(context) - best + len(sampled)
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
        check(list(self.tree.leaves()), self.samples.made)

    @invariant()
    def every_call_met_in_one_way(self) -> None:
        assert sum(self.tree.meetings.values()) == len(self.whole)


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def _shared(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


@given(
    calls=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), TOKENS), max_size=6
    ),
    data=st.data(),
)
def test_the_order_of_calls_loses_nothing(
    calls: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    for order in (calls, data.draw(st.permutations(calls))):
        tree, samples = CallTree(), Samples()
        for context, sampled in order:
            tree.add(ids(context), samples(context, sampled, 0))
        check(list(tree.leaves()), samples.made)


@given(data=st.data(), a=st.integers(0, 3), b=st.integers(0, 3), same=st.integers(0, 900))
def test_what_two_have_incommon(data: st.DataObject, a: int, b: int, same: int) -> None:
    some = st.lists(st.integers(0, 1), max_size=5)
    tail, other = data.draw(some), data.draw(some)
    found = common(
        bytearray(ids([7] * a + [5] * same + tail)), 4 * a, ids([8] * b + [5] * same + other), 4 * b
    )
    assert found == 4 * (same + _shared(tail, other))


def names(*calls: tuple[list[int], list[int]]) -> dict[str, int]:
    tree, samples = CallTree(), Samples()
    for context, sampled in calls:
        tree.add(ids(context), samples(context, sampled, 0))
    check(list(tree.leaves()), samples.made)
    return dict(tree.meetings)


def test_a_conversation_is_one_leaf() -> None:
    tree, samples = CallTree(), Samples()
    tree.add(ids([1, 2]), samples([1, 2], [3, 4], 0))
    tree.add(ids([1, 2, 3, 4, 5]), samples([1, 2, 3, 4, 5], [6, 7], 0, change=1))
    (leaf,) = tree.leaves()
    assert tokens(leaf.ids) == [1, 2, 3, 4, 5, 6, 7]
    assert list(leaf.mask) == [0, 0, 1, 1, 0, 1, 1]
    assert leaf.spans == (Span(0, 2, 4), Span(0, 5, 6), Span(1, 6, 7))
    assert tree.meetings == {"opened": 1, "continued": 1}


def test_how_a_call_met_the_others_is_named() -> None:
    first = ([1, 2], [3, 4])
    assert names(first, ([1, 2], [3, 4])) == {"opened": 1, "retried": 1}
    assert names(first, ([1, 2, 3, 9], [3])) == {"opened": 1, "rewritten": 1}
    assert names(first, ([1, 2, 9], [3])) == {"opened": 1, "rewritten": 1}
    assert names(first, ([1, 2, 3], [3])) == {"opened": 1, "rewritten": 1}
    assert names(first, ([1, 9], [3])) == {"opened": 1, "forked": 1}
    assert names(first, ([9], [3])) == {"opened": 2}
    assert names(first, ([1, 2, 3, 4], [3])) == {"opened": 1, "continued": 1}
    assert names(([1, 2], []), ([1, 2], [3])) == {"opened": 1, "retried": 1}


def test_a_reply_that_came_back_otherwise_stays_a_leaf_of_its_own() -> None:
    tree, samples = CallTree(), Samples()
    tree.add(ids([1, 2]), samples([1, 2], [3, 4, 5], 0))
    tree.add(ids([1, 2, 3, 8, 9]), samples([1, 2, 3, 8, 9], [6], 1))
    first, second = tree.leaves()
    assert (tokens(first.ids), list(first.mask)) == ([1, 2, 3, 4, 5], [0, 0, 1, 1, 1])
    assert (tokens(second.ids), list(second.mask)) == ([1, 2, 3, 8, 9, 6], [0, 0, 0, 0, 0, 1])
    assert tree.tokens == 5 + 3


def test_what_is_sampled_again_hides_nothing() -> None:
    """The second reply goes on beyond the first; the third call begins where the first ended, and
    samples what the second had there."""
    tree, samples = CallTree(), Samples()
    for context, sampled in (([1], [2]), ([1], [2, 3, 4]), ([1, 2], [3, 9])):
        tree.add(ids(context), samples(context, sampled, 0))
    assert tree.known(ids([1, 2, 3, 4])) == tree.known(ids([1, 2, 3, 9])) == 4
    check(list(tree.leaves()), samples.made)


@pytest.mark.parametrize(
    ("context", "sampled", "message"),
    [
        (b"", Sampled(b"", b"", (), "stop"), "context"),
        (b"123", Sampled(b"", b"", (), "stop"), "context"),
        (ids([1]), Sampled(ids([1]), b"", (Span(0, 0, 1),), "stop"), "parallel"),
        (ids([1]), Sampled(b"123", b"123", (), "stop"), "parallel"),
        (ids([1]), Sampled(ids([1]), ids([1]), (), "stop"), "tile"),
        (ids([1]), Sampled(ids([1, 2]), ids([1, 2]), (Span(0, 1, 2),), "stop"), "tile"),
        (
            ids([1]),
            Sampled(ids([1, 2]), ids([1, 2]), (Span(0, 0, 1), Span(1, 0, 2)), "stop"),
            "tile",
        ),
        (ids([1]), Sampled(ids([1]), ids([1]), (Span(-1, 0, 1),), "stop"), "tile"),
    ],
)
def test_a_call_that_cannot_be_changes_nothing(
    context: bytes, sampled: Sampled, message: str
) -> None:
    tree = CallTree()
    with pytest.raises(ValueError, match=message):
        tree.add(context, sampled)
    assert not tree.tokens and not tree.meetings and not list(tree.leaves())


@pytest.fixture
def without_gc() -> Iterator[None]:
    """A collection looks at all that other tests have imported, which takes longer than what is
    timed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_long_conversation_costs_what_is_new(without_gc: None) -> None:
    """Ten times as many calls: about ten times the time for what is new, and a memory comparison
    for what is not."""
    seconds = []
    for calls in (200, 2000):
        tree, samples, context = CallTree(), Samples(), [1]
        made = [samples(context, [2] * 16, 0) for _ in range(calls)]
        data = ids([1])
        begun = time.thread_time()
        for sampled in made:
            place = tree.add(data, sampled)
            data += sampled.ids + ids([3] * 16)
        seconds.append(time.thread_time() - begun)
        assert place.strand is tree._root.strand and len(list(tree.leaves())) == 1
    assert seconds[1] < 40 * seconds[0] + 0.2
