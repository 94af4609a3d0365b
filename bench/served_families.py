"""Families of open models through a real server: built small, served, published to twice, compared.

For each family: a server of the kind `--server` starts once on a processor with a tiny model of
random weights, and is given two versions by broadcast, in the second of which every tensor has
changed. Of each version the server's checksums are compared with the trainer's, and its
log-probabilities of a text with transformers'; of the second also those of tokens that it samples.
The rows are the table of docs/models.md.

    python bench/served_families.py --server sglang [--families NAME …]    all of them without names

The columns: the model's class; the passes that train it; the server's tensors that are compared
byte by byte; those that are only seen to change (`inexact`); those that the server makes of none of
the trainer's weights (`derived`); the largest difference of log-probabilities, in nats. For a
family that fails, the last column says why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import trio
from families import LAYERS, SMALL, build
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from asyncrl.bundled.bundled_model import END_ID, PADDING_ID, VOCABULARY, write_tokenizer
from asyncrl.engines import canary
from asyncrl.engines.servers.managed import ServerProgram, managed
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.servers.server_types import Mode
from asyncrl.engines.sglang import sglang_launch
from asyncrl.engines.vllm import vllm_launch
from asyncrl.training.models import ModelError
from asyncrl.training.trial import try_passes
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.weight_loader import WeightLoader

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
DEADLINE_S, READY_S = 120.0, 300.0
CONTEXT, SLOTS, SAMPLED = 256, 2, 48


class Family(NamedTuple):
    """A model type of transformers, and sizes of its own. `entries` are of its config.json alone,
    as published checkpoints have them and transformers' class has not. A server's arguments are by
    its kind. In another type than float32 it is served where a server knows no other."""

    model_type: str
    sizes: Mapping[str, object] = {}
    entries: Mapping[str, object] = {}
    arguments: Mapping[str, tuple[str, ...]] = {}
    dtype: str = "float32"


class Kind(NamedTuple):
    """A kind of server: its name, its program, the folder of its environment, how it is paused, the
    sizes that its kernels need, the families that these compute in bfloat16 alone, and what it
    reads in the config.json of published checkpoints of a family."""

    name: str
    program: ServerProgram[Any]
    environment: str
    mode: Mode
    sizes: Mapping[str, object] = {}
    rounded: frozenset[str] = frozenset()
    entries: Mapping[str, Mapping[str, object]] = {}

    def dtype(self, family: Family) -> str:
        return "bfloat16" if family.model_type in self.rounded else family.dtype


WIDE = {
    "hidden_size": 128,
    "head_dim": 32,
    "v_head_dim": 32,
    "qk_nope_head_dim": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
"""vLLM's attention on a processor takes heads of 32 numbers at least, its linear and its latent one
those of real models."""

GATED_DELTA = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
SAID: Mapping[str, Mapping[str, object]] = {
    "glm4_moe": {"head_dim": 32},
    "deepseek_v3": {"topk_method": "noaux_tc"},
    "minimax_m2": {"rotary_dim": 32},
}

KINDS = {
    "sglang": Kind("sglang", sglang_launch.PROGRAM, ".venv-sglang", "retract"),
    "vllm": Kind("vllm", vllm_launch.PROGRAM, ".venv-vllm", "abort", WIDE, GATED_DELTA, SAID),
}

LINEAR = {"sglang": ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")}
"""A state of linear attention cannot be snapshotted on a processor."""

TRITON = {"sglang": ("--attention-backend", "triton")}
"""SGLang's attention in pure torch has neither sinks nor a latent cache. Triton's interpreter runs
the other one."""
LATENT: Mapping[str, object] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
"""SGLang has DeepSeek's positions on a CPU only so, and its latent cache in the sizes of all such
models."""
MINIMAX = {
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
}
DEEPSEEK = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
OLMO3 = {"rope_theta": 500_000.0}
NEMOTRON: Mapping[str, object] = {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8}
EVERY_SECOND = {"full_attention_interval": LAYERS}

SIZES: Mapping[str, object] = {
    **SMALL,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 64,
    "head_dim": 16,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 64,
    "eos_token_id": END_ID,
    "pad_token_id": PADDING_ID,
}
"""Sizes of every family, by the names that families have for them."""

_HYBRID = {"layer_types": ["sliding_attention", "full_attention"]}

FAMILIES = {
    "Llama 3": Family("llama"),
    "Llama 4": Family("llama4_text", {"num_experts_per_tok": 1}, dtype="bfloat16"),
    "Qwen2.5": Family("qwen2", {"tie_word_embeddings": True}),
    "Qwen3": Family("qwen3", {"tie_word_embeddings": True}),
    "Qwen3-MoE": Family("qwen3_moe"),
    "Qwen3-Next": Family("qwen3_next", {}, EVERY_SECOND, LINEAR),
    "Qwen3.5": Family("qwen3_5_text", {}, EVERY_SECOND, LINEAR),
    "Qwen3.5-MoE": Family("qwen3_5_moe_text", {}, EVERY_SECOND, LINEAR),
    "GLM-4.5": Family("glm4_moe"),
    "DeepSeek-V3": Family("deepseek_v3", LATENT, DEEPSEEK, TRITON),
    "gpt-oss": Family("gpt_oss", {}, {}, TRITON),
    "Gemma 3": Family("gemma3_text", _HYBRID),
    "Gemma 4": Family("gemma4_text", {**_HYBRID, "num_experts": None}),
    "Mistral": Family("mistral", {"sliding_window": None}),
    "Mixtral": Family("mixtral"),
    "OLMo 2": Family("olmo2"),
    "OLMo 3": Family("olmo3", _HYBRID, OLMO3),
    "OLMoE": Family("olmoe", {"num_key_value_heads": 4}),
    "Granite": Family("granite"),
    "GraniteMoE": Family("granitemoe"),
    "Nemotron-H": Family("nemotron_h", NEMOTRON, {}, LINEAR),
    "MiniMax-M2": Family("minimax_m2", {}, MINIMAX),
    "Kimi Linear": Family("kimi_linear", {}, {}, LINEAR),
}
"""The families that people post-train, as they call them."""


class Row(NamedTuple):
    """A line of the table: the findings of a family."""

    family: str
    architecture: str = ""
    passes: str = ""
    exact: int = 0
    inexact: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    gap: float = float("nan")
    failed: str = ""

    def __str__(self) -> str:
        known = (self.family, self.architecture, self.passes)
        if self.failed:
            return " | ".join((*known, self.failed))
        found = (self.exact, _named(self.inexact), _named(self.derived), f"{self.gap:.1e}")
        return " | ".join(str(part) for part in (*known, *found))


def _named(names: tuple[str, ...]) -> str:
    return f"{len(names)} ({names[0]} first)" if names else "0"


def built(family: Family, kind: Kind) -> PreTrainedModel:
    """The tiny model. Raises what its class raises."""
    with warnings.catch_warnings(action="ignore"):
        sizes = {**SIZES, **kind.sizes, **family.sizes}
        if kind.dtype(family) == "bfloat16":
            sizes["initializer_range"] = 0.05  # else rounding alone is a tenth of a nat
        model = build(family.model_type, sizes)
    for name, value in {**family.entries, **kind.entries.get(family.model_type, {})}.items():
        setattr(model.config, name, value)
    random = torch.Generator().manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # zero in a new model alone
            buffer += 0.1 * torch.randn(buffer.shape, generator=random)
    return model.to(getattr(torch, kind.dtype(family)))


def changed(model: PreTrainedModel, version: int) -> dict[str, Tensor]:
    """A version of a model's weights, in which no tensor has the values of another version, nor of
    another tensor: norms that are all ones would be taken for each other."""
    random = torch.Generator().manual_seed(version)

    def other(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=random, dtype=torch.float32)
        return (tensor.detach() * (1 + 0.1 * noise) + 0.01 * noise).to(tensor.dtype)

    return {name: other(parameter) for name, parameter in model.named_parameters()}


async def served(name: str, kind: Kind, python: tuple[str, ...], folder: Path) -> Row:
    """The row of a family, whatever happens to it."""
    family = FAMILIES[name]
    try:
        model = built(family, kind)
    except Exception as error:  # noqa: BLE001 (a family may raise what it likes of tiny sizes)
        return Row(name, failed=_said("not built", error))
    row = Row(name, type(model).__name__)
    try:
        row = row._replace(passes=try_passes(built(family, kind), CONTEXT).passes)
    except ModelError as error:
        row = row._replace(passes="none", failed=_said("not trained", error))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    try:
        return await _published(row, model, kind, python, folder)
    except Exception as error:  # noqa: BLE001 (as above)
        return row._replace(failed=_said("not served", error))


async def _published(
    row: Row, model: PreTrainedModel, kind: Kind, python: tuple[str, ...], folder: Path
) -> Row:
    family = FAMILIES[row.family]
    arguments, dtype = family.arguments.get(kind.name, ()), kind.dtype(family)
    launch = ServerLaunch(python, str(folder), dtype, "cpu", SLOTS, CONTEXT, arguments=arguments)
    text = canary.text(VOCABULARY, {END_ID, PADDING_ID})
    async with (
        managed(
            kind.program,
            launch,
            log=folder / "server.log",
            ready_s=READY_S,
        ) as server,
        kind.program.open(server, DEADLINE_S) as client,
        ServerGroup.open(HOST, 1, bucket_bytes=100_000) as group,
    ):
        loader = WeightLoader(
            client,
            ByBroadcast(group, DEADLINE_S),
            model,
            text,
            mode=kind.mode,
            tolerance=canary.TOLERANCE[dtype],
            deadline_s=DEADLINE_S,
        )
        gap = 0.0
        for version in (1, 2):
            weights = changed(model, version)
            loaded = await loader.load(version, weights, canary.reference(model, weights, text))
            gap = max(gap, loaded.difference)
        checks = loader.checks
        assert checks is not None, "the server has no checksums"
        return row._replace(
            exact=checks.exact,
            inexact=tuple(checks.inexact),
            derived=tuple(checks.derived),
            gap=max(gap, await _sampled(client, model, weights, text)),
        )


async def _sampled(
    client: ServerClient, model: PreTrainedModel, weights: Mapping[str, Tensor], text: NDArray[Any]
) -> float:
    """The largest difference of the log-probabilities that came with sampled tokens from those of
    the trainer's weights."""
    asked = client.generate(uuid.uuid4().hex, text, max_new_tokens=SAMPLED, temperature=1.0)
    async with aclosing(asked) as stream:
        events = [event async for event in stream]
    ids = np.concatenate([text, *(event.ids for event in events)]).astype(np.int32)
    behaviour = np.concatenate([event.behaviour for event in events])
    expected = np.array(canary.reference(model, weights, ids))[len(text) - 1 :]
    return float(np.abs(behaviour - expected).max())


def _said(what: str, error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{what}: {said[:300]}"


async def main(kind: Kind, python: tuple[str, ...], names: list[str], logs: Path | None) -> None:
    torch.set_num_threads(1)
    for name in names or FAMILIES:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            row = await served(name, kind, python, folder)
            log = folder / "server.log"
            if logs is not None and log.exists():
                (logs / f"{FAMILIES[name].model_type}.log").write_bytes(log.read_bytes())
        print(f"{row} | {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", choices=list(KINDS), required=True)
    parser.add_argument("--launch", nargs="+", help="the command of a Python that has the server")
    parser.add_argument("--logs", type=Path, help="a folder to keep the servers' logs in")
    parser.add_argument("--families", nargs="+", metavar="FAMILY", default=[])
    args = parser.parse_args()
    if unknown := set(args.families) - FAMILIES.keys():
        parser.error(f"no family {min(unknown)}; there are {', '.join(FAMILIES)}")
    chosen = KINDS[args.server]
    python = args.launch or [str(ROOT / chosen.environment / "bin" / "python")]
    if not Path(python[0]).exists():
        sys.exit(f"{python[0]} is not there; `make {args.server}-cpu` builds it")
    logging.set_verbosity_error()
    trio.run(main, chosen, tuple(python), args.families, args.logs)
