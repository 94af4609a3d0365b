"""Whole runs in virtual time: what the design promises of a run, whatever happens to its actors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from memory_link import memory_links
from scripted_parts import ScriptedVerifiers, by_length
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.collect_status import collect_status, collect_update
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.explain import run_status
from asyncrl.explain.curve import Curve, EvaluationPoint, StepPoint, point_of
from asyncrl.messages import (
    Drain,
    Hello,
    NoVerdict,
    Replace,
    Report,
    Scored,
    Split,
    StatusUpdate,
    Verdict,
)


async def test_a_run_trains_every_step_and_evaluates_the_first_and_the_last_version(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    outcome = await world.run()
    world.check()
    assert outcome.ok and outcome.reason == "all 4 steps are done"
    assert world.learner.version == 4
    assert sorted(world.coordinator.parts.evaluation.accuracy) == [0, 2, 4]
    taken = [event for event in world.log.events if isinstance(event, e.Taken)]
    assert {event.step for event in taken} == {0, 1, 2, 3}
    assert [version for version, _ in world.learner.saved] == [2, 4]
    published = [event.version for event in world.log.events if isinstance(event, e.Published)]
    assert published == sorted(published) and set(published) == {0, 1, 2, 3, 4}
    assert any(isinstance(message, StatusUpdate) for message in world.heard)


async def test_every_step_and_every_evaluation_is_a_point_of_the_curve(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The display shows the last of each, and the summary the first and the last evaluation."""
    world, lines = ScriptedWorld(configured()), list[bytes]()
    world.curve = lambda: Curve(keep=lines.append)  # type: ignore[method-assign]
    outcome = await world.run()
    points = [point_of(line) for line in lines]
    steps = [point for point in points if isinstance(point, StepPoint)]
    tested = [point for point in points if isinstance(point, EvaluationPoint)]
    assert [point.version for point in steps] == [1, 2, 3, 4]
    assert [point.version for point in tested] == [0, 2, 4]
    trained = [event for event in world.log.events if isinstance(event, e.Trained)]
    assert sum(point.trained for point in steps) == sum(event.trained for event in trained) > 0
    discarded = sum((Counter(point.discarded) for point in steps), Counter())
    assert discarded == sum((Counter(event.discarded) for event in trained), Counter())
    lags = world.trained_lags()
    assert max(point.lag_max for point in steps) == max(lags)
    assert all(point.metrics["loss"] == 0.0 and 0 <= point.reward <= 1 for point in steps)  # type: ignore[operator]
    assert [point.seconds for point in steps] == sorted(point.seconds for point in steps)
    last = [message for message in world.heard if isinstance(message, StatusUpdate)][-1]
    assert last.reward == steps[-1].reward and last.accuracy == tested[-1].accuracy
    found = world.coordinator_summary(outcome).accuracy
    assert (found.start, found.end) == (tested[0].accuracy, tested[-1].accuracy)


async def test_a_resumed_run_evaluates_nothing_twice_and_shows_what_it_knew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world, lines = ScriptedWorld(configured()), list[bytes]()
    known = EvaluationPoint(version=0, at=1e9, seconds=50.0, accuracy=0.125)
    world.curve = lambda: Curve([known], lines.append)  # type: ignore[method-assign]
    outcome = await world.run()
    points = [point for point in map(point_of, lines) if point is not None]
    tested = [point.version for point in points if isinstance(point, EvaluationPoint)]
    assert tested == [2, 4] and world.coordinator_summary(outcome).accuracy.start == 0.125
    last = [message for message in world.heard if isinstance(message, StatusUpdate)][-1]
    assert (last.accuracy_version, last.accuracy) == (4, world.coordinator.parts.curve.accuracy[4])
    assert min(point.seconds for point in points) > 50.0


async def test_nothing_is_admitted_before_version_0_is_published(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    await world.run()
    kinds = [type(event) for event in world.log.events]
    assert kinds[0] is e.Published and e.Admitted in kinds


async def test_each_step_takes_batch_groups_groups_and_they_are_trained_before_the_step_is_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(train={"batch_groups": 4, "steps": 3, "micro_tokens": 64}))
    await world.run()
    groups: dict[int, set[int]] = {}
    for batch, _ in world.learner.batches:
        groups.setdefault(batch.step, set()).update(sample.group for sample in batch.samples)
    assert {step: len(found) for step, found in groups.items()} == {0: 4, 1: 4, 2: 4}
    assert max(batch.index for batch, _ in world.learner.batches) > 0


async def test_max_lag_0_is_on_policy(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(staleness={"max_lag": 0, "depth": 0}))
    outcome = await world.run()
    world.check()
    assert outcome.ok and set(world.trained_lags()) == {0}
    assert not world.store.experience.ledger.tokens.discarded.get("stale")


@pytest.mark.parametrize("on_stale", ["mask", "drop", "restart", "train"])
async def test_no_token_over_max_lag_is_trained_unless_asked(
    on_stale: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Responses that take several steps to generate: with `train` the same run does go over the
    bound."""
    world = ScriptedWorld(
        configured(
            staleness={"max_lag": 1, "depth": 1, "on_stale": on_stale},
            rollout={"max_new_tokens": 50, "group_size": 2},
            train={"steps": 12, "eval_every": 0, "batch_groups": 1},
            supervision={"stall_s": 1000.0},
        )
    )

    def script(request: Request) -> Script:
        """Every third group is slow."""
        slow = request.key // 2 % 3 == 0
        left = (50 if slow else 4) - request.prefix_tokens
        from numpy import float32, full, int32

        return Script(full(left, 5, int32), full(left, -1.0, float32), 0.05, "stop")

    world.script = script
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    lags = world.trained_lags()
    stale = world.store.experience.ledger.tokens.discarded.get("stale", 0)
    assert max(lags) > 1 if on_stale == "train" else stale > 0
    if on_stale == "restart":
        assert any(
            event.restarts is not None
            for event in world.log.events
            if isinstance(event, e.Admitted)
        )


async def test_a_killed_rollout_actor_costs_nothing_that_was_streamed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(train={"steps": 6}, rollout={"actors": 2, "attempts": 50}))

    async def murderer() -> None:
        for at in range(6):
            name = f"rollout-{at % 2}"
            await world.until(
                lambda at=at, name=name: world.learner.version >= at and world.holds(name)
            )
            world.kill(name)
            await trio.sleep(2)

    outcome = await world.run(murderer)
    world.check()
    assert outcome.ok, outcome.reason
    requeued = [event for event in world.log.events if isinstance(event, e.Requeued)]
    assert requeued and {event.reason for event in requeued} <= {"actor_lost", "interrupted"}
    again = {event.rollout for event in requeued}
    trained = {event.rollout: event for event in world.log.events if isinstance(event, e.Trained)}
    assert again & trained.keys()
    # What was streamed before the loss is in what was trained: one rollout, continued.
    streamed = {
        id: sum(
            len(x.ids) // 4
            for x in world.log.events
            if isinstance(x, e.Extended) and x.rollout == id
        )
        for id in again
    }
    assert all(
        trained[id].trained + sum(trained[id].discarded.values()) == streamed[id]
        for id in again & trained.keys()
    )


async def test_a_rollout_that_fails_again_and_again_is_buried_and_its_group_completes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(rollout={"attempts": 2, "lease_s": 3.0}))

    def script(request: Request) -> Script:
        from numpy import float32, full, int32

        cursed = request.rollout == 1 and request.version is None
        return Script(full(4, 5, int32), full(4, -1.0, float32), 100.0 if cursed else 0.01, "stop")

    world.script = script
    outcome = await world.run()
    world.check()
    assert outcome.ok
    assert [event.rollout for event in world.log.events if isinstance(event, e.Buried)] == [1]
    assert any(sample.group == 0 for batch, _ in world.learner.batches for sample in batch.samples)


async def test_a_lost_reward_actor_is_asked_again_elsewhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    world.verifiers._seconds = 0.5

    async def murderer() -> None:
        await world.until(lambda: world.verifiers.asked > 3)
        world.kill("reward-0")

    outcome = await world.run(murderer)
    world.check()
    assert outcome.ok
    judged = [event.rollout for event in world.log.events if isinstance(event, e.Judged)]
    assert len(judged) == len(set(judged)) and world.verifiers.asked > len(judged)


async def test_answers_without_a_verdict_are_not_zero(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(rollout={"k_min": 3}))

    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return NoVerdict("timeout") if len(ids) // 4 % 3 == 0 else Scored(len(ids) / 4)

    world.verifiers._verdict = verdict
    outcome = await world.run()
    world.check()
    assert outcome.ok
    for batch, _ in world.learner.batches:
        assert all(len(rewards) >= 3 and 0.0 not in rewards for rewards in batch.rewards.values())
        assert all(sample.response_tokens % 3 for sample in batch.samples)
    discarded = world.store.experience.ledger.rollouts.discarded
    assert discarded.get("no_verdict") or discarded.get("k_min")


async def test_a_lost_trainer_ends_the_run_and_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(train={"steps": 50}))

    async def murderer() -> None:
        await world.until(lambda: world.learner.version >= 2)
        world.kill("trainer-0")

    outcome = await world.run(murderer)
    assert not outcome.ok and "trainer" in outcome.reason
    assert world.store.experience.ledger.balances()


async def test_pain_19_an_engine_with_other_weights_never_decodes_with_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(rollout={"actors": 2}))
    wrong = iter([True])
    world.checksums = lambda index, version: (
        [0] if index == 1 and version == 2 and next(wrong, False) else [1000 + version]
    )
    outcome = await world.run()
    world.check()
    assert outcome.ok
    assert [m.index for m in world.heard if isinstance(m, Replace)] == [1]


async def test_pain_01_where_nobody_returns_the_run_ends_and_names_the_missing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(supervision={"stall_s": 30.0}, rollout={"lease_s": 1000.0}))

    def script(request: Request) -> Script:
        from numpy import float32, full, int32

        return Script(full(4, 5, int32), full(4, -1.0, float32), 10_000.0, "stop")

    world.script = script
    outcome = await world.run()
    assert not outcome.ok
    assert (
        "no token and no step for 30 s" in outcome.reason
        and "rollout-0 has streamed nothing for" in outcome.reason
    )


async def test_a_drain_parks_what_is_generated_and_saves_what_is_learned(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(train={"steps": 1000, "checkpoint_every": 0}, supervision={"grace_s": 5.0})
    )

    async def user() -> None:
        await world.until(lambda: world.learner.version >= 3)
        world.tell(Drain())
        began = trio.current_time()
        await world.until(
            lambda: (
                world.coordinator.parts.lifecycle.ending
                and len(world.coordinator.parts.roster.drained) == 3
            )
        )
        assert trio.current_time() - began < 5.0

    outcome = await world.run(user)
    world.check()
    assert outcome.ok and "--resume" in outcome.reason
    assert world.learner.saved and world.learner.saved[-1][0] == world.learner.version
    assert not any(rollout.holder for rollout in world.store.experience.rollouts.values())


@pytest.mark.parametrize("late_s", [0.06, 0.3, 1.0])
async def test_an_engine_that_joins_late_is_caught_up_and_disturbs_nobody(
    late_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(configured(rollout={"actors": 3}, train={"steps": 12, "eval_every": 3}))
    world.late_s = late_s
    outcome = await world.run()
    world.check()
    assert outcome.ok and not any(isinstance(message, Replace) for message in world.heard)
    assert {event.holder for event in world.log.events if isinstance(event, e.Leased)} == {
        "rollout-0",
        "rollout-1",
        "rollout-2",
    }
    asked = sum(
        isinstance(event, e.Admitted) and event.split == "evaluation" for event in world.log.events
    )
    assert asked == 4 * len(world.coordinator.parts.evaluation.accuracy)
    assert world.coordinator.parts.publishing.failed == []


RUNS = {
    "one step": {"train": {"steps": 1}},
    "one step, no evaluation": {"train": {"steps": 1}, "task": {"eval_size": 0}},
    "evaluation at every step": {"train": {"eval_every": 1}},
    "evaluation on the last step only": {"train": {"eval_every": 0}},
    "one group a step": {"train": {"batch_groups": 1}},
    "depth 3": {"staleness": {"depth": 3}},
    "micro-batches of one rollout": {"train": {"micro_tokens": 1}},
    "one answer token": {"rollout": {"max_new_tokens": 1}},
    "one slot": {"engine": {"slots": 1}},
    "three engines, three reward actors": {
        "rollout": {"actors": 3, "lease_s": 50.0},
        "reward": {"actors": 3},
        "supervision": {"stall_s": 100.0},
    },
}


@pytest.mark.parametrize("name", RUNS)
async def test_every_shape_of_run_exits_by_itself(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(configured(**RUNS[name]))
    with trio.fail_after(10_000):
        outcome = await world.run()
    world.check()
    assert outcome.ok and world.learner.version == world.config.train.steps
    if world.config.task.eval_size:
        assert {0, world.config.train.steps} <= world.coordinator.parts.evaluation.accuracy.keys()


async def test_more_steps_than_data_trains_what_there_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(task={"train_size": 7, "epochs": 1, "eval_size": 4}, train={"steps": 50})
    )
    with trio.fail_after(10_000):
        outcome = await world.run()
    world.check()
    assert outcome.ok and "used up after 4 of 50 steps" in outcome.reason
    assert (
        sum(isinstance(event, e.Admitted) and event.split == "train" for event in world.log.events)
        == 7
    )
    assert collect_update(world.coordinator.parts).steps == 4, "the display counts to what there is"
    assert collect_status(world.coordinator.parts).steps == 4
    assert 4 in world.coordinator.parts.evaluation.accuracy and world.learner.saved[-1][0] == 4
    assert world.store.experience.ledger.rollouts.live == 0


@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("varied", [0, 16, 1000])
async def test_a_run_that_ends_with_its_data_leaves_its_models_once_whatever_was_filtered(
    every: int, varied: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The rewards of the first `varied` answers differ. Of the others, which are judged later, none
    is trained: the checkpoint of the last version is there before this is known."""
    world = ScriptedWorld(
        configured(
            rollout={"filter": "zero_variance"},
            task={"train_size": 10, "epochs": 1, "eval_size": 0},
            train={"steps": 50, "checkpoint_every": every},
        )
    )

    class Later(ScriptedVerifiers):
        async def judge(self, *asked: Any) -> TimedVerdict:
            self.asked += 1
            if self.asked <= varied:
                return TimedVerdict(by_length(*asked[:2], bytes(asked[2])), 0.0)
            await trio.sleep(20.0)
            return TimedVerdict(Scored(1.0), 20.0)

    world.verifiers = Later(by_length, 0.0)
    outcome = await world.run()
    world.check()
    assert outcome.ok and "used up after" in outcome.reason
    left = [version for version, models in world.learner.models if models != "no"]
    assert left == [world.learner.version]
    assert len({version for version, _ in world.learner.saved}) == len(world.learner.saved)
    if varied == 0 or (varied == 16 and every == 1):
        assert world.learner.models[-1] == (world.learner.version, "alone")


@pytest.mark.parametrize("epochs", [0, 2])
async def test_pain_12_a_run_whose_groups_are_all_filtered_ends_and_says_why(
    epochs: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(
        configured(
            rollout={"filter": "zero_variance", "filter_patience": 30},
            task={"train_size": 10, "epochs": epochs, "eval_size": 0},
        )
    )
    world.verifiers._verdict = lambda split, prompt_index, ids: Scored(1.0)
    with trio.fail_after(10_000):
        outcome = await world.run()
    world.check()
    assert (
        ("none had rewards that differ" in outcome.reason and not outcome.ok)
        if epochs == 0
        else "used up after 0 of" in outcome.reason
    )
    discarded = world.store.experience.ledger.rollouts.discarded
    assert discarded["zero_variance"] == sum(discarded.values())


async def test_prompts_that_leave_no_room_for_an_answer_are_dropped_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    world.source.prompts = lambda split, prompt_index: (
        "x" * (60 if split == "train" and prompt_index % 2 else 5)
    )
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.store.experience.ledger.rollouts.discarded["prompt_too_long"]


async def test_prompts_that_no_model_can_read_are_dropped_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An empty prompt ended the coordinator, and each resume; an id without a row in the embedding
    killed a rollout actor until its restarts were spent."""
    world = ScriptedWorld(configured(task={"eval_size": 3}))
    world.source.prompts = lambda split, prompt_index: ("", "x", "z")[prompt_index % 3]
    world.source.embedded = max(world.source.encode("x")) + 1
    assert max(world.source.encode("z")) >= world.source.embedded
    outcome = await world.run()
    world.check()
    discarded = world.store.experience.ledger.rollouts.discarded
    assert outcome.ok and world.learner.version == 4
    assert discarded["prompt_empty"] > 1 and discarded["prompt_unknown_token"] > 1


async def test_the_summary_says_what_the_events_say(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured())
    summary = world.coordinator_summary(await world.run())
    assert summary.ok and summary.balances() and summary.steps == 4
    extended = [event for event in world.log.events if isinstance(event, e.Extended)]
    late = sum(event.tokens for event in world.log.events if isinstance(event, e.LateTokens))
    assert summary.tokens.generated == sum(len(event.ids) // 4 for event in extended) + late
    lags = world.trained_lags()
    assert summary.tokens.trained == lags.total()
    assert summary.lag.max == max(lags) and summary.lag.mean == pytest.approx(
        sum(k * n for k, n in lags.items()) / lags.total()
    )
    assert (
        summary.publication.count
        == sum(isinstance(event, e.Published) for event in world.log.events)
        >= 5
        and 0 < summary.publication.seconds < world.seconds
    )
    assert summary.accuracy.start == world.coordinator.parts.evaluation.accuracy[0]


async def test_a_status_with_counts_of_agents_can_be_read(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Counts come as numbers with a fraction, as every increase does."""
    world = ScriptedWorld(configured(train={"steps": 1}))
    with trio.fail_after(10_000):
        await world.run()
    told = Report(1.0, {}, {"agents_offered_tools": 3, "agents_unread_calls": 1}, [])
    came = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Report)
    agents = Peer(Hello("agents", 0, 0, 1), memory_links()[0])
    parts = world.coordinator.parts
    parts.statistics.on_report(agents, came, True)
    run_status.write(collect_status(parts), tmp_path / "status.json")
    found = run_status.read(tmp_path / "status.json")
    assert (found.tool_replies, found.unread_calls) == (3, 1)
