"""Heads of an episode's sequences say how often each token counts, where branches count whole."""

from __future__ import annotations

import pytest
from scripted_world import configured

from asyncrl.actors.coordinator.sequences import of_replayed
from asyncrl.experience.episode import Strand, Turn
from asyncrl.experience.replay_buffer import ReplayGroup, ReplayMember
from asyncrl.messages import Span

PROMPT, GIVEN = bytes(8), bytes(4)
TURNS = [Turn(3, "stop"), Turn(2, "stop"), Turn(1, "stop")]
FORKED = [Strand(None, 0, [PROMPT, 0, GIVEN, 1]), Strand(0, 5, [GIVEN, 2])]
PLAIN = [Strand(None, 0, [PROMPT, 0, GIVEN, 1, GIVEN, 2])]


@pytest.mark.parametrize(
    ("branches", "strands", "counts"),
    [
        ("token", FORKED, [[], []]),
        ("branch", FORKED, [[(2, 3), (1, 2)], [(1, 1)]]),
        ("branch", PLAIN, [[]]),
    ],
)
def test_a_token_counts_once_or_once_for_each_branch(
    branches: str, strands: list[Strand], counts: list[list[tuple[int, int]]]
) -> None:
    arrays = bytearray(24), bytearray(24), [Span(0, 0, 6)]
    member = ReplayMember(7, *arrays, 1.0, [], "stop", [], TURNS, strands)
    kept = ReplayGroup(1, PROMPT, 9, [member])
    found = of_replayed(kept, 0, configured(train={"branches": branches}))
    assert [one.sample.path_counts for one in found] == counts
