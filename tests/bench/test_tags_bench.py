"""Prompts go first to the engines that they prefer, and to others rather than wait for them."""

from __future__ import annotations

import tags
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from asyncrl.actors.coordinator.preferences import preferred_first
from asyncrl.experience.call import Call


async def test_prompts_go_first_to_the_machine_that_they_prefer(autojump_clock: MockClock) -> None:
    untagged, tagged = await tags.run(False, 4), await tags.run(True, 4)
    assert not untagged.leases and untagged.seconds > tagged.seconds
    assert all(leases.there > leases.elsewhere for leases in tagged.leases.values())
    assert sum(leases.elsewhere for leases in tagged.leases.values()), "none waits for its engine"


async def test_without_the_actor_with_a_tag_its_prompts_go_elsewhere(
    autojump_clock: MockClock,
) -> None:
    world = tags.TaggedWorld(True, 4, supervision={"stall_s": 1e4})
    world.absent = {"rollout-0"}
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    leases = world.coordinator.parts.placement.preferences.counts["long_prefill"]
    assert leases.there == 0 < leases.elsewhere


@given(
    prefers=st.lists(st.sampled_from(["", "a", "b", "gone"]), max_size=12),
    room=st.integers(0, 8),
    rooms=st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(0, 3)}),
)
def test_room_is_always_used_and_only_preferences_change_the_order(
    prefers: list[str], room: int, rooms: dict[str, int]
) -> None:
    waiting = [Call(id=id, group=id, max_new_tokens=8) for id in range(len(prefers))]
    order = [
        call.id for call in preferred_first(waiting, room, rooms, lambda call: prefers[call.id])
    ]
    assert len(order) == len(set(order)) == min(room, len(waiting))
    for tag in ("a", "b"):
        mine = [place for place, id in enumerate(order) if prefers[id] == tag]
        assert [order[place] for place in mine] == sorted(order[place] for place in mine)
    plain = [id for id in order if prefers[id] in ("", "gone")]
    assert plain == [id for id, tag in enumerate(prefers) if tag in ("", "gone")][: len(plain)]
