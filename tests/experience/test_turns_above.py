"""Turns above turns, by the tokens of their calls: nothing that a turn may have caused is missing
below it, and calls of different branches are told apart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience.episode import Turn, turns_above, unrewarded_end
from asyncrl.experience.turns_above import TurnsAbove

Call = tuple[str, str]
"""A call: its context, and what it sampled. A letter is a token here."""


def above(calls: list[Call]) -> list[list[int]]:
    turns = TurnsAbove()
    found = [turns.add(context.encode(), sampled.encode()) for context, sampled in calls]
    kept = [Turn(1, "stop", above=over) for over in found]
    return turns_above(kept) or [[n - 1] * (n > 0) for n in range(len(calls))]


@pytest.mark.parametrize(
    ("calls", "due"),
    [
        pytest.param([("P", "a"), ("Pa?", "b"), ("Pa?b!", "c")], [[], [0], [1]], id="goes on"),
        pytest.param([("P", "a"), ("P", "b")], [[], []], id="two calls of the first context"),
        pytest.param(
            [("P", "a"), ("Pa?", "b"), ("Pa?", "c"), ("Pa?c!", "d"), ("Pa?b!", "e")],
            [[], [0], [0], [2], [1]],
            id="two calls of a later context",
        ),
        pytest.param([("P", "a"), ("Pa?", "b"), ("Pa!", "c")], [[], [0], [0]], id="two results"),
        pytest.param([("P", "a"), ("Pa", "b"), ("Pa", "c")], [[], [0], [0]], id="no result"),
        pytest.param(
            [("P", "a"), ("P", "a"), ("Pa?", "b"), ("Pa?", "c"), ("Pa?", "d")],
            [[], [], [0], [1], [0]],
            id="equal replies share out what goes on from them",
        ),
        pytest.param([("P", "a"), ("P", "ab"), ("Pab?", "c")], [[], [], [1]], id="longest reply"),
        pytest.param([("P", "ab"), ("Px?", "c"), ("Px?y?", "d")], [[], [0], [1]], id="rewritten"),
        pytest.param(
            [("P", "ab"), ("P", "cd"), ("Px?", "e"), ("Px?e!", "f")],
            [[], [], [0, 1], [2]],
            id="one of two is rewritten, and either may be",
        ),
        pytest.param(
            [("P", "ab"), ("P", "cd"), ("Pa?", "e")], [[], [], [0, 1]], id="cut within a reply"
        ),
        pytest.param(
            [("P", "a"), ("Q", "b"), ("R", "c")], [[], [0], [1]], id="contexts of its own"
        ),
        pytest.param(
            [("P", "a"), ("P", "b"), ("Q", "c"), ("Q", "d"), ("Qd?", "e")],
            [[], [], [0, 1], [0, 1], [3]],
            id="a context of its own is below both branches",
        ),
        pytest.param(
            [("Pt", "a"), ("Pb?t", "b"), ("Pb?b?t", "c")], [[], [0], [1]], id="rendered otherwise"
        ),
    ],
)
def test_what_lies_above(calls: list[Call], due: list[list[int]]) -> None:
    assert above(calls) == due


texts = st.text("ab", min_size=1, max_size=3)


def closure(calls: list[Call]) -> list[set[int]]:
    found = list[set[int]]()
    for over in above(calls):
        found.append(set(over).union(*(found[turn] for turn in over)))
    return found


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_only_tokens_tell_branches_apart(calls: list[Call]) -> None:
    """An earlier turn that is not above another one went on from a reply, or a context, that the
    other one shares, and its own reply is not what the other one's context has there."""
    over = closure(calls)
    for later, (context, _) in enumerate(calls):
        assert over[later] <= set(range(later))
        for earlier in set(range(later)) - over[later]:
            asked, sampled = calls[earlier]
            shares = [e for e in [*range(later)] if context.startswith("".join(calls[e]))]
            alike = any(c == context for c, _ in calls[:later])
            assert shares or alike
            equal = [e for e in shares if calls[e] == (asked, sampled)]
            if context.startswith(asked + sampled) and shares:
                longest = max(len("".join(calls[e])) for e in shares)
                assert len(asked + sampled) < longest or len(equal) > 1


def test_turns_in_a_row_need_no_record() -> None:
    turns = TurnsAbove()
    assert turns.add(b"P", b"a") is None and turns.add(b"Pa?", b"b") is None
    assert turns.add(b"other", b"c") is None
    assert turns_above([Turn(1, "stop"), Turn(1, "stop")]) == []


def test_a_snapshot_of_before_is_read() -> None:
    """Its turns lie one below the other, as its credits took them."""
    kept = msgspec.msgpack.encode([3, "stop", 0.5, "", "key"])
    assert msgspec.msgpack.decode(kept, type=Turn) == Turn(3, "stop", 0.5, key="key")
    forked = Turn(3, "stop", above=())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(forked), type=Turn) == forked


def test_an_end_of_a_tree_without_a_reward_is_found() -> None:
    root, right, wrong = Turn(1, "stop"), Turn(1, "stop", 1.0), Turn(1, "stop", 0.0, above=(0,))
    assert unrewarded_end([root, right, wrong]) is None
    assert unrewarded_end([root, right, Turn(1, "stop", above=(0,))]) == 2
    assert unrewarded_end([root, right, Turn(1, "", above=(0,))]) is None, "it was cut"
    assert unrewarded_end([root, Turn(1, "stop")]) is None, "it does not fork"
