"""Recipes of docs/research.md beside the loss: the settings on the page do what their papers do."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from asyncrl.algorithms.selection.curriculum import Curriculum, PromptOrder
from asyncrl.algorithms.selection.mixed_order import MixedOrder, TaskPart
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config import Config, load
from asyncrl.config.fields import FIELDS, SECTIONS
from asyncrl.config.losses import minibatch_rule_of, updates
from asyncrl.config.selection_names import CURRICULA

DOCS = Path(__file__).parents[2] / "docs"
TESTS = """
APRIL | actors/test_flow.py
AReaL, in-flight updates | staleness/test_admission.py
Periodic asynchrony | actors/test_lag_0.py
AsyncFlow; tree training | actors/test_coordinator.py training/test_prefix_tree.py
SeamlessFlow | agents/gateway/test_gateway.py actors/test_lent_engines.py
RollArt | config/test_tags.py bench/test_tags_bench.py launch/cluster/test_machines.py
Universal Checkpointing | runs/test_trainer_ranks.py
Missing Old Logits | training/test_proximal_policies.py
VCPO | staleness/test_vcpo.py
FedStale | staleness/test_correction.py
SRPO | config/test_research_recipes.py
DARS-B; BroRL | config/test_research_recipes.py simulation/test_broad_groups.py
DRIVE | config/test_research_recipes.py agents/test_paper_examples.py
SeeUPO | training/test_seeupo.py
DARS | algorithms/selection/test_growth.py
XRPO's stages | algorithms/selection/test_growth.py
GDRO's sizes | algorithms/selection/test_group_size.py
DART | algorithms/selection/test_group_size.py actors/test_pruning.py actors/test_imports.py
ARRoL | algorithms/selection/test_prune.py actors/test_pruning.py
Selective Rollout | algorithms/selection/test_prune.py actors/test_pruning.py
BranchGRPO, ECHO, LATR | actors/test_forking.py bench/test_branching.py
C3PO++ | config/test_research_recipes.py
PACED | algorithms/test_group_weight.py training/test_kl_terms.py
DOTS | algorithms/selection/
VADE | algorithms/selection/
MSSR | algorithms/test_history_baseline.py staleness/test_entropy_weights.py
V0.5 | algorithms/test_history_baseline.py algorithms/selection/test_growth.py
HGPO, GiGPO | algorithms/test_same_state.py
GDPO | algorithms/test_gdpo_weights.py
MC-GRPO | algorithms/test_advantages.py
D3S | agents/test_paper_examples.py staleness/test_abs_advantage_entropy.py
KAT-Coder | actors/test_error_masked.py agents/test_paper_examples.py
FAPO | agents/test_paper_examples.py
OTR | agents/test_paper_examples.py
ReEx-SQL | agents/test_paper_examples.py
SAGE | agents/test_paper_examples.py
SPA-RL | agents/test_paper_examples.py
rStar2 | agents/test_paper_examples.py
SWE-Next, SWE-rebench V2, DARE-bench: an image per row | agents/test_paper_examples.py
LUFFY; Self-Improving Pretraining | actors/test_imports.py staleness/test_entropy_weights.py
ECHO, shaping | staleness/test_entropy_weights.py
SAPO | tasks/test_shared_groups.py actors/test_imports.py
UI-S1's patches | agents/test_screens.py
GRPO-RoC | algorithms/selection/test_keep.py
TreePS-RAG, Tree-GRPO, TreeRL; MedS3 by `to_go` | algorithms/test_below.py
LongCat, fusion of domains; task arithmetic | training/test_merged_weights.py
DORA | sglang/test_served_adapters.py actors/test_own.py
FlexMARL, exact accumulation | simulation/test_games_seeds.py
AlphaStar, league | launch/test_past.py config/test_game.py
Agnostics | tasks/test_program_languages.py
Jet-RL | training/test_rounding.py
"""
"""The tests of each row of the page, below tests/."""


def block(page: str, heading: str) -> str:
    """The first block of settings under a heading."""
    text = (DOCS / page).read_text().split(f"\n## {heading}\n")[1]
    return text.split("```toml\n")[1].split("```")[0]


def loaded(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load(path, (), {})


def epochs(rule: Curriculum, stream: PromptOrder, solved: dict[int, float]) -> list[list[int]]:
    """The prompts that each epoch starts, where so many of four rollouts solve each."""
    history, found = History(), dict[int, list[int]]()
    while (chosen := rule.next(history, live=set())) is not None:
        found.setdefault((chosen.cursor - 1) // stream.size, []).append(chosen.prompt_index)
        history.admit(chosen.prompt_index, chosen.cursor)
        right = round(4 * solved[chosen.prompt_index])
        history.record(chosen.prompt_index, [1.0] * right + [0.0] * (4 - right), 4)
    return [found.get(epoch, []) for epoch in range(max(found) + 1)]


def test_srpo_leaves_out_what_all_solved_and_keeps_what_none_did(tmp_path: Path) -> None:
    config = loaded(tmp_path, block("research.md", "SRPO"))
    assert (config.rollout.group_size, config.train.batch_groups) == (32, 256)
    stream = PromptOrder(3, seed=0, epochs=4)
    rule = CURRICULA.find(config.task.curriculum)(stream)
    found = epochs(rule, stream, {0: 1.0, 1: 0.5, 2: 0.0})
    assert [sorted(epoch) for epoch in found] == [[0, 1, 2], [1, 2], [1, 2], [0, 1, 2]]


def test_srpo_begins_with_mathematics_and_goes_on_with_code_beside_it(tmp_path: Path) -> None:
    stages = block("evaluation.md", "Several tasks")
    task = loaded(tmp_path, stages).task
    weights = {name: task.weights.get(name, 0.0) for name in task.mix}
    parts = [
        TaskPart(
            name, {"train": 5000}, tuple(share) if isinstance(share, list | tuple) else (share,) * 2
        )
        for name, share in weights.items()
    ]
    stream = MixedOrder(parts, stages=task.stages, seed=0, epochs=0)
    names = [parts[stream.task(place)].label for place in range(2 * task.stages[0])]
    first, second = names[: task.stages[0]], names[task.stages[0] :]
    assert set(first) == {"math"} and 0.45 < second.count("code") / len(second) < 0.55
    assert set(second) == {"math", "code"}


def test_dars_b_updates_with_the_whole_batch_each_time(tmp_path: Path) -> None:
    train = loaded(tmp_path, block("research.md", "DARS-B")).train
    assert train.minibatches == 1 and updates(train) == train.passes > 1
    assert train.batch_groups > 16 * type(train)().batch_groups


def test_seeupo_updates_turn_by_turn_at_the_ratio_of_a_turn(tmp_path: Path) -> None:
    train = loaded(tmp_path, block("research.md", "SeeUPO")).train
    assert minibatch_rule_of(train).by_turn and train.objective == "gspo"


def test_brorl_draws_512_of_each_prompt(tmp_path: Path) -> None:
    assert loaded(tmp_path, block("research.md", "BroRL")).rollout.group_size == 512


def test_drive_keeps_the_hardest_in_its_second_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples/papers"))
    config = loaded(tmp_path, block("research.md", "DRIVE"))
    assert config.rollout.group_size == 64
    stream = PromptOrder(60, seed=1, epochs=3)
    rule = CURRICULA.find(config.task.curriculum)(stream)
    found = epochs(rule, stream, {n: n % 5 / 4 for n in range(60)})
    assert [len(epoch) for epoch in found] == [60, 20, 8]
    rates = [sum(n % 5 for n in epoch) / len(epoch) for epoch in found]
    assert all(later < earlier for earlier, later in pairwise(rates))
    sys.modules.pop("drive", None)


def test_each_setting_and_file_that_the_page_names_is_there_and_each_row_has_its_test() -> None:
    page = (DOCS / "research.md").read_text()
    settings = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.\w+)\b", page))
    files = re.findall(r"\]\(examples/papers/(\w+\.py)\)", page)
    assert len(settings) > 10 and settings <= FIELDS.keys()
    assert {path.name for path in (DOCS / "examples/papers").glob("*.py")} == set(files)
    works = page.split("## What works")[1].split("\n## ")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (?!system|---)(.+) \|$", works, re.M)]
    assert all(settings.strip() for _, settings, *_ in rows)
    tests = dict(line.split(" | ") for line in TESTS.strip().splitlines())
    assert [*tests] == [system for system, *_ in rows]
    for names in tests.values():
        assert all((DOCS.parent / "tests" / name).exists() for name in names.split()), names


def test_c3po_stops_at_its_tokens_and_goes_on_with_the_rest_three_times(tmp_path: Path) -> None:
    config = loaded(tmp_path, block("research.md", "C3PO++"))
    rollout = config.rollout
    assert config.train.step_tokens and (rollout.mode, rollout.max_resumes) == ("batch", 3)
    assert rollout.overprovision > 1, "so that something is unfinished"
