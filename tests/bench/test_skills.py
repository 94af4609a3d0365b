"""The toy of the main job: each way runs, and its tokens add up."""

from __future__ import annotations

import numpy as np
import pytest
import skills


@pytest.mark.parametrize("name", skills.WAYS)
def test_each_way_runs_and_its_tokens_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "STEPS", 2)
    way = skills.WAYS[name]._replace(groups=3)
    took = skills.run(way, seed=0)
    ended = took.generated - took.trained - took.equal * way.filters
    assert took.steps == 2 and ended >= 0
    assert ended == 0 or not isinstance(way.prune, skills.NoPruning)


def test_the_gradient_is_that_of_the_chance_to_solve() -> None:
    """Without groups: the mean over many answers of reward times score, skill by skill."""
    policy = skills.Policy(0)
    chances, prompt = policy.chances, 5
    answers = policy.answers(prompt, 200_000, chances)
    solved = ~answers.any(axis=1)
    own = chances[policy.asked[prompt], 0]
    assert solved.mean() == pytest.approx(own.prod(), abs=0.005)
    for place, p in enumerate(own):
        pull = float((solved * ((answers[:, place] == 0) - p)).mean())
        assert pull == pytest.approx(float(own.prod() * (1 - p)), abs=0.005)
    assert np.isclose(policy.chances.sum(axis=1), 1).all()
