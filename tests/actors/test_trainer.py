"""The trainer actor carries out its commands one after the other, in the order in which they came;
a checkpoint is copied in its turn, and written beside what follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from memory_link import memory_links
from scripted_parts import ScriptedLearner

from asyncrl.actors.reporting import Reporter
from asyncrl.actors.trainer_actor import trainer_actor
from asyncrl.messages import (
    Abort,
    CloseStep,
    Drain,
    Drained,
    Message,
    Publish,
    Report,
    Sample,
    Save,
    Saved,
    ScoredProximal,
    ScoreProximal,
    Span,
    Stepped,
    TrainerReady,
    Transferred,
)
from asyncrl.runtime.ipc.errors import EndOfStream
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.training.checkpoint_index import CheckpointError


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
        answers = []
        while not answers or not isinstance(answers[-1], Drained):
            answers.append((await here.receive())[0])
    assert [message.step for message in learner.to_score] == [0, 1]
    assert [type(message) for message in answers] == [
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
        answers: dict[type[Message], float] = {}
        while Stepped not in answers:
            message, _ = await here.receive()
            answers.setdefault(type(message), trio.current_time())
            if isinstance(message, Transferred):
                assert (message.publication, message.error) == (1, "aborted")
        nursery.cancel_scope.cancel()
    assert answers[Transferred] < answers[Stepped] - 90.0


WRITE_S = 20.0


class SavingLearner(ScriptedLearner):
    """Copies take 1 s and writing takes WRITE_S; `failing` is raised by the first."""

    def __init__(self, failing: Exception | None = None) -> None:
        super().__init__(step_s=0.5)
        self.failing = failing
        self.log: list[tuple[float, str, int]] = []

    async def copy(self, save: Save):  # type: ignore[no-untyped-def]
        self.log.append((trio.current_time(), "copy", self.version))
        await trio.sleep(1.0)
        return await super().copy(save)

    async def write(self, version: int, cursor: int) -> Path:
        await trio.sleep(WRITE_S)
        self.log.append((trio.current_time(), "written", version))
        if self.failing:
            failing, self.failing = self.failing, None
            raise failing
        self.saved.append((version, cursor))
        return Path(f"/checkpoints/{version}")


async def answers_to(learner: SavingLearner, *messages: Message) -> list[tuple[float, Message]]:
    """The actor's answers but reports, each with its time, until it is drained, or fails."""
    waits, answers = Waits(), list[tuple[float, Message]]()
    here, there = memory_links()
    start = trio.current_time()
    learner.log.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trainer_actor, there, learner, learner, waits, Reporter(waits))
        for message in (*messages, Drain()):
            await here.send(message)
        while not answers or not isinstance(answers[-1][1], Drained):
            try:
                message, _ = await here.receive()
            except EndOfStream:
                break
            if not isinstance(message, Report):
                answers.append((trio.current_time() - start, message))
    return answers


async def test_steps_are_made_while_a_checkpoint_is_written_and_the_end_waits_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The trainer stands for the copy alone, and the answer names what was copied."""
    learner = SavingLearner()
    answers = await answers_to(learner, CloseStep(0), Save(7), CloseStep(1), CloseStep(2))
    assert [(round(at, 1), type(message)) for at, message in answers] == [
        (0.0, TrainerReady),
        (0.5, Stepped),
        (2.0, Stepped),
        (2.5, Stepped),
        (1.5 + WRITE_S, Saved),
        (1.5 + WRITE_S, Drained),
    ]
    assert answers[4][1] == Saved(1, "/checkpoints/1") and learner.saved == [(1, 7)]
    assert learner.version == 3


async def test_a_second_checkpoint_is_copied_when_the_first_is_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its copy would be made over the one that is being written."""
    learner = SavingLearner()
    answers = await answers_to(learner, Save(7), CloseStep(0), Save(8))
    assert [(what, version) for _, what, version in learner.log] == [
        ("copy", 0),
        ("written", 0),
        ("copy", 1),
        ("written", 1),
    ]
    assert [message for _, message in answers if isinstance(message, Saved)] == [
        Saved(0, "/checkpoints/0"),
        Saved(1, "/checkpoints/1"),
    ]


async def test_a_checkpoint_that_cannot_be_written_is_said_and_the_next_one_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    learner = SavingLearner(CheckpointError("there is no room"))
    answers = await answers_to(learner, Save(7), CloseStep(0), Save(8))
    assert [message for _, message in answers if isinstance(message, Saved)] == [
        Saved(0, "", "there is no room"),
        Saved(1, "/checkpoints/1"),
    ]


async def test_a_writer_that_fails_otherwise_ends_the_trainer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.RaisesGroup(MemoryError, flatten_subgroups=True):
        await answers_to(SavingLearner(MemoryError()), Save(7), *(CloseStep(n) for n in range(3)))
