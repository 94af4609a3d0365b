"""The memory of a rank, as `asyncrl check` predicts it, for large models on 4 to 256 GPUs, each
copy divided among all of them: no weights are needed, and no GPU.

A pass has one rollout of 512 + 8,000 tokens, layers are recomputed, and weights are bfloat16. `-`
is more than the 78 GiB that a GPU of 80 GB leaves.

With `--contexts`, of one model over 8 GPUs: a row for each length of one rollout, a column for each
number of ranks that compute it together (`train.context_ranks`).

    python bench/memory_of_ranks.py [--only 8B] [--optimizer adamw8bit] [--contexts]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.config import Config

GIB, MOST = 2**30, 78 * 2**30
RANKS = (4, 8, 16, 32, 64, 128, 256)
CONTEXTS, TOGETHER, OF_CONTEXTS = (8512, 32_768, 65_536, 131_072, 262_144), (1, 2, 4, 8), 8
COMMON = {"vocab_size": 151_936, "head_dim": 128, "max_position_embeddings": 40_960}
MODELS: dict[str, dict[str, object]] = {
    "Qwen3-8B": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Qwen3-32B": {
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "70B, as Llama's": {
        "vocab_size": 128_256,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "Qwen3-30B-A3B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "Qwen3-235B-A22B": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
}


@contextmanager
def written(name: str) -> Iterator[str]:
    """A folder with the config.json of a model."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    sizes = COMMON | MODELS[name]
    kind = Qwen3MoeConfig if "num_experts" in sizes else Qwen3Config
    with tempfile.TemporaryDirectory() as folder:
        kind(**sizes, tie_word_embeddings=False).save_pretrained(Path(folder))
        yield folder


def config_of(folder: str, tokens: int, ranks: int, **train: object) -> Config:
    """A run of the model there, of rollouts of so many tokens."""
    from asyncrl.config import load

    settings = {
        "model.path": folder,
        "model.dtype": "bfloat16",
        "engine.context_tokens": tokens,
        "rollout.max_new_tokens": tokens - 512,
        "train.micro_tokens": tokens,
        "train.recompute_activations": "true",
        "train.ranks": ranks,
        **{f"train.{key}": value for key, value in train.items()},
    }
    return load(None, [f"{key}={value}" for key, value in settings.items()], {})


def contexts(name: str) -> None:
    """Print a rank's GiB for contexts of all lengths."""
    from asyncrl.training.memory import predict

    print(f"{name}, {OF_CONTEXTS} GPUs" + "".join(f"{ranks:>8}" for ranks in TOGETHER))
    with written(name) as folder:
        for tokens in CONTEXTS:
            cells = []
            for ranks in TOGETHER:
                settings = {"device": "cuda", "context_ranks": ranks}
                found = predict(config_of(folder, tokens, OF_CONTEXTS, **settings)).total
                cells.append(f"{found / GIB:8.1f}")
            print(f"{tokens:17,}" + "".join(cells), flush=True)


def row(name: str, optimizer: str) -> tuple[int, list[int], int]:
    """A model's parameters, the bytes of a rank for each of `RANKS`, and of all ranks' copies for a
    checkpoint in host memory."""
    from asyncrl.launch.trainer_memory import kept_bytes
    from asyncrl.training import memory

    with written(name) as folder:
        config = config_of(folder, 8512, RANKS[0], optimizer=optimizer)
        found: list[int] = []
        models: list[int] = []

        def of_rank(model: object, most: object, policies: int, parts: int) -> object:
            models.append(sum(p.numel() for p in model.parameters()))  # type: ignore[attr-defined]
            every = [of(model, most, policies, ranks) for ranks in RANKS]  # type: ignore[arg-type]
            found.extend(each.total for each in every)
            return every[0]

        of = memory.of_rank
        memory.of_rank = of_rank  # type: ignore[assignment]
        try:
            memory.predict(config)
        finally:
            memory.of_rank = of
        return models[0], found, kept_bytes(config, models[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models whose name has this")
    parser.add_argument("--optimizer", default="adamw", help="train.optimizer")
    parser.add_argument("--contexts", action="store_true", help="of long contexts")
    args = parser.parse_args()
    if args.contexts:
        for name in MODELS:
            if args.only in name:
                contexts(name)
        return
    print(
        f"{'GiB a rank':18}{'billions':>9}" + "".join(f"{ranks:>8}" for ranks in RANKS) + "   copy"
    )
    for name in MODELS:
        if args.only in name:
            count, found, copied = row(name, args.optimizer)
            cells = (f"{size / GIB:8.1f}" if size <= MOST else f"{'-':>8}" for size in found)
            print(f"{name:18}{count / 1e9:9.1f}{''.join(cells)}{copied / GIB:7.0f}", flush=True)


if __name__ == "__main__":
    main()
