from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.config import load
from asyncrl.launch.routing_bytes import routing_bytes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"num_hidden_layers": 48, "num_experts_per_tok": 8, "num_experts": 128}, 384),
        ({"num_hidden_layers": 2, "num_experts_per_tok": 2, "n_routed_experts": 256}, 4),
        ({"num_hidden_layers": 2, "num_experts_per_tok": 2, "n_routed_experts": 257}, 8),
        ({"num_hidden_layers": 3, "moe_k": 6, "moe_num_experts": 64}, 18),
        ({"num_hidden_layers": 3, "num_experts": 64}, None),
        ({"num_hidden_layers": "x"}, None),
    ],
)
def test_a_byte_for_each_choice_or_two_of_many_experts(
    tmp_path: Path, sizes: dict[str, object], expected: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    sets = [f"model.path={tmp_path}"]
    assert routing_bytes(load(None, sets, {})) == 0
    assert routing_bytes(load(None, [*sets, "train.router_replay=true"], {})) == expected
