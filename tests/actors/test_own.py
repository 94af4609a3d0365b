"""`staleness.finish_on`: a rollout goes on under newer versions, or ends under the one it began
with, which engines keep as long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
import trio
from scripted_parts import STOP, VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, hashed
from asyncrl.experience import events as e
from asyncrl.messages import Replace
from asyncrl.simulation.sim_process import SimProcess

LONG = 0.08
"""Seconds a token of a long response: versions come and go meanwhile."""


def settings(finish_on: str, **sections: dict[str, object]) -> dict[str, dict[str, object]]:
    """Two engines, and an optimizer step about every ten tokens."""
    made: dict[str, dict[str, object]] = {
        "task": {"eval_size": 4},
        "rollout": {"actors": 2, "attempts": 50, "group_size": 4},
        "train": {"steps": 12, "batch_groups": 2, "eval_every": 3},
        "staleness": {"max_lag": 4, "depth": 4, "finish_on": finish_on},
    }
    return {name: made.get(name, {}) | sections.get(name, {}) for name in made | sections}


class Kept:
    """Engines that record the versions that they are told to keep and to forget."""

    def __init__(self, world: ScriptedWorld) -> None:
        self.most = 0
        self.engines: list[object] = []
        made = world.make_engine

        def engine(process: SimProcess) -> object:
            inner = made(process)  # type: ignore[arg-type]
            load = inner.load

            async def loaded(
                version: int, weights: Mapping[str, object] | None, *, pin: bool = False
            ) -> float:
                seconds = await load(version, None, pin=pin)
                self.most = max(self.most, len(inner._kept))
                return seconds

            inner.load = loaded  # type: ignore[method-assign, assignment]
            self.engines.append(inner)
            return inner

        world.make_engine = engine  # type: ignore[method-assign, assignment]


def mixed_lengths(request: Request) -> Script:
    """Every fourth rollout is long and slow."""
    made = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=8, seconds_per_token=0.01)(
        request
    )
    if request.key % 4:
        return made
    left = 24 - request.prefix_tokens
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), LONG, "stop")


async def finished(world: ScriptedWorld, *others: object) -> ScriptedWorld:
    with trio.fail_after(5000):
        outcome = await world.run(*others)  # type: ignore[arg-type]
    assert outcome.ok, outcome.reason
    world.check()
    return world


def versions(world: ScriptedWorld) -> dict[int, set[int]]:
    """The versions that sampled each training rollout."""
    training: set[int] = set()
    found: dict[int, set[int]] = {}
    for event in world.log.events:
        if isinstance(event, e.Admitted) and event.split == "train":
            training |= set(range(event.first, event.first + event.size))
        elif isinstance(event, e.Extended) and event.rollout in training:
            found.setdefault(event.rollout, set()).add(event.version)
    return found


def buried(world: ScriptedWorld) -> Counter[str]:
    return Counter(event.reason for event in world.log.events if isinstance(event, e.Buried))


async def test_no_rollout_has_two_versions_where_each_ends_under_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(**settings("own")))
    world.script = mixed_lengths
    kept = Kept(world)
    await finished(world)
    assert max(map(len, versions(world).values())) == 1
    assert 2 <= kept.most <= 4 + 3, "several versions are kept at once, and max_lag + 3 at most"
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    late = {rollout for rollout in trained if len(versions(world).get(rollout, ())) == 1}
    assert late and world.coordinator.parts.evaluation.accuracy.keys() >= {0, 12}
    assert max(world.trained_lags()) >= 1
    assert buried(world).keys() <= {"version_gone"}


async def test_some_have_where_they_go_on(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(**settings("mixed")))
    world.script = mixed_lengths
    kept = Kept(world)
    await finished(world)
    assert max(map(len, versions(world).values())) >= 2
    assert kept.most == 1, "the one under evaluation"


async def test_what_nobody_needs_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    """Short responses: at the end of each publication engines keep what they decode with, and what
    is evaluated."""
    world = ScriptedWorld(configured(**settings("own", task={"eval_size": 0})))
    kept = Kept(world)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            await trio.sleep(0.01)
            live = {
                r.spans[0].version
                for r in world.store.experience.rollouts.values()
                if r.spans and not r.sealed
            }
            if (
                not world.coordinator.parts.publishing.busy
                and world.coordinator.parts.publishing.committed is not None
            ):
                for engine in world.coordinator.parts.engines:
                    assert live | {engine.version} <= engine.kept
                    most = max(most, len(engine.kept - live - {engine.version}))

    await finished(world, watch)
    assert most <= 2
    for handle, engine in zip(world.coordinator.parts.engines, kept.engines, strict=False):
        assert engine._kept == handle.kept  # type: ignore[attr-defined]


async def test_an_engine_that_dies_with_the_only_copy_costs_what_began_with_it_and_nothing_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One engine: whoever comes after it has the newest version alone."""
    world = ScriptedWorld(
        configured(**settings("own", rollout={"actors": 1, "attempts": 50}, task={"eval_size": 0}))
    )
    world.script = mixed_lengths
    world.restart_s = 0.05

    def old() -> bool:
        published = world.coordinator.parts.publishing.committed
        return any(
            r.holder and r.spans and r.spans[0].version != published
            for r in world.store.experience.rollouts.values()
        )

    async def murderer() -> None:
        for _ in range(3):
            await world.until(lambda: hasattr(world, "coordinator") and old())
            world.kill("rollout-0")
            await trio.sleep(2.0)

    await finished(world, murderer)
    assert buried(world)["version_gone"] > 0 and buried(world).keys() == {"version_gone"}
    assert max(map(len, versions(world).values())) == 1
    groups = {
        event.group: range(event.first, event.first + event.size)
        for event in world.log.events
        if isinstance(event, e.Admitted)
    }
    given_up = {event.rollout for event in world.log.events if isinstance(event, e.Buried)}
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    assert any(given_up & set(members) and trained & set(members) for members in groups.values()), (
        "the others of its group are trained"
    )


async def test_what_an_engine_that_dies_had_goes_on_with_another_that_kept_the_version(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            **settings(
                "own",
                task={"eval_size": 0},
                staleness={"max_lag": 8, "depth": 4, "finish_on": "own"},
            )
        )
    )
    world.script = mixed_lengths

    async def murderer() -> None:
        for name in ("rollout-0", "rollout-1", "rollout-0"):
            await world.until(lambda name=name: hasattr(world, "coordinator") and world.holds(name))
            world.kill(name)
            await trio.sleep(3.0)

    await finished(world, murderer)
    lost = {
        event.rollout
        for event in world.log.events
        if isinstance(event, e.Requeued) and event.reason == "actor_lost"
    }
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    began = versions(world)
    assert lost & trained & began.keys() and max(map(len, began.values())) == 1


async def test_what_began_too_long_ago_to_be_trained_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            **settings(
                "own",
                staleness={"max_lag": 1, "depth": 1, "finish_on": "own"},
                task={"eval_size": 0},
            )
        )
    )
    world.script = lambda request: (
        mixed_lengths(request)
        if request.rollout % 16
        else Script(
            np.full(24 - request.prefix_tokens, 5, np.int32),
            np.full(24 - request.prefix_tokens, -1.0, np.float32),
            1.0,
            "stop",
        )
    )
    kept = Kept(world)
    await finished(world)
    assert buried(world)["version_gone"] > 0 and kept.most <= 1 + 3


@pytest.mark.parametrize("mode", ["in_flight", "batch"])
@pytest.mark.parametrize("unit", ["group", "rollout"])
async def test_own_goes_with_rests_and_with_rollouts_alone(
    mode: str, unit: str, autojump_clock: trio.testing.MockClock
) -> None:
    train = {
        "steps": 8,
        "batch_groups": 2,
        "unit": unit,
        "advantage": "first_k" if unit == "rollout" else "grpo",
    }
    sections = settings(
        "own",
        train=train,
        rollout={"actors": 2, "attempts": 50, "group_size": 4, "mode": mode, "overprovision": 2.0},
    )
    world = ScriptedWorld(configured(**sections))
    world.script = mixed_lengths
    await finished(world)
    assert max(map(len, versions(world).values())) == 1 and not [
        m for m in world.heard if isinstance(m, Replace)
    ]
