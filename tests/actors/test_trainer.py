"""The trainer actor does what it is told, one after the other, in the order it came."""

from __future__ import annotations

import numpy as np
import trio
import trio.testing
from scripted_parts import ScriptedLearner

from actors.reporting import Reporter
from actors.trainer_actor import trainer_actor
from asyncrl.ipc.link import memory_links
from asyncrl.ipc.messages import (
    Abort,
    CloseStep,
    Drain,
    Drained,
    Message,
    Publish,
    Sample,
    ScoredProximal,
    ScoreProximal,
    Span,
    Stepped,
    TrainerReady,
    Transferred,
)
from asyncrl.ipc.waits import Waits


async def test_texts_are_scored_before_the_step_that_follows_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After it their version is gone."""
    learner, waits = ScriptedLearner(), Waits()
    here, there = memory_links()
    samples = [Sample(7, 3, 2, 3, float("nan"), [Span(0, 2, 5)])]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trainer_actor, there, learner, learner, waits, Reporter(waits))
        for step in range(2):
            await here.send(
                ScoreProximal(step, samples, [7]), np.arange(5, dtype=np.int32).tobytes()
            )
            await here.send(CloseStep(step))
        await here.send(Drain())
        said = []
        while not said or not isinstance(said[-1], Drained):
            said.append((await here.receive())[0])
    assert [message.step for message in learner.to_score] == [0, 1]
    assert [type(message) for message in said] == [
        TrainerReady,
        *(ScoredProximal, Stepped) * 2,
        Drained,
    ]


async def test_a_publication_that_waits_for_a_step_is_aborted_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    learner, waits = ScriptedLearner(step_s=100.0), Waits()
    here, there = memory_links()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trainer_actor, there, learner, learner, waits, Reporter(waits))
        await here.send(CloseStep(0))
        await trio.sleep(1.0)
        await here.send(Publish(1, 0, 2))
        await here.send(Abort(1))
        said: dict[type[Message], float] = {}
        while Stepped not in said:
            message, _ = await here.receive()
            said.setdefault(type(message), trio.current_time())
            if isinstance(message, Transferred):
                assert (message.publication, message.error) == (1, "aborted")
        nursery.cancel_scope.cancel()
    assert said[Transferred] < said[Stepped] - 90.0
