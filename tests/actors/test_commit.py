"""Between the decision to commit a version and the moment when every engine serves it: engines take
their time to load, and what docs/lag.md says of tokens holds all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import trio
import trio.testing
from scripted_parts import VOCABULARY, ScriptedLearner
from scripted_world import ScriptedWorld, configured

from asyncrl.config.engines import capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.scripted import ScriptedEngine
from asyncrl.experience import events as e
from asyncrl.messages import ScoreProximal
from asyncrl.simulation.sim_process import SimProcess


class SlowEngine(ScriptedEngine):
    """An engine that decodes with the weights before for `load_s` seconds after it was told."""

    load_s = 0.0

    async def load(self, version: int, weights: Mapping | None, *, pin: bool = False) -> float:
        await trio.sleep(self.load_s)
        return await super().load(version, weights, pin=pin)


class SlowWorld(ScriptedWorld):
    """Engines take 0, 0.4 or 0.8 s to load, one after another."""

    def __init__(self, **sections: dict[str, object]) -> None:
        train = {"steps": 12, "eval_every": 4} | sections.pop("train", {})
        rollout = {"actors": 3} | sections.pop("rollout", {})
        super().__init__(configured(train=train, rollout=rollout, **sections))
        self._made = 0

    def make_engine(self, process: SimProcess) -> SlowEngine:
        engine = SlowEngine(
            self.script,
            EngineOptions.of(self.config),
            vocab_size=VOCABULARY,
            idle=process.waits.idle_for,
            keeps_versions=capabilities(self.config.engine.kind).keeps_versions,
        )
        engine.load_s = 0.4 * (self._made % 3)
        self._made += 1
        return engine


SETTINGS: dict[str, dict[str, dict[str, object]]] = {
    "lag 0": {"staleness": {"max_lag": 0, "depth": 0}},
    "in batches": {"rollout": {"mode": "batch"}},
    "mixed": {"staleness": {"max_lag": 4, "depth": 2}},
    "own": {"staleness": {"max_lag": 4, "depth": 2, "finish_on": "own"}},
}


@pytest.mark.parametrize("settings", SETTINGS)
async def test_no_token_is_older_than_its_group(
    settings: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A group is admitted under the version that was committed last, and engines that have not
    loaded that version yet get nothing of it: the first line of the proof in docs/lag.md."""
    made = SlowWorld(**SETTINGS[settings])
    assert (await made.run()).ok
    made.check()
    committed, admitted = -1, dict[int, int]()
    for event in made.log.events:
        match event:
            case e.Published(version):
                committed = version
            case e.Admitted(_, first, size):
                admitted |= dict.fromkeys(range(first, first + size), committed)
            case e.Extended(rollout, _, version):
                assert version >= admitted[rollout]
    if settings == "lag 0":
        discarded = made.store.experience.ledger.tokens.discarded
        assert set(discarded) <= {"evaluation"}, "nothing is generated in vain"


@pytest.mark.parametrize("finish_on", ["mixed", "own"])
async def test_weights_are_held_until_every_engine_serves_later_ones(
    finish_on: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A step may be closed while engines still load the version that it starts from. Tokens of the
    version before still come then, so the trainer holds its weights."""
    made = SlowWorld(
        staleness={"max_lag": 4, "depth": 2, "proximal": "boundary", "finish_on": finish_on}
    )
    made.learner = ScriptedLearner(seconds_per_token=0.0, step_s=0.01)
    held: list[tuple[int, int]] = []  # events so far, and the oldest version held from then on
    score_proximal = made.learner.score_proximal

    async def counted(message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        assert message.oldest is not None
        held.append((len(made.log.events), message.oldest))
        await score_proximal(message, buffers)

    made.learner.score_proximal = counted  # type: ignore[method-assign]
    assert (await made.run()).ok
    assert max(oldest for _, oldest in held) > 2, "and are not held for good"
    for number, oldest in held:
        later = [event for event in made.log.events[number:] if isinstance(event, e.Extended)]
        assert all(event.version >= oldest for event in later)
