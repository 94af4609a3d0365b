"""A run of several tasks: admitted by weight, measured by label."""

from __future__ import annotations

from collections import Counter, defaultdict

import trio
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.collect_status import collect_update
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.config.mix import members
from asyncrl.experience import events as e
from asyncrl.messages import Scored, Split, Verdict
from asyncrl.tasks.mixed import parts_of

TASK = {
    "eval_size": 4,
    "train_size": 500,
    "mix": {"easy": {}, "hard": {}, "held": {"eval_size": 3}},
    "weights": {"easy": [1.0, 0.5], "hard": [0.0, 0.5]},
    "stages": [4],
}


class MixedWorld(ScriptedWorld):
    """Its prompts are of three tasks of 500 each. Those of `hard` are never answered rightly."""

    def __init__(self) -> None:
        super().__init__(configured(task=TASK, train={"steps": 8}, evaluation={"samples": 2}))
        self.source._sizes = {"train": 1500, "evaluation": 11}
        self.verifiers = ScriptedVerifiers(self.verdict, 0.05)

    def prompts(self) -> PromptSource:
        task = self.config.task
        parts = parts_of(
            task,
            lambda label, split: 500 if split == "train" else members(task)[label].eval_size,
        )
        return PromptSource(
            self.source, self.source, seed=0, epochs=0, parts=parts, stages=task.stages
        )

    def verdict(self, split: Split, prompt_index: int, ids: bytes) -> Verdict:
        hard = prompt_index // (500 if split == "train" else 4) == 1
        return Scored(0.0 if hard else 1.0)


async def test_prompts_come_by_the_weights_of_their_stage_and_are_measured_by_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = MixedWorld()
    outcome = await world.run()
    world.check()
    assert outcome.ok
    admitted = [event for event in world.log.events if isinstance(event, e.Admitted)]
    tasks = [event.prompt_index // 500 for event in admitted if event.split == "train"]
    assert set(tasks[:4]) == {0} and set(tasks[4:]) == {0, 1}
    figures = collect_update(world.coordinator.parts).evaluated
    assert figures["accuracy/easy"] == figures["accuracy/held"] == figures["avg@2/held"] == 1.0
    assert figures["accuracy/hard"] == figures["avg@2/hard"] == 0.0
    assert figures["avg@2"] == 7 / 11
    assert collect_update(world.coordinator.parts).accuracy == 7 / 11


async def test_rewards_of_a_step_are_by_task(autojump_clock: trio.testing.MockClock) -> None:
    world = MixedWorld()
    seen: list[dict[str, float]] = []

    async def look() -> None:
        for version in range(1, 8):
            await world.until(lambda wanted=version: world.learner.version >= wanted)
            await trio.sleep(0.005)
            stepping = world.coordinator.parts.stepping
            assert stepping is not None
            seen.append(dict(stepping.metrics))

    assert (await world.run(look)).ok
    labels = Counter(name for metrics in seen for name in metrics if name.startswith("reward/"))
    assert labels.keys() == {"reward/easy", "reward/hard"}
    means = defaultdict(set)
    for metrics in seen:
        for name, value in metrics.items():
            means[name].add(value)
    assert means["reward/easy"] == {1.0} and means["reward/hard"] == {0.0}
    assert means["exact/easy"] == {1.0} and means["exact/hard"] == {0.0}
