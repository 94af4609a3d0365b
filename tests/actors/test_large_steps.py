"""A step may be of any number of commands for the trainer: they wait, in their order, and harm
neither the trainer nor a publication."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio
import trio.testing
from scripted_parts import ScriptedLearner
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.peers import OUTBOX
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.messages import Scored, ScoreProximal


class SlowScores(ScriptedLearner):
    """Takes as long to score texts as to train on them."""

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        await trio.sleep(0.2)
        await super().score_proximal(message, buffers)


def full(request: Request) -> Script:
    """Two prompts and responses are more than a micro-batch."""
    left = 8 - request.prefix_tokens
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.01, "stop")


def large(
    groups: int, train: dict[str, object], staleness: dict[str, object], **sections: dict
) -> ScriptedWorld:
    """Two steps of so many groups of four, each rollout a micro-batch."""
    made = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            engine={"slots": 4 * groups, "chunk_tokens": 8, "context_tokens": 32},
            rollout={"group_size": 4, "max_new_tokens": 8},
            train={
                "steps": 2,
                "batch_groups": groups,
                "micro_tokens": 32,
                "eval_every": 0,
                "checkpoint_every": 0,
                **train,
            },
            staleness={"depth": 1, **staleness},
            reward={"concurrency": 1000},
            **sections,
        )
    )
    made.source.prompts = lambda split, prompt_index: f"{prompt_index:010}"
    made.script = full
    made.verifiers._verdict = lambda split, prompt_index, ids: Scored(float(prompt_index % 2))
    return made


WHOLE = pytest.mark.parametrize(
    ("train", "staleness"),
    [({"advantage": "reinforce_pp"}, {}), ({}, {"proximal": "boundary"})],
    ids=["the rewards of a whole step", "texts to be scored"],
)


@pytest.mark.explore
@WHOLE
async def test_a_step_of_more_micro_batches_than_an_outbox_holds(
    train: dict[str, object], staleness: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    groups = OUTBOX // 4 + 10
    made = large(groups, train, staleness)
    outcome = await made.run()
    made.check()
    assert outcome.ok, outcome.reason
    assert len(made.learner.batches) == 2 * 4 * groups
    assert [batch.index for batch, _ in made.learner.batches] == [*range(4 * groups)] * 2


@WHOLE
async def test_a_publication_beside_a_step_that_takes_long(
    train: dict[str, object], staleness: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    """A step of 136 micro-batches takes 27 s, and a phase of a publication at most 4."""
    made = large(34, train, staleness, publication={"deadline_s": 4.0})
    made.learner = SlowScores(seconds_per_token=0.2 / 8)
    outcome = await made.run()
    made.check()
    assert outcome.ok, outcome.reason
    assert made.coordinator.parts.publishing.failed == []
    assert max(made.coordinator.parts.publishing.seconds) < 4
