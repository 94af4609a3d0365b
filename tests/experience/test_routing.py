"""The routing of a token stays with it: through chunks that have it and chunks that have not, cuts,
turns and strands, into the one sequence that trains it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.experience.call import Call, ImpossibleEvent
from asyncrl.experience.episode import AgentCall, gathered, sequences
from asyncrl.experience.sequence import joined_routing

WIDTHS = st.sampled_from([3, 1, 2])
UNKNOWN = b"\xff"


def ints(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def experts(token: int, width: int) -> bytes:
    """The routing of the token of this id."""
    return bytes((7 * token + layer) % 250 for layer in range(width))


def extend(call: Call, tokens: Sequence[int], width: int, known: bool) -> None:
    routing = b"".join(experts(token, width) for token in tokens) if known else b""
    call.extend(0, call.tokens, ints(tokens), bytes(4 * len(tokens)), routing)


@example(width=3, chunks=[(2, False, 0, 0), (3, True, 2, 0), (1, False, 0, 4), (2, True, 0, 0)])
@example(width=1, chunks=[(3, False, 0, 3), (2, False, 1, 1)])
@given(
    width=WIDTHS,
    chunks=st.lists(
        st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 4), st.integers(0, 9)),
        max_size=6,
    ),
)
def test_a_call_has_the_routing_of_each_of_its_tokens(
    width: int, chunks: list[tuple[int, bool, int, int]]
) -> None:
    """It may come with a token, or later for the last of them."""
    call, number, held = Call(0, 0, 100), count(1), list[tuple[int, bool]]()
    some = False  # a token since the call was empty had one
    for tokens, known, cut, late in chunks:
        new = [next(number) for _ in range(tokens)]
        extend(call, new, width, known)
        held += [(token, known) for token in new]
        some |= known
        if late := min(late, len(held)):
            rows = b"".join(experts(token, width) for token, _ in held[-late:])
            call.route(len(held) - late, late, rows)
            held[-late:] = [(token, True) for token, _ in held[-late:]]
            some = True
        if cut:
            call.cut(max(0, call.tokens - cut))
            held = held[: call.tokens]
            some &= bool(held)
        due = [experts(token, width) if known else UNKNOWN * width for token, known in held]
        assert call.routing == (b"".join(due) if some else b"")


@pytest.mark.parametrize(("more", "of"), [(b"abc", 2), (b"abcdef", 2), (b"ab", 2), (b"abcde", 1)])
def test_routing_of_another_width_is_refused_and_changes_nothing(more: bytes, of: int) -> None:
    call = Call(0, 0, 100)
    extend(call, [1, 2, 3], 2, True)
    before = deepcopy(call)
    with pytest.raises(ImpossibleEvent, match="bytes of routing are not 2 for each of"):
        call.extend(0, 3, ints(range(of)), bytes(4 * of), more)
    assert call == before
    with pytest.raises(ImpossibleEvent, match="routing"):
        Call(0, 0, 100).extend(0, 0, ints([1, 2]), bytes(8), b"abc")


@pytest.mark.parametrize(
    ("start", "tokens", "routing"),
    [(2, 2, b"abcd"), (-1, 1, b"ab"), (0, 0, b""), (0, 3, b"abc"), (1, 2, b"abc"), (0, 3, b"")],
)
def test_late_routing_of_what_is_not_held_is_refused_and_changes_nothing(
    start: int, tokens: int, routing: bytes
) -> None:
    call = Call(0, 0, 100)
    extend(call, [1, 2, 3], 2, True)
    before = deepcopy(call)
    with pytest.raises(ImpossibleEvent, match="rollout 0 holds 3 tokens"):
        call.route(start, tokens, routing)
    assert call == before


Drawn = tuple[int, int, int, int, bool]
"""A call: the earlier one that it goes on from, the tokens of that one's path that it keeps, those
that are given then, those that it samples, and whether their routing is known."""
CALLS = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 9), st.integers(0, 2), st.integers(0, 3), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@example(width=3, calls=[(0, 9, 1, 2, False), (1, 9, 2, 3, True), (1, 2, 1, 1, True)])
@given(width=WIDTHS, calls=CALLS)
def test_a_sequence_has_the_routing_of_the_tokens_that_it_trains(
    width: int, calls: list[Drawn]
) -> None:
    paths, made, number = [[900]], list[tuple[list[int], Call]](), count(1)
    due = dict[int, bytes]()
    for onto, kept, more, sampled, known in calls:
        context = [*paths[onto % len(paths)][: 1 + kept], *[901] * more]
        new = [next(number) for _ in range(sampled)]
        paths.append([*context, *new])
        call = AgentCall(
            len(made), 0, 100, rollout=0, after=None, given=b"", key=0, temperature=1.0
        )
        if new:
            extend(call, new, width, known)
        made.append((context, call))
        due |= {token: experts(token, width) if known else UNKNOWN * width for token in new}
    episode: Any = SimpleNamespace(
        used=range(len(made)),
        find=lambda number: made[number][1],
        context=lambda call: ints(made[call.id][0]),
        rewards={},
        keys={},
        failed={},
    )
    ids, behaviour, spans, turns, strands, routing = gathered(episode)
    built = sequences(ids, behaviour, spans, turns, strands, (), routing)
    trained = [
        [token for token, marked in zip(_ids(one.ids), one.mask, strict=True) if marked]
        for one in built
    ]
    assert sorted(chain(*trained)) == sorted(due)
    if not any(call.routing for _, call in made):
        assert not any(one.routing for one in built) and not joined_routing(built)
        return
    for one, tokens in zip(built, trained, strict=True):
        assert one.routing == b"".join(due[token] for token in tokens)
    assert joined_routing(built) == b"".join(due[token] for tokens in trained for token in tokens)


def _ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}i", packed)
