"""One step may give the trainer more frames than an outbox holds: they wait, in their order, and
the trainer is not cut off."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from scripted_world import ScriptedWorld, configured

from actors.coordinator.peers import OUTBOX
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.ipc.messages import Scored


@pytest.mark.parametrize(
    ("train", "staleness"),
    [({"advantage": "reinforce_pp"}, {}), ({}, {"proximal": "boundary"})],
    ids=["the rewards of a whole step", "texts to be scored"],
)
async def test_a_step_of_more_micro_batches_than_an_outbox_holds(
    train: dict[str, object], staleness: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    groups = OUTBOX // 4 + 10
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
        )
    )

    def full(request: Request) -> Script:  # two prompts and responses are more than a micro-batch
        left = 8 - request.prefix_tokens
        return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.01, "stop")

    made.source.prompts = lambda split, prompt_index: f"{prompt_index:010}"
    made.script = full
    made.verifiers._verdict = lambda split, prompt_index, ids: Scored(float(prompt_index % 2))
    outcome = await made.run()
    made.check()
    assert outcome.ok, outcome.reason
    assert len(made.learner.batches) == 2 * 4 * groups
    assert [batch.index for batch, _ in made.learner.batches] == [*range(4 * groups)] * 2
