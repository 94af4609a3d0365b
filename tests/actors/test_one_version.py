"""Engines that hold one version, as servers do: what is evaluated is answered whole before the next
version replaces it."""

from __future__ import annotations

import numpy as np
import trio
from scripted_parts import VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, hashed
from asyncrl.experience import events as e


def slow_evaluation(request: Request) -> Script:
    """Held-out prompts are answered so slowly that several steps are trained meanwhile."""
    if request.version is None:
        return hashed(vocab_size=VOCABULARY, stop_id=0, mean_tokens=6, seconds_per_token=0.01)(
            request
        )
    left = 20 - request.prefix_tokens
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.2, "stop")


def world(kind: str, hold_s: float = 300.0) -> ScriptedWorld:
    made = ScriptedWorld(
        configured(
            engine={"kind": kind, "slots": 8, "chunk_tokens": 4, "context_tokens": 64},
            rollout={"actors": 2, "attempts": 50, "group_size": 4},
            train={"steps": 12, "batch_groups": 2, "eval_every": 3},
            evaluation={"hold_s": hold_s},
            staleness={"max_lag": 4, "depth": 2},
        )
    )
    made.script = slow_evaluation
    return made


def under(made: ScriptedWorld) -> dict[int, set[int]]:
    """The versions that answered each held-out prompt."""
    asked: set[int] = set()
    found: dict[int, set[int]] = {}
    for event in made.log.events:
        if isinstance(event, e.Admitted) and event.split == "evaluation":
            asked.add(event.first)
        elif isinstance(event, e.Extended) and event.rollout in asked:
            found.setdefault(event.rollout, set()).add(event.version)
    return found


async def finished(made: ScriptedWorld, *others: object) -> ScriptedWorld:
    with trio.fail_after(5000):
        outcome = await made.run(*others)  # type: ignore[arg-type]
    assert outcome.ok, outcome.reason
    made.check()
    return made


async def test_every_evaluation_is_of_one_version_and_none_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await finished(world("sglang"))
    assert sorted(made.coordinator.parts.evaluation.accuracy) == [0, 3, 6, 9, 12]
    answered = under(made)
    assert len(answered) == 5 * 4 and all(len(versions) == 1 for versions in answered.values())


async def test_where_engines_keep_versions_training_does_not_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def seconds(kind: str) -> float:
        began = trio.current_time()
        await finished(world(kind))
        return trio.current_time() - began

    assert await seconds("scripted") < 0.7 * await seconds("sglang")


async def test_a_slow_answer_holds_training_for_so_long_and_no_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A held-out answer takes four seconds. With one second of patience the next version comes
    meanwhile, the answer goes on under it, and the evaluation says so; every one is completed."""
    began = trio.current_time()
    await finished(world("sglang"))
    patient_s = trio.current_time() - began
    began = trio.current_time()
    hasty = await finished(world("sglang", hold_s=1.0))
    assert trio.current_time() - began < 0.8 * patient_s
    evaluation, answered = hasty.coordinator.parts.evaluation, under(hasty)
    assert max(figures.get("mixed", 0.0) for figures in evaluation.figures.values()) > 0
    assert any(len(versions) > 1 for versions in answered.values())
    assert evaluation.accuracy.keys() >= {0, 12}
    assert "mixed" not in evaluation.figures[12], "the last one holds up nothing"


async def test_an_engine_lost_during_an_evaluation_costs_no_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The other engine goes on; the one that comes back has its weights once the evaluation is
    over."""
    made = world("sglang")

    async def kill() -> None:
        await made.until(lambda: made.coordinator.parts.evaluation.running == 3)
        await trio.sleep(0.5)
        made.kill("rollout-1")

    await finished(made, kill)
    assert sorted(made.coordinator.parts.evaluation.accuracy) == [0, 3, 6, 9, 12]
    assert all(len(versions) == 1 for versions in under(made).values())
