"""The page of models has a row for each family that the script of served families knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from served_families import FAMILIES, KINDS, Row, built, changed

from asyncrl.engines.servers.tried_models import TRIED

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def table(kind: str) -> dict[str, list[str]]:
    """A server's part of the table, by family: class, passes and what was found."""
    lines = re.findall(r"^\| (.*) \|$", PAGE.partition("\n## Served\n")[2], re.M)
    head, *rows = ([cell.strip() for cell in line.split(" | ")] for line in lines)
    found = head.index(kind)
    return {row[0]: [row[1], row[2], row[found]] for row in rows}


@pytest.mark.parametrize("kind", KINDS)
def test_each_family_has_its_row(kind: str) -> None:
    title = KINDS[kind].program.package.title
    rows = table(title)
    assert rows.keys() == FAMILIES.keys()
    for name, (architecture, passes, *_) in rows.items():
        assert passes in ("packed", "padded", "alone", "-")
        if name != "Kimi Linear":  # not built so small
            assert architecture == f"`{type(built(FAMILIES[name], KINDS['sglang'])).__name__}`"


def test_no_tensor_of_a_version_is_that_of_another_one() -> None:
    model = built(FAMILIES["Qwen3"], KINDS["sglang"])
    one, two = changed(model, 1), changed(model, 2)
    assert one.keys() == two.keys() and not any(torch.equal(one[name], two[name]) for name in one)
    norms = [tensor for name, tensor in one.items() if name.endswith("q_norm.weight")]
    assert len(norms) == 2 and not torch.equal(*norms)


def test_a_row_names_what_is_not_compared() -> None:
    row = Row("Qwen3", "Qwen3ForCausalLM", "packed", 18, (), ("model.cache", "x"), 1e-6)
    assert (
        str(row) == "Qwen3 | Qwen3ForCausalLM | packed | 18 | 0 | 2 (model.cache first) | 1.0e-06"
    )
    failed = Row("Kimi Linear", failed="not built: too large")
    assert str(failed).endswith(" | not built: too large")


@pytest.mark.parametrize("kind", KINDS)
def test_check_names_the_engines_that_the_page_says_were_tried(kind: str) -> None:
    rows = table(KINDS[kind].program.package.title).values()
    tried = {row[0].strip("`") for row in rows if not row[-1].startswith(("no", "not "))}
    assert tried == TRIED[kind]
