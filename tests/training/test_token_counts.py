"""Counts and places of tokens that a step left out, against a recount token by token."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.sequences import by_rollout, placed
from asyncrl.experience.episode import Strand, Turn, sequences
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import Sample, Span, TokenCount
from asyncrl.training import token_counts as counting

REASONS = ("trained", "stale", "icepop")


def counts_of(outcomes: list[list[int]]) -> list[TokenCount]:
    samples = [Sample(n, 0, 1, 9, 0.0, [Span(0, 1, 10)]) for n in range(len(outcomes))]
    index = torch.tensor([n for n, of_one in enumerate(outcomes) for _ in of_one])
    flat = torch.tensor([one for of_one in outcomes for one in of_one])
    return counting.token_counts(samples, index.long(), flat.long(), REASONS)


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=5))
def test_each_token_that_is_left_out_has_its_place_and_reason(outcomes: list[list[int]]) -> None:
    for of_one, count in zip(outcomes, counts_of(outcomes), strict=True):
        placed_at = {
            at: reason
            for reason, places in count.places.items()
            for start, end in places
            for at in range(start, end)
        }
        assert placed_at == {at: REASONS[one] for at, one in enumerate(of_one) if one}
        found = {reason: of_one.count(n) for n, reason in enumerate(REASONS) if n in of_one}
        assert {"trained": count.trained, **count.discarded} == {"trained": 0, **found}


def test_of_a_long_sequence_the_first_stretches_are_told() -> None:
    (count,) = counts_of([[0, 2] * 500])
    assert len(count.places["icepop"]) == counting.STRETCHES and count.discarded["icepop"] == 500


def test_the_places_of_strands_are_those_of_the_rollout() -> None:
    """Turns 0 and 2 make the first strand, and turn 1 the second: every sampled token is found
    again by its id."""
    turns = [Turn(2, "stop"), Turn(1, "stop"), Turn(3, "stop")]
    strands = [Strand(None, 0, [bytes(8), 0, 2]), Strand(0, 2, [bytes(4), 1])]
    rollout = Rollout(7, 0, 9, turns=turns, strands=strands)
    ids = torch.arange(1, 7, dtype=torch.int32).numpy().tobytes()
    left, counts = {2, 3, 5, 6}, list[TokenCount]()
    for number, one in enumerate(sequences(ids, bytes(24), [Span(0, 0, 6)], turns, strands)):
        own = [
            token for at, token in enumerate(memoryview(one.ids).cast("i").tolist()) if one.mask[at]
        ]
        places = [(at, at + 1) for at, token in enumerate(own) if token in left]
        trained, lost = len(own) - len(places), {"stale": len(places)}
        counts.append(TokenCount(7, trained, lost, number, {"stale": places}))
    (whole,) = by_rollout([placed(count, rollout) for count in counts])
    assert {at + 1 for start, end in whole.places["stale"] for at in range(start, end)} == left
    assert whole.discarded == {"stale": 4} and whole.trained == 2
