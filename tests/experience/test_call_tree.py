"""The tree: every sampled token once, after what the model saw, however contexts come."""

from __future__ import annotations

from calls_world import Samples, check, ids, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from asyncrl.experience.call_tree import CallTree
from asyncrl.experience.episode import Strand, Turn, rewritten

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


FEW = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@settings(max_examples=300)
@given(calls=st.lists(st.tuples(FEW, FEW), max_size=6, unique_by=lambda call: tuple(call[0])))
def test_rewritten_calls_are_told_from_the_strands(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    """By the strands alone, as by the tree, which saw the calls one after the other. (The same
    context again is a retry to the tree, and leaves where the first one left.)"""
    tree, samples = CallTree(), Samples()
    ends = [tree.add(ids(context), samples(context, reply, 0)) for context, reply in calls]
    sizes = [len(reply) for _, reply in calls]
    strands = [Strand(*strand) for strand in tree.strands(ends, sizes)] if calls else []
    found = rewritten([Turn(size, "stop") for size in sizes], strands)
    assert found == tree.meetings["rewritten"]
