"""Entries of config.json that `check` asks for: those that bench/served_families.py adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_families import FAMILIES

from asyncrl.config import ConfigError, load
from asyncrl.engines.servers.config_entries import missing_entry
from asyncrl.engines.servers.tensor_parts import indivisible
from asyncrl.engines.spec import engine_kind

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


@pytest.mark.parametrize(
    ("entries", "ranks", "arguments", "said"),
    [
        ({"num_attention_heads": 14}, 1, (), ""),
        ({"num_attention_heads": 14}, 2, (), ""),
        ({"num_attention_heads": 14}, 4, (), "num_attention_heads = 14, which does not divide"),
        ({"text_config": {"num_attention_heads": 14}}, 4, (), "num_attention_heads = 14"),
        ({"intermediate_size": 100}, 8, (), "intermediate_size = 100, which does not divide"),
        ({"intermediate_size": 100, "moe_intermediate_size": 64}, 8, (), ""),
        ({"moe_intermediate_size": 100}, 8, (), "moe_intermediate_size = 100"),
        ({"moe_intermediate_size": 100}, 8, ("--ep-size", "8"), ""),
        ({"moe_intermediate_size": 100}, 8, ("--ep-size", "2"), ""),
        ({"num_key_value_heads": 2}, 8, (), ""),
        ({"num_key_value_heads": 6}, 4, (), "of which 4 ranks can have no equal part"),
        ({"n_routed_experts": 6}, 4, (), ""),
        ({"n_routed_experts": 6}, 4, ("--ep-size=4",), "n_routed_experts = 6, which does not div"),
        ({"num_experts": 8}, 4, ("--ep", "4"), ""),
        ({"num_attention_heads": "14"}, 4, ("--ep-size", "four"), ""),
    ],
)
def test_what_does_not_divide_among_a_servers_devices_is_named(
    entries: dict[str, Any], ranks: int, arguments: tuple[str, ...], said: str
) -> None:
    found = indivisible(entries, ranks, arguments)
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_check_refuses_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 14}')
    sets = f"engine.kind={kind}", f"engine.{kind}.launch=['python3']", f"model.path={tmp_path}"
    config = load(None, [*sets, f"engine.{kind}.tensor_parallel=4"], {})
    with pytest.raises(ConfigError, match=rf"by tensor_parallel = 4: change engine\.{kind}\.tens"):
        engine_kind(kind).check(config)
