"""Alarms of a run while they last, their number, and the distance of the trained sample from the
generated one."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import trio.testing
from scripted_parts import ScriptedLearner, ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.collect_status import collect_status
from asyncrl.config import Config
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.explain.curve import Curve, Point, StepPoint, point_of
from asyncrl.explain.summary import Alarmed, Responses, Summary
from asyncrl.messages import NoVerdict, Scored, StatusUpdate

APART = 0.5
"""A k3 over its bound."""


class Drifting(ScriptedLearner):
    """A learner whose policy is far from the engines' in the steps that make versions 2, 3 and
    5."""

    async def step(self) -> dict[str, float]:
        metrics = await super().step()
        return metrics | {"k3": APART if self.version in (2, 3, 5) else 0.01}


async def test_an_alarm_lasts_as_long_as_its_cause_and_is_counted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = ScriptedWorld(configured(train={"steps": 6, "eval_every": 0}, task={"eval_size": 0}))
    world.learner = Drifting()
    scraped: dict[int, float | None] = {}
    told: dict[int, list[str]] = {}

    async def watch() -> None:
        for version in range(1, 6):
            await world.until(
                lambda version=version: bool(
                    (t := world.coordinator.parts.stepping) and t.version >= version
                )
            )
            scraped[version] = world.coordinator.parts.metrics.registry.get_sample_value(
                "asyncrl_alarm", {"cause": "divergence"}
            )
            told[version] = collect_status(world.coordinator.parts).alarms

    with caplog.at_level(logging.WARNING):
        outcome = await world.run(watch)
    summary = world.coordinator_summary(outcome)
    assert outcome.ok and summary.steps == 6
    assert scraped == {1: None, 2: 1.0, 3: 1.0, 4: None, 5: 1.0}
    assert {version: len(alarms) for version, alarms in told.items()} == {
        1: 0,
        2: 1,
        3: 1,
        4: 0,
        5: 1,
    }
    [sentence] = told[2]
    assert f"k3 is {APART:g}, over its bound of 0.1" in sentence
    assert summary.alarms == {"divergence": Alarmed(3, sentence)}
    logged = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("alarm ")
    ]
    assert logged == [
        f"alarm divergence in the step that made version {version}: {sentence}"
        for version in (2, 5)
    ], "once for each time"


async def test_tokens_left_out_for_their_age_are_an_alarm(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Groups of one rollout, so many at a time that short ones make several versions while a long
    one goes on."""
    changes = {
        "train": {"steps": 40, "batch_groups": 1, "eval_every": 0},
        "staleness": {"max_lag": 1},
    }
    world = ScriptedWorld(
        configured(
            **changes,
            task={"eval_size": 0},
            rollout={"group_size": 1, "k_min": 1, "overprovision": 7.0},
        )
    )
    world.learner = ScriptedLearner(seconds_per_token=0.0, step_s=0.001)
    summary = world.coordinator_summary(await world.run())
    masked = summary.tokens.discarded.get("stale", 0)
    over = 0
    for batch, mask in world.learner.batches:
        assert len(batch.samples) == 1, "a step is one rollout"
        over += mask.count(0) > 0.5 * len(mask)
    assert masked and over, "or this shows nothing"
    [(name, alarmed)] = summary.alarms.items()
    assert name == "masked_stale" and alarmed.steps == over


async def test_the_summary_has_the_distance_of_what_is_trained(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Against distances worked out from the events alone."""
    world = ScriptedWorld(configured(train={"steps": 5, "batch_groups": 2}))
    world.verifiers = ScriptedVerifiers(
        lambda split, prompt_index, ids: Scored(1.0) if len(ids) < 4 * 5 else NoVerdict("timeout"),
        0.05,
    )
    summary = world.coordinator_summary(await world.run())
    groups = [
        event
        for event in world.log.events
        if isinstance(event, e.Admitted) and event.split == "train"
    ]
    training = {
        rollout for group in groups for rollout in range(group.first, group.first + group.size)
    }
    tokens: Counter[int] = Counter()
    sealed: dict[int, int] = {}
    trained: dict[int, float] = {}
    for event in world.log.events:
        if isinstance(event, e.Extended):
            tokens[event.rollout] += len(event.ids) // 4
        elif isinstance(event, e.Sealed) and event.rollout in training:
            sealed[event.rollout] = tokens[event.rollout]
        elif isinstance(event, e.Trained):
            trained[event.rollout] = event.trained / tokens[event.rollout]
    assert len(trained) < len(sealed), "what had no verdict is generated, and is not trained"
    left = Counter(length.bit_length() for length in sealed.values())
    right: defaultdict[int, float] = defaultdict(float)
    for rollout, share in trained.items():
        right[sealed[rollout].bit_length()] += share
    whole = sum(right.values())
    distance = (
        sum(abs(left[at] / left.total() - right[at] / whole) for at in set(left) | set(right)) / 2
    )
    mean = (
        sum(sealed[rollout] * share for rollout, share in trained.items())
        / whole
        / (sum(sealed.values()) / left.total())
    )
    assert summary.bias["length"] == pytest.approx(distance) and summary.bias[
        "length_mean"
    ] == pytest.approx(mean)
    assert summary.bias["length"] > 0 and summary.bias["length_mean"] < 1, "short ones are trained"
    assert set(summary.bias) == {
        f"{axis}{end}" for axis in ("length", "age", "attempts", "version") for end in ("", "_mean")
    }
    assert summary.bias["attempts"] == 0 and summary.bias["attempts_mean"] == pytest.approx(1), (
        "nothing was leased twice"
    )


def endless(request: Request) -> Script:
    """Three responses of four are cut at their budget."""
    ends = "stop" if request.key % 4 == 0 else "length"
    left = (6 if ends == "stop" else 24) - request.prefix_tokens
    logprobs = np.full(left, -0.5, np.float32)
    return Script(np.full(left, 5, np.int32), logprobs, 0.02, ends)


async def test_responses_that_never_end_are_an_alarm_and_figures(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0}, train={"steps": 3, "eval_every": 0}, staleness={"max_lag": 0}
        )
    )
    world.script = endless
    world.verifiers = ScriptedVerifiers(
        lambda split, prompt_index, ids: Scored(float(len(ids) < 4 * 24)), 0.05
    )
    outcome = await world.run()
    summary = world.coordinator_summary(outcome)
    assert outcome.ok and summary.alarms["never_ends"].steps == 3
    assert summary.responses == Responses(
        reward=0.25, exact=0.25, truncated=0.75, tokens=(6 + 3 * 24) / 4, entropy=0.5
    )
    shown = [message for message in world.heard if isinstance(message, StatusUpdate)][-1]
    assert (shown.exact, shown.truncated, shown.entropy) == (0.25, 0.75, 0.5)
    sample = world.coordinator.parts.metrics.registry.get_sample_value
    assert sample("asyncrl_training", {"name": "truncated"}) == 0.75


async def test_a_reward_that_rises_while_accuracy_falls_is_an_alarm(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Training answers get more from step to step, held-out ones are right at the start alone."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 32}, train={"steps": 16, "eval_every": 8}, staleness={"max_lag": 0}
        )
    )

    world.verifiers = ScriptedVerifiers(rising_and_falling(world), 0.05)
    summary = world.coordinator_summary(await world.run())
    assert "from version 0 to 8" in summary.alarms["reward_without_accuracy"].last


@pytest.mark.explore
async def test_a_resumed_run_knows_rewards_and_accuracy_of_its_earlier_lives(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A run that goes on from any version has the alarm as soon as the one that was not stopped,
    and as long."""
    config = configured(
        task={"eval_size": 32},
        train={"steps": 18, "eval_every": 8},
        staleness={"max_lag": 0, "depth": 0},
    )
    _, points = await made(config, 0, ())
    expected = alarmed(points)
    assert set(range(10, 19)) <= expected, "or this shows nothing"
    for start in (3, 10, 17):
        known = [point for point in points if point.version <= start]
        again, more = await made(config, start, known)
        assert alarmed(more) == {version for version in expected if version > start}
        assert again.alarms["reward_without_accuracy"].steps == len(alarmed(more))


async def made(config: Config, start: int, known: Sequence[Point]) -> tuple[Summary, list[Point]]:
    """The summary and the new points of a run from version `start` on, whose curve is `known`."""
    world, lines = ScriptedWorld(config), list[bytes]()
    world.learner.version = start
    world.curve = lambda: Curve(known, lines.append)  # type: ignore[method-assign]
    world.verifiers = ScriptedVerifiers(rising_and_falling(world), 0.05)
    summary = world.coordinator_summary(await world.run())
    return summary, [point for line in lines if (point := point_of(line)) is not None]


def rising_and_falling(world: ScriptedWorld) -> Callable[[str, int, bytes], Scored]:
    """Verdicts that give training answers more from step to step, and held-out ones nothing from
    version 4 on."""

    def verdict(split: str, prompt_index: int, ids: bytes) -> Scored:
        stepping = world.coordinator.parts.stepping
        version = stepping.version if stepping else 0
        return Scored(float(version < 4) if split == "evaluation" else version / 16)

    return verdict


def alarmed(points: Sequence[Point]) -> set[int]:
    """The versions whose steps had the alarm."""
    steps = [point for point in points if isinstance(point, StepPoint)]
    return {point.version for point in steps if "reward_without_accuracy" in point.alarms}
