"""Chunks that no engine can have sampled: the rollout is buried by name, the rest of the frame
stands, and three such chunks cost the engine its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scripted_parts import VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.chunk_validation import SUSPECT, defects, fits, misrouted
from asyncrl.engines.protocol import Chunk, Emit
from asyncrl.experience import events as e
from asyncrl.experience.call import Call
from asyncrl.messages import ChunkHead, Chunks, Hello, Replace
from asyncrl.simulation.sim_process import SimProcess

GARBLED: dict[str, Callable[[Chunk], Chunk]] = {
    "nan": lambda c: replace(c, behaviour=np.full(len(c.ids), np.nan, np.float32)),
    "vocabulary": lambda c: replace(c, ids=c.ids + np.int32(VOCABULARY)),
    "future_version": lambda c: replace(c, version=c.version + 1000),
    "unequal": lambda c: replace(c, behaviour=c.behaviour[:-1]),
    "negative_version": lambda c: replace(c, version=-1),
    "wrong_start": lambda c: replace(c, start=c.start + 1),
    "over_budget": lambda c: replace(
        c, ids=np.ones(100, np.int32), behaviour=np.full(100, -1, np.float32)
    ),
    "routing": lambda c: replace(c, routing=np.zeros((c.start + len(c.ids) + 1, 2), np.uint8)),
}


def garbling(
    world: ScriptedWorld, chosen: Callable[[Chunk], bool], how: Callable[[Chunk], Chunk]
) -> list[tuple[str, list[Chunk]]]:
    """Have engines garble chosen chunks that hold tokens. Returns their frames, as they were
    before, the garbled ones first."""
    made, frames = world.make_engine, list[tuple[str, list[Chunk]]]()

    def engine(process: SimProcess) -> object:
        inner = made(process)
        run = inner.run

        async def garbled(emit: Emit) -> None:
            async def deliver(chunks: Sequence[Chunk]) -> None:
                bad = [c for c in chunks if len(c.ids) and chosen(c)]
                if bad:
                    frames.append(("bad", bad))
                    frames.append(("good", [c for c in chunks if c not in bad]))
                await emit([how(c) if any(c is b for b in bad) else c for c in chunks])

            await run(deliver)

        inner.run = garbled  # type: ignore[method-assign]
        return inner

    world.make_engine = engine  # type: ignore[method-assign, assignment]
    return frames


@pytest.mark.parametrize(
    ("held", "width", "count", "routed", "bad"),
    [
        (0, 4, 2, 5, False),  # the first routing, of all five tokens
        (3 * 4, 4, 2, 2, False),
        (3 * 4, 2, 2, 2, True),  # of another width than that of the three tokens held
        (3 * 4, 4, 2, 6, True),  # of a sixth token, where there are five
        (3 * 4, 4, 0, 3, False),  # of earlier tokens alone
    ],
)
def test_experts_that_cannot_be_those_of_a_call(
    held: int, width: int, count: int, routed: int, bad: bool
) -> None:
    call = Call(7, 1, 16, ids=bytearray(3 * 4), routing=bytearray(held))
    head = ChunkHead(7, 1, 0, start=3, count=count, finish="", routed=routed)
    assert misrouted(head, call, width) == bad


def replaced(world: ScriptedWorld) -> list[str]:
    return [message.reason for message in world.heard if isinstance(message, Replace)]


@pytest.mark.parametrize("reason", list(GARBLED))
@pytest.mark.parametrize("held", [0, 4])
async def test_a_bad_chunk_costs_its_rollout_and_not_the_engine(
    reason: str, held: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}))
    once = iter([True])
    bad = garbling(world, lambda c: c.start >= held and next(once, False), GARBLED[reason])
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.learner.version == 4 and replaced(world) == []
    buried = [event for event in world.log.events if isinstance(event, e.Buried)]
    [(_, [chunk]), (_, others)] = bad
    assert {event.reason for event in buried} == {reason} and chunk.rollout in {
        event.rollout for event in buried
    }
    ledger = world.store.experience.ledger
    assert ledger.rollouts.discarded[reason] == len(buried)
    lost = Counter({event.rollout: 0 for event in buried})
    for event in world.log.events:
        if isinstance(event, e.Extended) and event.rollout in lost:
            lost[event.rollout] += len(event.ids) // 4
    assert lost[chunk.rollout] == chunk.start, (
        "of the bad chunk nothing is booked, of what was there before nothing is forgotten"
    )
    assert ledger.tokens.discarded.get(reason, 0) == lost.total()
    booked = {
        (event.rollout, event.start) for event in world.log.events if isinstance(event, e.Extended)
    }
    stand = {(c.rollout, c.start) for c in others if len(c.ids)}
    if reason == "unequal":
        assert {event.rollout for event in buried} == {chunk.rollout} | {
            c.rollout for c in others
        } and not stand & booked
    else:
        assert len(buried) == 1 and stand <= booked and len(stand) > 0
    assert (
        world.coordinator.parts.metrics.registry.get_sample_value(
            "asyncrl_bad_chunks_total", {"reason": reason}
        )
        == 1
    )
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    assert not trained & {event.rollout for event in buried}


def routed(ids: np.ndarray) -> np.ndarray:
    """A routing of three bytes that each token has, by its id: uint8 [tokens, 3]."""
    return np.stack([ids % 7, ids % 11, ids % 5], axis=1).astype(np.uint8)


async def test_each_token_of_a_frame_keeps_its_own_routing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, engine={"chunk_tokens": 2}))
    frames = garbling(world, lambda c: True, lambda c: replace(c, routing=routed(c.ids)))
    assert (await world.run()).ok
    extended = [event for event in world.log.events if isinstance(event, e.Extended)]
    assert max(len(chunks) for _, chunks in frames) > 2 and extended
    for event in extended:
        assert event.routing == routed(np.frombuffer(event.ids, np.int32)).tobytes()


async def test_an_engine_is_told_to_stop_what_is_buried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Long responses: without being told, its engine would go on with it, and all that would come
    late."""
    world = ScriptedWorld(configured(task={"eval_size": 0}, engine={"chunk_tokens": 2}))
    once = iter([True])
    bad = garbling(
        world, lambda c: c.start == 2 and not c.finish and next(once, False), GARBLED["nan"]
    )
    await world.run()
    assert len(bad) == 2
    assert sum(event.tokens for event in world.log.events if isinstance(event, e.LateTokens)) <= 2


@pytest.mark.parametrize("reason", list(GARBLED))
async def test_three_bad_chunks_cost_the_engine_its_place(
    reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 8}))
    garbling(world, lambda c: c.start == 0 and c.rollout in (1, 9, 17), GARBLED[reason])
    outcome = await world.run()
    world.check()
    assert outcome.ok and replaced(world) == [f"it sent what cannot be: 3 bad chunks (3 {reason})"]


async def test_the_sentence_names_what_was_wrong(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 8}))
    seen = Counter[int]()

    def how(chunk: Chunk) -> Chunk:
        seen.update(["chunks"])  # type: ignore[list-item]
        return GARBLED["nan" if seen.total() < SUSPECT else "vocabulary"](chunk)

    garbling(world, lambda c: c.start == 0 and c.rollout in (1, 9, 17), how)
    outcome = await world.run()
    world.check()
    assert outcome.ok and replaced(world) == [
        "it sent what cannot be: 3 bad chunks (2 nan, 1 vocabulary)"
    ]
    assert world.coordinator.parts.chunks.suspects.seen == {}, "its successor begins without a past"


async def test_two_bad_chunks_cost_no_engine(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 8}))
    garbling(world, lambda c: c.start == 0 and c.rollout in (1, 9), GARBLED["nan"])
    assert (await world.run()).ok and replaced(world) == []
    assert [event.rollout for event in world.log.events if isinstance(event, e.Buried)] == [1, 9]


async def test_a_group_of_which_all_is_garbage_leaves_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(task={"eval_size": 0}, rollout={"actors": 2}, train={"steps": 8})
    )
    garbling(world, lambda c: c.start == 0 and c.rollout in (4, 5, 6, 7), GARBLED["vocabulary"])
    outcome = await world.run()
    world.check()
    assert outcome.ok and [
        event.reason for event in world.log.events if isinstance(event, e.Dropped)
    ] == ["k_min"]


@pytest.mark.explore
async def test_who_has_no_engine_is_cut_off_for_the_first_bad_chunk(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(rollout={"actors": 2}))
    world.absent = {"rollout-1"}

    async def stranger() -> None:
        await world.until(lambda: world.learner.version >= 1)
        for heads, arrays in (
            (
                [ChunkHead(0, 1, 0, 0, 1, "")],
                (b"\0\0\0\0", np.full(1, np.nan, np.float32).tobytes()),
            ),
            ([ChunkHead(0, 1, 0, 0, -1, ""), ChunkHead(1, 1, 0, 0, 2, "")], (bytes(4), bytes(4))),
        ):
            link = await world.connect(Hello("rollout", 1, 0, 1))
            await link.send(Chunks(heads), *arrays)
            with pytest.raises(Exception, match=r"closed|broke|ended"):
                while True:
                    await link.receive()

    outcome = await world.run(stranger)
    world.check()
    assert outcome.ok and world.of(e.Buried) == []


counts = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(counts, st.data())
def test_every_bad_chunk_is_found_and_no_other(counts: list[int], data: st.DataObject) -> None:
    size = sum(counts)
    ids = np.array(
        data.draw(st.lists(st.sampled_from([0, 1, 9, 9, 3, 10, -1]), min_size=size, max_size=size)),
        np.int32,
    )
    scores = data.draw(
        st.lists(
            st.sampled_from([-1.0, 0.0, -2.5, -9.0, -1e30, np.nan, np.inf, -np.inf]),
            min_size=size,
            max_size=size,
        )
    )
    published = data.draw(st.sampled_from([None, 0, 3]))
    versions = data.draw(
        st.lists(st.sampled_from([0, 0, 3, 4]), min_size=len(counts), max_size=len(counts))
    )
    heads = [
        ChunkHead(n, 1, version, 0, count, "")
        for n, (count, version) in enumerate(zip(counts, versions, strict=True))
    ]
    behaviour = np.array(scores, np.float32)
    assert fits(heads, memoryview(ids.tobytes()), memoryview(behaviour.tobytes()))
    assert not fits(heads, memoryview(ids.tobytes() + bytes(4)), memoryview(behaviour.tobytes()))
    due = {}
    ends = [0, *np.cumsum(counts).tolist()]
    for place, (start, end) in enumerate(pairwise(ends)):
        if any(not 0 <= id < 10 for id in ids[start:end].tolist()):
            due[place] = "vocabulary"
        elif any(score - score != 0 for score in scores[start:end]):
            due[place] = "nan"
        elif end > start and (published is None or versions[place] > published):
            due[place] = "future_version"
    found = defects(
        heads,
        memoryview(ids.tobytes()),
        memoryview(behaviour.tobytes()),
        vocabulary=10,
        newest=published,
    )
    assert found == due
