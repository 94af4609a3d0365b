"""Heads of an episode's sequences say how often each token counts, where branches count whole."""

from __future__ import annotations

import numpy as np
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


def test_a_replayed_episode_has_the_images_of_its_own_branch() -> None:
    arrays = bytearray(24), bytearray(24), [Span(0, 0, 6)]
    shown = np.array([-2, -2], np.int32).tobytes()
    strands = [Strand(None, 0, [PROMPT, 0, GIVEN, 1]), Strand(0, 5, [shown, 2])]
    member = ReplayMember(7, *arrays, 1.0, [], "stop", [], TURNS, strands, images=("a", "b"))
    first, second = of_replayed(ReplayGroup(1, PROMPT, 9, [member]), 0, configured())
    assert first.sequence.images == () and second.sequence.images == ("b",)
    assert np.frombuffer(second.sequence.ids, np.int32).tolist().count(-1) == 2
