"""The records of servers are the embedded engine's: same model, same tokens, same experts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from families import build
from some_values import some
from test_recorded_routing import PROMPT, sampled
from torch import nn

from asyncrl.algorithms.routing.routers import passing, watch
from asyncrl.engines.servers.routing_layout import layout_of
from asyncrl.engines.servers.server_routing import records


def server_rows(model: nn.Module, ids: np.ndarray) -> np.ndarray:
    """The experts of each position in each layer, by the modules of the layers themselves."""
    watched = copy.deepcopy(model)
    watch(watched)
    with torch.no_grad(), passing(watched) as passed:
        watched(input_ids=torch.from_numpy(ids)[None].long(), use_cache=False)
    assert passed is not None
    layers = watched.model.layers  # type: ignore[union-attr]
    routed = [i for i, layer in enumerate(layers) if hasattr(layer.mlp, "experts")]  # type: ignore[arg-type, union-attr]
    chosen = [passed.choices[place].experts.numpy() for place in range(len(routed))]
    rows = np.zeros((len(ids), len(layers), chosen[0].shape[1]), np.int32)  # type: ignore[arg-type]
    for layer, experts in zip(routed, chosen, strict=True):
        rows[:, layer] = experts
    return rows


@pytest.mark.parametrize("family", some(["glm4_moe", "qwen3_moe"]))
def test_the_pass_at_a_position_is_the_record_of_the_next_token(family: str) -> None:
    """GLM's first layers have no router."""
    model = build(family)
    layout = layout_of(model)
    for response in sampled(model):
        rows = server_rows(model, np.concatenate([PROMPT, response.ids]))
        new = rows[len(PROMPT) - 1 : -1]  # a server has not computed the last token
        found = records(new, layout, len(response.ids), whole=True)
        shape = len(found), len(layout.routed), layout.chosen
        assert np.array_equal(
            np.sort(found.reshape(shape)), np.sort(response.routing.reshape(shape))
        )


def test_models_that_servers_cannot_tell_the_experts_of_are_refused() -> None:
    with pytest.raises(ValueError, match="Qwen3ForCausalLM has no routers"):
        layout_of(build("qwen3"))
    twice = build("qwen3_moe")
    twice.add_module("of_no_layer", copy.deepcopy(twice.model.layers[0].mlp.gate))
    other = build("qwen3_moe")
    gate = other.model.layers[1].mlp.gate
    gate.weight = nn.Parameter(torch.zeros(gate.weight.shape[0] + 1, gate.weight.shape[1]))
    for model, said in ((twice, "one router a layer"), (other, "as many experts in each layer")):
        with pytest.raises(ValueError, match=said):
            layout_of(model)
