"""Fakes depend on what they are asked: else nothing of what the product asks is checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio
from simulation_support import plain

from asyncrl.engines.protocol import Chunk, Request
from asyncrl.messages import Sample, ScoreProximal, Span
from asyncrl.simulation import policy
from asyncrl.simulation.fake_learner import NUMBER, FakeProximal
from asyncrl.simulation.fakes import FakeEngine

PROMPT = np.array([5, 7], np.int32)


async def sampled(
    prompt: np.ndarray = PROMPT, key: int = 4, temperature: float = 1.0, weights: int = 9
) -> list[int]:
    """The tokens of one response."""
    engine = FakeEngine(plain(), lambda: 0.01, lambda cause, seconds: None)
    found: list[int] = []

    async def emit(chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            found.extend(chunk.ids.tolist())
            if chunk.finish:
                scope.cancel()
        await trio.lowlevel.checkpoint()

    await engine.load(3, {NUMBER: weights})  # type: ignore[dict-item]
    engine.submit([Request(1, 1, key, prompt, 0, 20, temperature)])
    with trio.CancelScope() as scope:
        await engine.run(emit)
    return found


async def test_tokens_depend_on_prompt_key_temperature_and_weights(autojump_clock: object) -> None:
    first = await sampled()
    assert first == await sampled()
    others = [
        await sampled(prompt=PROMPT[:1]),
        await sampled(key=5),
        await sampled(temperature=0.5),
        await sampled(temperature=0.0),
        await sampled(weights=8),
    ]
    assert len({tuple(ids) for ids in [first, *others]}) == 6


async def test_greedy_tokens_do_not_depend_on_the_key(autojump_clock: object) -> None:
    assert await sampled(temperature=0.0) == await sampled(temperature=0.0, key=77)


def test_scores_are_those_of_the_version_that_was_held_when_they_were_asked_for() -> None:
    proximal, ids = FakeProximal(1), np.arange(6, dtype=np.int32)
    spans = [Span(3, 2, 4), Span(4, 4, 6)]
    sample = Sample(1, 1, 2, 4, float("nan"), spans)
    proximal.score(ScoreProximal(3, [sample], [1], 3), memoryview(ids.tobytes()), 3, 30)
    known = proximal.known(sample, ids[2:], {})
    assert known[:2].tolist() == policy.scores(30, ids[2:4], 0).tolist()
    assert np.isnan(known[2:]).all()
    proximal.close(3, 30)
    known = proximal.known(sample, ids[2:], {4: 40})
    assert known[2:].tolist() == policy.scores(40, ids[4:], 2).tolist()
    proximal.score(ScoreProximal(4, [], [], 4), memoryview(b""), 4, 40)
    assert np.isnan(FakeProximal(1).known(sample, ids[2:], {})).all()


@pytest.mark.parametrize(("parts", "equal"), [(0, False), (2, False), (2, True)])
def test_rewards_have_their_parts_and_may_all_be_equal(parts: int, equal: bool) -> None:
    rewards = policy.Rewards(equal=equal, parts=parts)
    found = [rewards.scored(n, bytes([n, 1, 2, 3])) for n in range(30)]
    assert {len(verdict.parts) for verdict in found} == {parts}
    assert len({verdict.reward for verdict in found}) == (1 if equal else 4)
