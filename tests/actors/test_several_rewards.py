"""Rewards that are made of several: the trainer gets each member's parts, in the order of its
rewards, once more too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import trio.testing
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.algorithms.advantage_tensors import advantage_tensors
from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.config.loss_names import ADVANTAGES
from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored, Split, Verdict


def right_and_brief(split: Split, prompt_index: int, ids: bytes) -> Verdict:
    """Long answers get no verdict, so that rewards and members are not in step."""
    tokens = len(ids) // 4
    parts = [float(tokens % 2), 1.0 / (1 + tokens)]
    return Scored(sum(parts), parts) if tokens < 9 else NoVerdict("timeout")


@pytest.mark.parametrize("advantage", ["gdpo", "grpo"])
async def test_the_trainer_gets_the_parts_of_each_reward(
    advantage: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(
        configured(train={"advantage": advantage, "steps": 5, "replay_groups": 1})
    )
    world.verifiers = ScriptedVerifiers(right_and_brief, 0.05)
    outcome = await world.run()
    world.check()
    assert outcome.ok
    judged = {
        event.rollout: event.verdict for event in world.log.events if isinstance(event, e.Judged)
    }
    assert any(isinstance(verdict, NoVerdict) for verdict in judged.values()), "or this shows less"
    trained: Counter[int] = Counter()
    for batch, _ in world.learner.batches:
        assert set(batch.parts) == set(batch.rewards)
        for group, rewards in batch.rewards.items():
            assert rewards == pytest.approx([sum(parts) for parts in batch.parts[group]])
        for sample in batch.samples:
            verdict = judged[sample.rollout]
            assert isinstance(verdict, Scored) and sample.member is not None
            assert (
                batch.parts[sample.group][sample.member] == verdict.parts
                and sample.reward == verdict.reward
            )
            trained[sample.rollout] += 1
        given = RewardedSamples(batch.samples, batch.rewards, batch.parts)
        result = advantage_tensors(ADVANTAGES.find(advantage)(), given)
        assert torch.isfinite(result.value).all()
    assert max(trained.values()) == 2, "some were trained once more"
