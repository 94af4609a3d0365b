"""Entries of config.json that `check` asks for: those that bench/served_families.py adds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served_families import FAMILIES

from asyncrl.engines.servers.config_entries import missing_entry

ASKED = {"DeepSeek-V3", "MiniMax-M2", "OLMo 3", "Qwen3-Next", "Qwen3.5", "Qwen3.5-MoE"}


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_family_lacks_what_was_added_for_it(name: str) -> None:
    family = FAMILIES[name]
    own: dict[str, Any] = {
        "model_type": family.model_type,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_theta": 500_000.0},
    }
    lacking = missing_entry(own, "SGLang")
    key = lacking.partition(":")[0].strip('"')
    assert json.loads("{" + lacking + "}") == {key: family.entries[key]}
    assert not missing_entry({**own, **family.entries}, "SGLang")
    assert not missing_entry({**own, **family.entries}, "vLLM")


def test_published_ones_of_the_default_interval_need_none() -> None:
    layers = [*["linear_attention"] * 3, "full_attention"] * 2
    assert not missing_entry({"model_type": "qwen3_next", "layer_types": layers}, "SGLang")
    two = layers[2:4]
    assert missing_entry({"model_type": "qwen3_next", "layer_types": two}, "SGLang") == (
        '"full_attention_interval": 2'
    )


def test_families_with_entries_are_known() -> None:
    assert {name for name, family in FAMILIES.items() if family.entries} == ASKED
