"""The toy of the main job: each way runs, and its tokens add up."""

from __future__ import annotations

import numpy as np
import pytest
import skills

from asyncrl.algorithms.selection.prune import NoPruning


@pytest.mark.parametrize("name", skills.WAYS)
def test_each_way_runs_and_its_tokens_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "STEPS", 2)
    way = skills.WAYS[name]._replace(groups=3)
    took = skills.run(way, seed=0)
    ended = took.generated - took.trained - took.equal * way.filters
    assert took.steps == 2 and ended >= 0
    assert ended == 0 or not isinstance(way.prune, NoPruning)


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


def test_runs_that_share_groups_have_foreign_answers_of_which_far_tokens_are_clipped() -> None:
    chances = np.full((2, skills.ASKED, skills.OPTIONS), 0.25)
    chances[1, 0] = (0.1, 0.3, 0.3, 0.3)
    right, wrong = np.zeros(3, np.int64), np.full(3, 2)
    one = (0.5**0.5) * (np.eye(4)[0] - 0.25)
    own = skills.pulls_of([(0, right), (0, wrong)], [1.0, 0.0], 0, chances)
    assert own[1] == pytest.approx(one - 0.5**0.5 * (np.eye(4)[2] - 0.25))
    mixed = skills.pulls_of([(1, right), (0, wrong)], [1.0, 0.0], 0, chances)
    assert mixed[0] == pytest.approx(own[0] - one), "its ratio is 2.5"
    assert mixed[1] == pytest.approx(own[1])


def test_the_tokens_of_runs_that_share_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "GROUPS", 1)
    monkeypatch.setattr(skills, "GOAL", 0.0)
    assert skills.together(4, 4, seed=0) == (0, 0, 0, 0)
    monkeypatch.setattr(skills, "GOAL", skills.Policy(0).accuracy + 1e-3)
    took = skills.together(4, 4, seed=0)
    assert took.steps > 0 and took.generated == pytest.approx(took.trained + took.equal, abs=2)
