"""Strategies: one file and its test each. A file in the folder of its kind is found by its name; no
list names it. What one raises is a sentence with its name and line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from asyncrl.algorithms.advantages import Advantage, RewardedSamples
from asyncrl.algorithms.advantages.credit import Credit
from asyncrl.algorithms.advantages.group_weight import GroupWeight, weights_of
from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.objectives import Objective
from asyncrl.algorithms.selection.curriculum import Curriculum
from asyncrl.algorithms.selection.filters import GroupFilter
from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.keep import KeepRule
from asyncrl.algorithms.selection.replay import ReplayRule
from asyncrl.config import ConfigError
from asyncrl.config.loss_names import (
    ADVANTAGES,
    CORRECTIONS,
    CREDITS,
    GROUP_WEIGHTS,
    MINIBATCH_RULES,
    OBJECTIVES,
)
from asyncrl.config.plugins import Registry, in_folder
from asyncrl.config.selection_names import CURRICULA, FILTERS, KEEPS, REPLAYS, SIZINGS
from asyncrl.config.strategies import StrategyError, blamed
from asyncrl.messages import PromptFacts
from asyncrl.staleness.corrections import Correction
from asyncrl.training.optimizer_table import OPTIMIZERS
from asyncrl.training.optimizers import OptimizerRule

LOSS, SELECTION = "asyncrl.algorithms.advantages", "asyncrl.algorithms.selection"
KINDS: dict[str, tuple[Registry[type], str, type]] = {
    "correction": (CORRECTIONS, "asyncrl.staleness.corrections", Correction),
    "objective": (OBJECTIVES, "asyncrl.algorithms.objectives", Objective),
    "advantage": (ADVANTAGES, LOSS, Advantage),
    "credit": (CREDITS, LOSS, Credit),
    "group weight": (GROUP_WEIGHTS, LOSS, GroupWeight),
    "minibatch rule": (MINIBATCH_RULES, "asyncrl.algorithms.minibatches", MinibatchRule),
    "optimizer": (OPTIMIZERS, "asyncrl.training.optimizers", OptimizerRule),
    "curriculum": (CURRICULA, SELECTION, Curriculum),
    "sizing": (SIZINGS, SELECTION, Sizing),
    "filter": (FILTERS, SELECTION, GroupFilter),
    "keep rule": (KEEPS, SELECTION, KeepRule),
    "replay": (REPLAYS, SELECTION, ReplayRule),
}
every = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files count as files of each kind's folder."""
    for package in {package for _, package, _ in KINDS.values()}:
        found = import_module(package)
        monkeypatch.setattr(found, "__path__", [*found.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def source(base: type, kind: str) -> str:
    return (
        f"from {base.__module__} import {base.__name__}\n"
        f"class Added({base.__name__}{', frozen=True' * issubclass(base, Correction)}):\n"
        f"    kind = {kind!r}\n"
    )


@every
def test_a_file_in_its_folder_is_found_by_its_name(kind: str, added: Path) -> None:
    registry, package, base = KINDS[kind]
    (added / f"added_{kind.replace(' ', '_')}.py").write_text(source(base, "added"))
    names = list(in_folder(package, base))
    assert set(names) - {"added"} == set(registry) and "added" in names


def test_two_of_one_name_are_refused(added: Path) -> None:
    (added / "again.py").write_text(source(Sizing, "fixed"))
    with pytest.raises(ConfigError, match=r"again .*both define 'fixed'|group_size both define"):
        in_folder(SELECTION, Sizing)


@every
def test_each_built_in_one_has_a_test_that_names_it(kind: str) -> None:
    """A new one brings a test of its own, which no list of other tests has to know."""
    tests = Path(__file__).parent
    texts = [path.read_text() for path in tests.rglob("test_*.py") if path != Path(__file__)]
    for name, strategy in KINDS[kind][0].all().items():
        said = (f'"{name}"', f"={name}", strategy.__name__)
        assert any(word in text for text in texts for word in said), f"{name} has no test"


def test_what_a_strategy_raises_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def size():\n    raise KeyError('no\\nprior')\n")
    code = compile((tmp_path / "mine.py").read_text(), str(tmp_path / "mine.py"), "exec")
    names: dict[str, object] = {}
    exec(code, names)
    size = names["size"]
    assert callable(size)
    with pytest.raises(StrategyError) as caught, blamed("sizing", "mine:Half"):
        size()
    assert str(caught.value) == (
        "the sizing 'mine:Half' failed in mine.py, line 2 (KeyError: 'no\\nprior'); correct it, "
        "and resume the run."
    )
    said = "the correction 'icepop, mine:Bad' failed in mine.py"
    with pytest.raises(StrategyError, match=said), blamed("correction", "icepop, mine:Bad"):
        size()
    with pytest.raises(MemoryError), blamed("sizing", "mine:Half"):
        raise MemoryError


def test_a_name_that_a_member_has_not_is_told_with_those_that_it_has() -> None:
    with pytest.raises(StrategyError) as caught, blamed("keep rule", "mine:Roc"):
        JudgedMember(1.0).failed_calls  # type: ignore[attr-defined]  # noqa: B018
    assert "'failed_calls'; it has calls, cut, failed, keys, logprob, parts, " in str(caught.value)
    with (
        pytest.raises(StrategyError, match="it has images, index, label, longest, "),
        blamed("x", "y"),
    ):
        PromptFacts().visits  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(StrategyError) as caught, blamed("keep rule", "mine:Roc"):
        "a text".failed_calls  # type: ignore[attr-defined]  # noqa: B018
    assert "it has" not in str(caught.value)


def test_what_asyncrl_refuses_of_a_strategy_has_no_line_of_asyncrl() -> None:
    """The line would be that of asyncrl's check, which nobody can correct."""
    given = RewardedSamples([], {}, {}, prompts={4: PromptFacts()})

    class Down(GroupWeight):
        def of(self, given: RewardedSamples) -> dict[int, float]:
            return dict.fromkeys(given.prompts, -1.0)

    with pytest.raises(StrategyError) as caught, blamed("group weight", "mine:Down"):
        weights_of(Down(), given)
    assert str(caught.value) == (
        "the group weight 'mine:Down' returns what it may not: the weight of group 4 is -1.0; "
        "return a finite number of at least 0; correct it, and resume the run."
    )
