"""Models that a rank leaves with the checkpoint of its run's last step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.actors import rank_parts
from asyncrl.config import load
from asyncrl.runtime.run_dir import MODEL


@pytest.mark.parametrize(
    ("sets", "last"),
    [
        (["train.steps=3"], 3),
        (["train.steps=9", "task.epochs=2", "task.train_size=20", "train.batch_groups=8"], 5),
        (["train.steps=3", "task.epochs=2", "task.train_size=20", "train.batch_groups=8"], 3),
    ],
)
def test_the_last_step_leaves_the_model_also_where_the_data_ends_first(
    sets: list[str], last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of task.epochs left none: only train.steps was asked."""
    monkeypatch.setattr(rank_parts, "take", lambda *_: SimpleNamespace(model="weights"))
    monkeypatch.setattr(rank_parts, "merged_model", lambda model: model)
    context: Any = SimpleNamespace(config=load(None, sets, {}))
    left = []
    for version in range(1, 9):
        learner: Any = SimpleNamespace(version=version, average=None)
        _, models = rank_parts._taken(learner, context, None, 0)  # type: ignore[arg-type]
        left += [version] * (MODEL in models)
    assert left == list(range(last, 9))
