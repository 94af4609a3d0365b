"""Models that a rank leaves with the checkpoint of its run's last step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from asyncrl.actors import rank_parts
from asyncrl.messages import Save
from asyncrl.runtime.run_dir import MODEL


@pytest.mark.parametrize(
    ("models", "written"), [("no", ["step"]), ("too", ["step", MODEL]), ("alone", [MODEL])]
)
def test_the_models_are_written_where_the_coordinator_says_that_it_is_the_last(
    models: Literal["no", "too", "alone"],
    written: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank cannot know: a run ends before train.steps where its data does, or where groups are
    filtered."""
    found: list[str] = []
    staged: Any = SimpleNamespace(model="weights", version=3)
    monkeypatch.setattr(rank_parts, "take", lambda *_: staged)
    monkeypatch.setattr(rank_parts, "_to_leave", lambda model, initial: model)
    monkeypatch.setattr(rank_parts, "adapted", lambda model: False)
    monkeypatch.setattr(rank_parts, "write", lambda *_: found.append("step"))
    monkeypatch.setattr(rank_parts, "export", lambda path, *_: found.append(path.name))
    learner: Any = SimpleNamespace(version=3, average=None)
    context: Any = SimpleNamespace(run=tmp_path, initial=tmp_path)
    save = Save(7, models)
    staged, whole = rank_parts._taken(learner, tmp_path, None, save)  # type: ignore[arg-type]
    rank_parts._written(context, staged, whole, save)
    assert found == written
