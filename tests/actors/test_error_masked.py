"""Tokens that a verifier found wrong are out of the loss, and in the ledger by name."""

from __future__ import annotations

import pytest
import trio
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.experience import events as e
from asyncrl.messages import Scored, Split, Verdict
from asyncrl.simulation.scripted_agents import ScriptedAgents


async def test_they_are_discarded_as_error_and_the_rest_is_trained(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def first_half(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        tokens = len(ids) // 4
        errors = [(0, tokens // 2)] if tokens > 1 else []
        return Scored(float(tokens % 2), errors=errors)

    world = ScriptedWorld(configured())
    world.verifiers = ScriptedVerifiers(first_half, 0.05)
    outcome = await world.run()
    world.check()
    assert outcome.ok
    trained = [event for event in world.log.events if isinstance(event, e.Trained)]
    assert trained and all(
        event.discarded.get("error", 0) == (event.trained + event.discarded.get("error", 0)) // 2
        for event in trained
        if not event.discarded.get("stale")
    )
    assert world.store.experience.ledger.tokens.discarded["error"] > 0
    stepping = world.coordinator.parts.stepping
    assert stepping is not None and stepping.lags == world.trained_lags()


async def test_errors_outside_the_response_are_no_verdict(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A reward actor that was taken over may say anything."""

    def outside(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        tokens = len(ids) // 4
        wrong = split == "train" and tokens % 2
        return Scored(float(tokens % 3), errors=[(0, tokens + 1)] if wrong else [])

    world = ScriptedWorld(configured(rollout={"k_min": 1}))
    world.verifiers = ScriptedVerifiers(outside, 0.05)
    outcome = await world.run()
    world.check()
    assert outcome.ok
    (reason,) = world.coordinator.parts.scoring.failures.counts
    assert reason.startswith("error spans")
    assert "error" not in world.store.experience.ledger.tokens.discarded


@pytest.mark.parametrize("tools", [(), ("search",)])
async def test_errors_of_an_episode_are_those_of_its_last_reply(
    tools: tuple[str, ...], autojump_clock: trio.testing.MockClock
) -> None:
    """Of four turns; the first one may be masked as a failed call besides, and the last as well."""

    def first_half(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        tokens = len(ids) // 4
        return Scored(float(tokens % 2), errors=[(0, tokens // 2)] if tokens > 1 else [])

    world = ScriptedWorld(configured(agent={"run": "my_agent:solve", "mask_failed": tools}))
    world.agents = ScriptedAgents(4, 6, reward=lambda *_: None, failing=(0, 3))
    world.verifiers = ScriptedVerifiers(first_half, 0.05)
    outcome = await world.run()
    assert outcome.ok and world.store.experience.ledger.balances()
    trained = [event for event in world.log.events if isinstance(event, e.Trained)]
    for event in trained:
        turns = [len(reply) for _, reply in world.agents.seen[event.rollout]]
        errors = turns[0] + turns[3] if tools else turns[3] // 2
        assert event.discarded.get("stale") or event.discarded.get("error", 0) == errors
        assert event.trained + sum(event.discarded.values()) == sum(turns)
    assert any(event.discarded.get("error") for event in trained)
    # the mask marks the beginning of the last reply, and of no other
    if not tools:
        batch, mask = world.learner.batches[0]
        first = world.agents.seen[batch.samples[0].rollout]
        lengths = [len(reply) for _, reply in first]
        of_first = mask[: sum(lengths)]
        expected = b"\x01" * (sum(lengths[:3])) + b"\x00" * (lengths[3] // 2)
        assert bytes(bool(kind == 1) for kind in of_first[: len(expected)]) == expected
