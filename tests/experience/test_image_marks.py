"""Images in agents' calls: a context is told apart by its images, and a sequence has its own."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from calls_world import ids, tokens
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.image_marks import numbered_alone, numbered_by, without_images

RED, BLUE = "a" * 64, "b" * 64


@given(st.lists(st.integers(-4, 9), max_size=20), st.permutations("abcdef"))
def test_numbers_are_those_of_the_table(numbers: list[int], table: list[str]) -> None:
    """By hand: an id is a token, or the image that its table names."""

    def read(found: bytes, images: Any) -> list[Any]:
        return [one if one >= 0 else images[-1 - one] for one in tokens(found)]

    said = ids(numbers)
    alone, images = numbered_alone(said, table)
    assert read(alone, images) == read(said, table)
    assert list(dict.fromkeys(one for one in read(said, table) if isinstance(one, str))) == [
        *images
    ]
    assert read(numbered_by(alone, images, table), table) == read(said, table)
    assert tokens(without_images(said)) == [one for one in numbers if one >= 0]


def called(call: int, given_ids: list[int], after: Any = None, **more: Any) -> e.Called:
    return e.Called(0, 1, call, after, ids(given_ids), call, 4, 1.0, **more)


def said(call: int, token: int) -> list[e.AnyEvent]:
    behaviour = np.array([-0.5], np.float32).tobytes()
    return [
        e.Leased(call, "rollout-0", 1),
        e.Extended(call, 1, 0, 0, ids([token]), behaviour),
        e.Answered(call, 1, "stop"),
    ]


def test_contexts_of_other_images_are_other_contexts() -> None:
    """Two calls of one text and two screens share what lies before the screen alone, and each
    sequence numbers its own images; what cannot have happened changes nothing."""
    heart = Experience()
    first = called(1, [5, -1, -1, 6], images=(RED,))
    for event in (
        e.Published(0),
        e.Admitted(0, 0, 1, "train", 0, ids([5]), 20, played=True),
        e.Begun(0, "agents-0", 1),
        first,
        *said(1, 9),
    ):
        heart.apply(event)
    episode = heart.rollouts[0].episode
    assert episode is not None and episode.images == [RED]
    context = numbered_by(ids([5, -1, -1, 6]), [BLUE], [RED, BLUE])
    after, rest = episode.locate(context)
    assert after == (1, 1) and tokens(rest) == [-2, -2, 6]
    assert episode.locate(ids([5, -1, -1, 6, 9, 7]))[0] == (1, 5)
    for wrong in (
        called(2, [-3, 6], images=(BLUE,)),
        called(2, [-1, 6], images=(RED,)),
        called(2, [-2, 6], images=("../run.toml",)),
        called(2, [-2, 6]),
    ):
        before = msgspec.json.encode(heart.rollouts[0].episode)
        with pytest.raises(ImpossibleEvent):
            heart.apply(wrong)
        assert msgspec.json.encode(heart.rollouts[0].episode) == before
    for event in (
        called(2, tokens(rest), after, images=(BLUE,)),
        *said(2, 8),
        e.Sealed(0, 1, "stop"),
    ):
        heart.apply(event)
    red, blue = heart.groups[0].sequences(heart.rollouts[0])
    assert (tokens(red.ids), red.images) == ([5, -1, -1, 6, 9], (RED,))
    assert (tokens(blue.ids), blue.images) == ([5, -1, -1, 6, 8], (BLUE,))
    assert blue.sample(0, 0, 1.0).images == (BLUE,)
