"""Rules are tried before a run starts: what no run could use is refused, and what a made-up group
lacks is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from scripted_world import configured

from asyncrl.config.errors import ConfigError
from asyncrl.config.loss_names import GROUP_WEIGHTS
from asyncrl.config.selection_names import CURRICULA, KEEPS, SIZINGS
from asyncrl.launch.strategy_trials import try_rules

RULES = """from asyncrl.algorithms.advantages.group_weight import GroupWeight
from asyncrl.algorithms.selection.curriculum import NextPrompt
class Keep:
    def choose(self, members, count, draw):
        return {choice}
class Size:
    def __init__(self, least, most):
        self.least, self.most = least, most
    def size(self, history, prompt_index):
        return {size}
    def grow(self, group):
        return {growth}
class Weight(GroupWeight):
    def of(self, given):
        return {{group: {weight} for group, prompt in given.prompts.items()}}
class Order:
    def __init__(self, stream):
        self.stream = stream
    def next(self, history, live):
        return {prompt}
"""
RIGHT = {
    "choice": "range(count)",
    "size": "self.least",
    "growth": "min(group.size + 1, self.most)",
    "weight": "prompt.solve_rate",
    "prompt": "NextPrompt(self.stream.prompt_index(history.cursor), history.cursor + 1)",
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a user's rules, on the Python path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tried", None)
    yield tmp_path / "tried.py"
    sys.modules.pop("tried", None)


def tried(mine: Path, prompts: int = 1000, **rules: str) -> None:
    """Try these rules of the file, with right ones beside them."""
    mine.write_text(RULES.format(**RIGHT | rules))
    config = configured(
        task={"curriculum": "tried:Order"},
        rollout={"sizing": "tried:Size", "group_size": 4, "group_size_max": 6},
        train={"keep": "tried:Keep", "group_weight": "tried:Weight"},
    )
    try_rules(config, prompts)


@pytest.mark.parametrize(
    ("rule", "code", "said"),
    [
        ("choice", "[]", r"the keep rule 'tried:Keep' keeps \[\] of 4 members; return one"),
        ("choice", "[members[0].tool_errors]", r"tried\.py, line 5 .*; it has calls, cut, failed"),
        ("size", "self.most + 1", "gives prompt 0 a group of 7; return a whole number from 1 to 6"),
        ("growth", "9", r"the group of 4 of prompt \d grow to 9; return .* from 4, .* to 6"),
        ("growth", "group.answers", r"failed in tried\.py, line 12 .*; it has members, prompt"),
        ("weight", "-0.5", "returns what it may not: the weight of group 0 is -0.5; return a"),
        ("weight", "float('nan')", "the weight of group 0 is nan; return a finite number"),
        ("weight", "prompt.visits", "; it has images, index, label, longest, posterior, prior"),
        ("prompt", "1000", "the curriculum 'tried:Order' chooses 1000; return None, or a Next"),
        ("prompt", "NextPrompt(1000, 1)", "NextPrompt with one of the 1000 prompts"),
    ],
)
def test_what_no_run_could_use_is_refused(mine: Path, rule: str, code: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tried(mine, **{rule: code})
    assert "resume" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("choice", "[0] if members[0].parts[1] else [1]"),  # the made-up reward has no parts
        ("weight", "1 / prompt.longest"),
        ("prompt", "NextPrompt([700, 800][history.cursor], history.cursor + 1)"),
        ("prompt", "None"),
    ],
)
def test_what_a_made_up_group_lacks_is_not(mine: Path, rule: str, code: str) -> None:
    tried(mine, **{rule: code})


def test_every_rule_of_asyncrl_passes() -> None:
    names = [*product(("in_order",), SIZINGS, ("all",), ("none",))]
    names += [*product(CURRICULA, ("fixed",), KEEPS, GROUP_WEIGHTS)]
    for curriculum, sizing, keep, weight in names:
        config = configured(
            task={"curriculum": curriculum},
            rollout={"sizing": sizing, "group_size": 4, "group_size_max": 16, "k_min": 2},
            train={"keep": keep, "group_weight": weight},
        )
        try_rules(config, 3)
