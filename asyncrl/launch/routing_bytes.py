"""Bytes of the record of a token's experts, by the sizes in the model's config.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncrl.config import Config
from asyncrl.files import JSON_BYTES, read_regular

ONE_BYTE = 256
"""The most experts that a byte has a number for (`algorithms/routing/records.py`)."""


class _Routing(msgspec.Struct):
    """Sizes of a mixture, under the names that families have for them."""

    num_hidden_layers: int = 0
    num_experts_per_tok: int = 0
    experts_per_token: int = 0
    moe_topk: int = 0
    moe_k: int = 0
    num_experts: int = 0
    num_local_experts: int = 0
    n_routed_experts: int = 0
    moe_num_experts: int = 0


def routing_bytes(config: Config) -> int | None:
    """Most bytes of a token's record of experts: as if every layer had some. 0 if none is kept,
    None if config.json does not say."""
    if not config.train.router_replay:
        return 0
    try:
        text = read_regular(Path(config.model.path) / "config.json", JSON_BYTES)
        sizes = msgspec.json.decode(text, type=_Routing)
    except (OSError, msgspec.MsgspecError):
        return None
    chosen = sizes.num_experts_per_tok or sizes.experts_per_token or sizes.moe_topk or sizes.moe_k
    experts = max(
        sizes.num_experts, sizes.num_local_experts, sizes.n_routed_experts, sizes.moe_num_experts
    )
    if min(sizes.num_hidden_layers, chosen, experts) < 1:
        return None
    return sizes.num_hidden_layers * chosen * (1 if experts <= ONE_BYTE else 2)
