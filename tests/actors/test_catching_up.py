"""Engines that come late, and engines that die while weights are sent: they are caught up alone,
and left out, and the others decode on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
import trio.testing
from scripted_parts import STOP, VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.config.engines import capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.scripted import ScriptedEngine, hashed
from asyncrl.messages import Message, Publish
from asyncrl.simulation.sim_process import SimProcess


class Loads(ScriptedWorld):
    """Three engines; `loads` has (engine, version) for each load, `epochs` (epoch, world) for each
    publication."""

    def __init__(self, **sections: dict[str, object]) -> None:
        rollout = {"actors": 3} | sections.pop("rollout", {})
        super().__init__(configured(rollout=rollout, **sections))
        self.loads: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, int]] = []

    def make_engine(self, process: SimProcess) -> ScriptedEngine:
        made = self

        class Counted(ScriptedEngine):
            async def load(
                self, version: int, weights: Mapping | None, *, pin: bool = False
            ) -> float:
                made.loads.append((process.index, version))
                return await super().load(version, weights, pin=pin)

        return Counted(
            self.script,
            EngineOptions.of(self.config),
            vocab_size=VOCABULARY,
            idle=process.waits.idle_for,
            keeps_versions=capabilities(self.config.engine.kind).keeps_versions,
        )


def publications(made: Loads) -> None:
    """Note each order to publish."""
    trainer = made.coordinator.parts.publishing._trainer
    assert trainer is not None
    send = trainer[0].send

    def noted(message: Message, *buffers: memoryview) -> None:
        if isinstance(message, Publish):
            made.epochs.append((message.epoch, message.world))
        send(message, *buffers)

    trainer[0].send = noted  # type: ignore[method-assign]


@pytest.mark.parametrize("finish_on", ["mixed", "own"])
async def test_an_engine_that_comes_late_is_caught_up_alone(
    finish_on: str, autojump_clock: trio.testing.MockClock
) -> None:
    made = Loads(
        staleness={"max_lag": 0, "depth": 0, "finish_on": finish_on},
        train={"steps": 6, "eval_every": 0, "checkpoint_every": 0},
        supervision={"stall_s": 1000.0, "restarts": 100},
    )
    # responses take so long that an engine comes back before the next step is full
    made.script = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10, seconds_per_token=1.0)

    async def user() -> None:
        publishing = lambda: made.coordinator.parts.publishing  # noqa: E731
        await made.until(lambda: publishing().served == 2 and not publishing().busy)
        publications(made)
        made.loads.clear()
        made.kill("rollout-1")
        await made.until(lambda: bool(made.loads))
        assert made.loads == [(1, 2)], "the others have this version"
        await made.until(lambda: publishing().served == 3)
        assert sorted(made.loads) == [(0, 3), (1, 2), (1, 3), (2, 3)]
        (alone, two), (everybody, four) = made.epochs
        assert (two, four) == (2, 4), "the trainer and one engine, then all"
        assert alone < everybody, "a process group is of one membership"

    assert (await made.run(user)).ok
    made.check()
    assert made.coordinator.parts.publishing.failed == []


async def test_an_engine_that_shows_wrong_checksums_delays_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is replaced; the publication is of the others, and none fails."""
    made = Loads(train={"steps": 4, "eval_every": 0, "checkpoint_every": 0})
    right, wrong = made.checksums, [1]

    def checksums(index: int, version: int) -> list[int]:
        if index == 1 and version == 2 and wrong:
            return [wrong.pop()]
        return right(index, version)

    made.checksums = checksums
    assert (await made.run()).ok
    made.check()
    assert not wrong and made.coordinator.parts.publishing.failed == []
