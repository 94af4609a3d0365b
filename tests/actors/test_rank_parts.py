"""Parts of orders that ranks carry out: scores of servers, and the models that the last step
leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import trio
from without_rules import without_rules

from asyncrl.actors import rank_parts
from asyncrl.actors.rank_parts import CarriedOrder, RankedLearner
from asyncrl.config import Config
from asyncrl.config.schema import ReferenceConfig, TeacherConfig
from asyncrl.messages import Message, MicroBatch, Save, TokenCount
from asyncrl.runtime.run_dir import MODEL
from asyncrl.training.kl_terms import Served, served_names
from asyncrl.training.ranks.rank import ALONE
from asyncrl.training.staging import Staging


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
    staged: Any = SimpleNamespace(model="weights", adapters=None, version=3)
    monkeypatch.setattr(rank_parts, "take", lambda *_: staged)
    monkeypatch.setattr(rank_parts, "write", lambda *_: found.append("step"))
    monkeypatch.setattr(rank_parts, "export_staged", lambda path, *_: found.append(path.name))
    model: Any = SimpleNamespace(dtype=torch.float32)
    learner: Any = SimpleNamespace(version=3, average=None, model=model, rank=ALONE)
    context: Any = SimpleNamespace(run=tmp_path, initial=tmp_path)
    save = Save(7, models)
    copied = rank_parts._taken(learner, tmp_path, Staging(), save)
    rank_parts._written(context, copied, save, ALONE)
    assert found == written


def test_other_ranks_get_what_servers_said_of_a_micro_batch() -> None:
    """Rank 0 alone asks them, and sends the scores behind the buffers of the order."""
    servers = {"coefficient": 0.1, "server": "http://127.0.0.1:1"}
    with without_rules():
        config: Any = Config(reference=ReferenceConfig(**servers), teacher=TeacherConfig(**servers))
    context: Any = SimpleNamespace(config=config)
    scores = {name: np.random.default_rng(at).random(3, np.float32) for at, name in enumerate("ab")}
    served = dict(zip(served_names(config), scores.values(), strict=True))
    seen: list[tuple[list[bytes], dict[str, list[float]]]] = []

    def accumulate(_: Message, buffers: Sequence[bytes], got: Served) -> list[TokenCount]:
        seen.append(([bytes(b) for b in buffers], {name: got[name].tolist() for name in got}))
        return []

    learner: Any = SimpleNamespace(accumulate=accumulate)

    class Orders:
        async def give(self, order: Message, buffers: Sequence[memoryview], own: Any) -> Any:
            CarriedOrder(learner, context)(order, buffers)
            return own()

    class Servers:
        async def scores(self, *_: object) -> Served:
            return served

    ranked: Any = RankedLearner(learner, Orders(), Servers(), context, None)  # type: ignore[arg-type]
    batch, buffers = MicroBatch(0, 0, [], {}), [memoryview(b"ids"), memoryview(b"mask")]
    trio.run(ranked.accumulate, batch, buffers)
    assert served.keys() == {"reference", "teacher"}
    expected = ([b"ids", b"mask"], {name: each.tolist() for name, each in served.items()})
    assert seen == [expected, expected]
