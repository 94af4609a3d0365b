"""Seeds draw every theme, and settings that do not contradict each other."""

from __future__ import annotations

from collections import Counter

from asyncrl.config.losses import updates
from asyncrl.simulation.shapes import configured, drawn
from asyncrl.simulation.themes import THEMES


def test_a_shape_is_the_seeds_alone() -> None:
    for seed in range(1, 40):
        assert drawn(seed).config == drawn(seed).config
        assert drawn(seed).kinds == drawn(seed).kinds


def test_each_theme_has_at_least_five_of_the_first_200_seeds() -> None:
    themes = Counter(seed // 2 % len(THEMES) for seed in range(1, 200, 2))
    assert min(themes.values()) >= 5 and len(themes) == len(THEMES) == 13


def test_themes_reach_what_plain_seeds_do_not() -> None:
    shapes = [drawn(seed) for seed in range(200)]
    configs = [shape.config for shape in shapes]
    assert {c.engine.kind for c in configs} == {"scripted", "sglang"}
    assert any(c.rollout.lease_s > 30 for c in configs)
    assert any(shape.rewards.equal for shape in shapes)
    assert any(shape.rewards.parts for shape in shapes)
    assert any(shape.speeds.quiet for shape in shapes)
    held = [c for c in configs if updates(c.train) > 1]
    assert len(held) >= 30 and any(c.train.replay_groups for c in held)
    assert any(
        shape.speeds.step_s > c.publication.deadline_s
        for shape, c in zip(shapes, configs, strict=True)
    )
    assert any(c.train.micro_tokens < 30 and c.train.batch_groups > 8 for c in configs)
    averaged = [c for c in configs if c.evaluation.weights == "ema"]
    assert len(averaged) >= 20 and all(c.train.ema and c.task.eval_size for c in averaged)
    lent = [c for c in configs if c.rollout.lent_actors]
    assert len(lent) >= 15 and all(c.rollout.lent_actors < c.rollout.actors for c in lent)
    assert all(drawn(seed).config == configured(seed) for seed in range(0, 200, 2))
