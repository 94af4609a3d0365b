"""The card of a trained model: what it says, and that nobody's text is markup in it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import msgspec
import pytest

from asyncrl.config import Config
from asyncrl.explain.model_card import CARD, card, write_cards
from asyncrl.explain.summary import Accuracy, Summary
from asyncrl.runtime.run_dir import MODEL, MODEL_EMA

SUMMARY = Summary(
    ok=True, reason="all 7 steps are done", steps=7, seconds=9.0, accuracy=Accuracy(0.25, 0.975)
)


def of(**settings: dict[str, object]) -> str:
    return card(msgspec.convert(settings, Config), SUMMARY, "1.2.3")


def head(text: str) -> dict[str, object]:
    yaml = pytest.importorskip("yaml")
    _, front, _ = text.split("---\n", 2)
    found = yaml.safe_load(front)
    assert isinstance(found, dict)
    return found


def test_it_says_where_the_model_comes_from_and_what_it_came_to() -> None:
    text = of(
        task={"name": "rotate_matrix"},
        train={"steps": 7, "lr": 3e-4},
        run={"seed": 5},
        model={"path": "/models/small"},
    )
    shown = html.unescape(text)
    for row in (
        "| base model | /models/small |",
        "| task | rotate_matrix |",
        "| advantage, objective | grpo, clip |",
        "| learning rate | 0.0003 |",
        "| corrections | icepop |",
        "| steps | 7 of 7 |",
        "| held-out accuracy | 0.250 → 0.975 |",
        "| asyncrl | 1.2.3 |",
    ):
        assert row in shown, row
    found = head(text)
    assert found["license"] == "unknown" and found["library_name"] == "transformers"
    assert "asyncrl" in found["tags"]  # type: ignore[operator]
    (result,) = found["model-index"][0]["results"]  # type: ignore[index]
    assert result["metrics"][0]["value"] == 0.975
    assert result["dataset"]["name"] == "rotate_matrix"


def test_a_hostile_name_is_text_in_the_head_and_in_the_table() -> None:
    path = '/models/<script>alert(1)</script>|x\n---\n# [a](javascript:b) "q": {y} \x1b[2J'
    text = of(model={"path": path}, task={"name": "jsonl", "path": path})
    body = text.split("---\n", 2)[2]
    assert not re.search(r"[<>\[\]`\x1b]", body.replace("`run.toml`", ""))
    assert all(line.count("|") == 3 for line in body.splitlines() if line.startswith("|"))
    assert "<script>" in html.unescape(body)  # it is shown as it is
    found = head(text)
    assert set(found) == {"library_name", "license", "tags", "model-index"}


def test_a_model_of_a_hub_is_the_base_by_its_name() -> None:
    text = of(model={"path": f"/home/me/hub/models--org--name/snapshots/{'a' * 40}"})
    assert head(text)["base_model"] == "org/name" and "/home/me" not in text
    assert f"| base model | org/name&#64;{'a' * 40} |" in text
    assert head(text)["model-index"][0]["name"] == "name"


def test_each_model_of_the_last_step_has_one(tmp_path: Path) -> None:
    config = msgspec.convert({}, Config)
    assert write_cards(tmp_path, config, SUMMARY, "1") == []
    for name in (MODEL, MODEL_EMA):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert write_cards(tmp_path, config, SUMMARY, "1") == [
        tmp_path / MODEL / CARD,
        tmp_path / MODEL_EMA / CARD,
    ]


def test_without_an_evaluation_it_claims_no_result() -> None:
    summary = Summary(ok=True, reason="done", steps=1, seconds=1.0)
    text = html.unescape(card(msgspec.convert({}, Config), summary, "1"))
    assert "model-index" not in head(text) and "| held-out accuracy | not evaluated |" in text
