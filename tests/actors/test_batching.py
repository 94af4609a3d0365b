"""The work that a step takes, against runs in virtual time: when little is left, when a window
waits, and when all of a step is compared."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from scripted_parts import STOP, VOCABULARY, MemoryLog, ScriptedLearner
from scripted_world import ScriptedWorld, configured, heavy_tailed, run_well
from some_values import some

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.batching import Batching
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, hashed
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import (
    MicroBatch,
    NoVerdict,
    Scored,
    ScoreProximal,
    Split,
    TokenCount,
    Verdict,
)

B = 3
GROUP = 4


def world(**settings: dict[str, object]) -> ScriptedWorld:
    """Six steps, in many micro-batches."""
    return heavy_tailed(
        B,
        GROUP,
        **settings | {"train": {"steps": 6, "micro_tokens": 64} | settings.get("train", {})},
    )


def compared(made: ScriptedWorld) -> tuple[dict[int, set[int]], list[tuple[int, set[int]]]]:
    """The groups that each step took, and for each micro-batch its step and the groups whose
    rewards it came with."""
    first: dict[int, int] = {}
    for batch, _ in made.learner.batches:
        for sample in batch.samples:
            first.setdefault(sample.group, batch.step)
    took = {step: {group for group, of in first.items() if of == step} for step in first.values()}
    return took, [(batch.step, set(batch.rewards)) for batch, _ in made.learner.batches]


@pytest.mark.parametrize("prompts", [6 * B, 6 * B - 1])
async def test_the_last_prompts_are_compared_with_all_of_their_step(
    prompts: int, autojump_clock: trio.testing.MockClock
) -> None:
    """That no prompt is left to be admitted does not say that no group is left to be waited for."""
    made = await run_well(
        world(train={"advantage": "reinforce_pp"}, task={"epochs": 1, "train_size": prompts})
    )
    took, batches = compared(made)
    assert [len(took[step]) for step in range(6)] == [B] * 5 + [B - (6 * B - prompts)]
    assert all(rewards == took[step] for step, rewards in batches)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("step_tokens", [0, 10**6])
def test_a_step_of_rollouts_is_full_where_no_group_fits_beside_them(
    depth: int, step_tokens: int
) -> None:
    """Siblings were dropped: the step has all rollouts that there are, and waits for another group
    as long as one may be live beside these."""
    config = configured(
        train={
            "unit": "rollout",
            "advantage": "first_k",
            "batch_groups": 2,
            "step_tokens": step_tokens,
        },
        rollout={"group_size": GROUP, "k_min": 2, "overprovision": 1.0},
        staleness={"depth": depth, "max_lag": 4},
    )
    store = EventStore(Experience(), MemoryLog())
    admission = cast(Admission, SimpleNamespace(label=str, exhausted=False))
    batching = Batching(store, config, admission)
    live = (depth + 1) * 2 * GROUP
    for units in range(live + 1):
        batching.units = units
        enough = units >= (live if step_tokens else 2 * GROUP)
        assert batching.full == (enough or units + GROUP > live), units
    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, GROUP, "train", 0, struct.pack("<i", 5), 9))
    batching.units = live - 1
    assert batching.full == (depth > 0 and not step_tokens), "others are still generated"


class HoldingLearner(ScriptedLearner):
    """A learner that says what became of a step's tokens when the step is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[TokenCount] = []

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        self._held += await super().accumulate(batch, buffers)
        return []

    async def step(self) -> dict[str, float]:
        self.counts, self._held = self._held, []
        return await super().step()


class SlowToBegin(ScriptedLearner):
    """A learner to which each micro-batch costs the time of many tokens."""

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        await trio.sleep(0.5)
        return await super().accumulate(batch, buffers)


@pytest.mark.parametrize("unit", ["group", "rollout"])
async def test_what_waits_for_a_busy_trainer_waits_in_one_micro_batch(
    unit: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has fewer of them, and takes no longer, than one that gives the next one at once."""
    found, choose = [], Batching.next
    for merges in (True, False):
        if not merges:
            monkeypatch.setattr(Batching, "next", lambda *a, **k: choose(*a, **k | {"busy": False}))
        made = heavy_tailed(8, GROUP, train={"steps": 6, "micro_tokens": 4096, "unit": unit})
        made.learner = SlowToBegin()
        await run_well(made)
        found.append((len(made.learner.batches), made.seconds))
    (fewer, merged_s), (more, eager_s) = found
    assert fewer < 0.9 * more and merged_s < 0.9 * eager_s


@pytest.mark.parametrize("replay_groups", [0, 2])
async def test_what_is_held_until_the_step_is_closed_is_accounted_for(
    replay_groups: int, autojump_clock: trio.testing.MockClock
) -> None:
    """A run is the same, event by event, whether the trainer counts at once or at the end."""
    found = []
    for learner in (ScriptedLearner(), HoldingLearner()):
        made = world(train={"replay_groups": replay_groups})
        made.learner = learner
        await run_well(made)
        found.append(
            {
                (event.rollout, event.trained)
                for event in made.log.events
                if isinstance(event, e.Trained)
            }
        )
        replays = [event for event in made.log.events if isinstance(event, e.Replayed)]
        assert bool(replays) == bool(replay_groups)
        assert made.coordinator.parts.stepping is not None
        again = made.coordinator.parts.stepping.metrics.get("replayed_tokens", 0.0)
        assert (again > 0) == bool(replay_groups)
    assert found[0] == found[1] and len(found[0]) == 6 * B * GROUP


async def test_what_is_trained_again_is_compared_with_all_that_is_trained_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await run_well(world(train={"advantage": "reinforce_pp", "replay_groups": 2}))
    took, batches = compared(made)
    again = [(step, rewards) for step, rewards in batches if not rewards & took[step]]
    assert any(len(rewards) == 2 for _, rewards in again)
    for step, rewards in again:
        assert all(others == rewards for at, others in again if at == step), (
            "however they are packed"
        )


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("advantage", ["gdpo", "grpo"])
async def test_a_window_does_not_wait_for_a_member_without_a_verdict(
    window: int, advantage: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It leaves with its group."""

    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return NoVerdict("refused") if len(ids) > 40 else Scored(1.0)

    made = world(
        train={"advantage": advantage},
        staleness={"window": window, "max_lag": 20},
        rollout={"k_min": 1},
    )
    made.verifiers._verdict = verdict
    await run_well(made)
    assert made.store.experience.ledger.rollouts.discarded["no_verdict"]


@pytest.mark.parametrize("pace", some(range(1, 6)))
async def test_the_last_step_at_lag_0_is_packed_alike_whoever_is_complete_first(
    pace: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Also where the prompts are used up: what is left of them is waited for."""

    async def packed(pace: int) -> list[tuple[int, list[int]]]:
        made = world(
            staleness={"max_lag": 0, "depth": 0},
            train={"steps": 4, "batch_groups": 5, "micro_tokens": 150},
            task={"epochs": 1, "train_size": 20},
            engine={"slots": 24},
        )
        written, draw = (
            hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10),
            random.Random(pace),
        )

        def script(request: Request) -> Script:
            tokens = written(request)
            return Script(tokens.ids, tokens.behaviour, draw.uniform(0.001, 0.1), tokens.ends)

        made.script = script
        await run_well(made)
        return [
            (batch.step, [sample.rollout for sample in batch.samples])
            for batch, _ in made.learner.batches
        ]

    assert await packed(pace) == await packed(0)


@pytest.mark.parametrize("finish_on", ["mixed", "own"])
async def test_weights_are_held_while_more_tokens_of_them_may_come(
    finish_on: str, autojump_clock: trio.testing.MockClock
) -> None:
    """With `finish_on = own` more tokens may come of versions before the one that is served."""
    made = world(staleness={"proximal": "boundary", "finish_on": finish_on}, train={"steps": 12})
    held: list[
        tuple[int, int]
    ] = []  # how many events there were, and the oldest version that is held from then on
    score_proximal = made.learner.score_proximal

    async def counted(message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        assert message.oldest is not None
        held.append((len(made.log.events), message.oldest))
        await score_proximal(message, buffers)

    made.learner.score_proximal = counted  # type: ignore[method-assign]
    await run_well(made)
    assert max(oldest for _, oldest in held) > 2, "and are not held for good"
    for number, oldest in held:
        assert all(
            event.version >= oldest
            for event in made.log.events[number:]
            if isinstance(event, e.Extended)
        )
    lags = [max(span) - min(span) for span in spans(made).values()]
    assert (max(lags) > 0) is (finish_on == "mixed")


def spans(made: ScriptedWorld) -> dict[int, set[int]]:
    """The versions of each rollout."""
    found: dict[int, set[int]] = {}
    for event in made.log.events:
        if isinstance(event, e.Extended):
            found.setdefault(event.rollout, set()).add(event.version)
    return found
