"""A rough bound on a trainer's memory, by the sizes in its model's config.json: several times too
high, and computed without torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncrl.config import Config
from asyncrl.files import JSON_BYTES, read_regular
from asyncrl.training.memory_parts import longest_samples

STATE = 16
"""Copies of the weights in float32, at most: weights, gradients, moments, masters, an average, and
the copy for checkpoints. Kept versions come on top."""
HIDDEN, INTERMEDIATE, LOGITS = 48, 16, 8
"""Numbers that a pass keeps for a token, at most, as multiples of the model's widths."""


class _Sizes(msgspec.Struct):
    """Sizes that the configurations of plain decoders name alike."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    head_dim: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    text_config: object = None


def model_bound(config: Config) -> int | None:
    """More bytes than the trainer of `config` can need. None if config.json lacks the sizes, and if
    more than this model is involved: adapters, a reference, a teacher.

    >>> from asyncrl.config import load
    >>> model_bound(load(None, ["model.path=/nowhere"], {}))
    """
    others = config.model.lora.rank or config.reference.coefficient or config.teacher.coefficient
    folder = Path(config.model.path)
    try:
        sizes = msgspec.json.decode(read_regular(folder / "config.json", JSON_BYTES), type=_Sizes)
        stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    except (OSError, msgspec.MsgspecError):
        return None
    experts = sizes.num_experts, sizes.num_local_experts, sizes.n_routed_experts
    if others or not stored or any(experts) or sizes.text_config is not None:
        return None
    samples, longest = longest_samples(config)
    width = max(sizes.hidden_size, sizes.num_attention_heads * (sizes.head_dim or 0))
    of_token = sizes.num_hidden_layers * (
        HIDDEN * width
        + INTERMEDIATE * sizes.intermediate_size
        + 4 * sizes.num_attention_heads * longest  # scores, if attention keeps them
    )
    numbers = samples * longest * (of_token + LOGITS * sizes.vocab_size)
    copies = STATE + config.staleness.max_lag
    return copies * 2 * stored + 4 * numbers  # weights may be stored in two bytes
