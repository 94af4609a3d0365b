"""docs/lag.md against a model of its own: admission by live counts, a window, steps of B groups,
publication, and an adversary.

The model knows nothing of asyncrl. Small settings are explored whole: every state that any order of
finishing, admitting, closing and publishing can reach. Larger ones are played, with groups that are
dropped, by chance and by the adversary of the proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.staleness.admission import AdmissionSettings, LiveGroups


def max_live(depth: int, batch: int, f: float) -> int:
    """Groups that admission lets live."""
    return LiveGroups(AdmissionSettings(depth, batch, f)).max_live


@dataclass(frozen=True)
class Game:
    """A setting: groups in a step, groups live at most, and how far (in admissions) from the
    oldest untaken one a step may take."""

    batch: int
    live: int
    window: float

    @property
    def bound(self) -> int:
        """The theorem."""
        return 0 if self.live == self.batch else (self.live + int(self.window) - 2) // self.batch


@dataclass(frozen=True)
class State:
    """`untaken`: the groups no step has taken, in the order of admission, each (admissions since
    the oldest one, steps since the version that was served when it was admitted). `taken`: groups
    of the open step. `travelling`: whether the version that the open step starts from is on its
    way. `next`: the place that the next admission has, counted as the untaken ones' are."""

    untaken: tuple[tuple[int, int], ...] = ()
    taken: int = 0
    travelling: bool = False
    next: int = 0

    def live(self, game: Game) -> int:
        return len(self.untaken) + self.taken + (game.batch if self.travelling else 0)


def without(state: State, index: int) -> State:
    """One group fewer, and places counted from what is the oldest now."""
    left = state.untaken[:index] + state.untaken[index + 1 :]
    oldest = left[0][0] if left else state.next
    return replace(
        state, untaken=tuple((place - oldest, age) for place, age in left), next=state.next - oldest
    )


def admitted(state: State) -> State:
    """Every token of this group is of the version served now, or later: one version before the open
    step's while that one travels."""
    return replace(
        state, untaken=(*state.untaken, (state.next, int(state.travelling))), next=state.next + 1
    )


def allowed(state: State, game: Game) -> list[int]:
    """The untaken groups that may be taken, were they finished."""
    return (
        [n for n, (place, _) in enumerate(state.untaken) if place < game.window]
        if state.taken < game.batch
        else []
    )


def took(state: State, index: int) -> State:
    return replace(without(state, index), taken=state.taken + 1)


def closed(state: State) -> State:
    """The step is taken: what is still untaken is a step older, and a version travels."""
    return replace(
        state,
        untaken=tuple((place, age + 1) for place, age in state.untaken),
        taken=0,
        travelling=True,
    )


def published(state: State) -> State:
    return replace(state, travelling=False)


def moves(state: State, game: Game) -> Iterator[tuple[State, int]]:
    """Everything that may happen next, and the lag of what it trains, -1 where it trains
    nothing."""
    if state.live(game) < game.live:
        yield admitted(state), -1
    for index in allowed(state, game):
        yield took(state, index), state.untaken[index][1]
    if state.taken == game.batch and not state.travelling:
        yield closed(state), -1
    if state.travelling:
        yield published(state), -1


def explored(game: Game, enough: float = math.inf) -> int:
    """The largest lag that is trained in any state that can be reached; the search ends at
    `enough`."""
    seen, due, worst = {State()}, [State()], 0
    while due and worst < enough:
        for state, lag in moves(due.pop(), game):
            worst = max(worst, lag)
            if state not in seen:
                seen.add(state)
                due.append(state)
    return worst


SMALL = [
    (depth, batch, f)
    for depth, batch, f in product((0, 1, 2), (1, 2, 3), (1.0, 1.5, 2.0))
    if max_live(depth, batch, f) <= 6
]


@pytest.mark.parametrize(("depth", "batch", "f"), SMALL)
def test_the_bound_is_never_exceeded_and_always_reached(depth: int, batch: int, f: float) -> None:
    live = depth * batch + math.ceil(f * batch)
    for window in (1, 2, 3, 4):
        game = Game(batch, live, window)
        assert explored(game) == game.bound, game
        if f == 1 and depth:
            assert game.bound == depth + math.ceil((window - 1) / batch)


@pytest.mark.parametrize(
    ("depth", "batch", "f"), [(0, 1, 2.0), (1, 1, 1.0), (1, 2, 1.0), (0, 2, 1.5)]
)
def test_without_a_window_there_is_no_bound(depth: int, batch: int, f: float) -> None:
    assert explored(Game(batch, max_live(depth, batch, f), math.inf), enough=30) == 30


def test_where_a_step_needs_every_live_group_no_order_makes_any_lag() -> None:
    assert explored(Game(2, 2, 100), enough=1) == 0


@given(
    st.integers(0, 4), st.integers(1, 6), st.sampled_from([1.0, 1.25, 2.0, 3.0]), st.integers(1, 20)
)
def test_what_admission_promises_is_the_theorem(
    depth: int, batch: int, f: float, window: int
) -> None:
    game = Game(batch, depth * batch + math.ceil(f * batch), window)
    assert max_live(depth, batch, f) == game.live
    assert LiveGroups(AdmissionSettings(depth, batch, f, window)).worst_lag == game.bound


def stubborn(game: Game) -> int:
    """The adversary of the proof: all that may live is admitted at once, and the last of those ends
    only when nothing else can be trained. Returns its lag."""
    state, victim = State(), game.live - 1
    for _ in range(game.live):
        state = admitted(state)
    while True:
        while state.live(game) < game.live:
            state = admitted(state)
        others = [n for n in allowed(state, game) if n != victim]
        if others:
            victim -= others[0] < victim
            state = took(state, others[0])
        elif state.taken == game.batch:
            state = published(closed(state))
        else:
            return state.untaken[victim][1]


@given(
    st.integers(0, 4), st.integers(1, 8), st.sampled_from([1.0, 1.25, 2.0, 3.0]), st.integers(1, 40)
)
def test_the_adversary_of_the_proof_reaches_the_bound(
    depth: int, batch: int, f: float, window: int
) -> None:
    game = Game(batch, depth * batch + math.ceil(f * batch), window)
    assert stubborn(game) == game.bound


@given(
    st.data(),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.integers(1, 9),
)
def test_groups_that_are_dropped_leave_the_bound_as_it_is(
    data: st.DataObject, depth: int, batch: int, f: float, window: int
) -> None:
    """A filter, a stale group, one whose members are all buried: it leaves, and another one may
    start."""
    game, state, worst = Game(batch, max_live(depth, batch, f), window), State(), 0
    for _ in range(data.draw(st.integers(1, 80))):
        found = list(moves(state, game)) + [
            (without(state, index), -1) for index in range(len(state.untaken))
        ]
        state, lag = data.draw(st.sampled_from(found))
        worst = max(worst, lag)
        assert all(age <= game.bound for _, age in state.untaken), (
            "what waits cannot wait longer either"
        )
    assert worst <= game.bound
