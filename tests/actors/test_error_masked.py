"""Tokens that a verifier found wrong are out of the loss, and in the ledger by name."""

from __future__ import annotations

import trio
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.experience import events as e
from asyncrl.ipc.messages import Scored, Split, Verdict


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
    assert outcome.ok and world.coordinator.parts.scoring.no_verdicts["error spans"] > 0
    assert "error" not in world.store.experience.ledger.tokens.discarded
