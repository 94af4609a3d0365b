"""The linear layers of an installed server, given weights in fp8 blocks: `python fp8_layers.py
sglang|vllm FP8_BLOCKS_PY ADDRESS`, in that server's environment. It prints a line for each tensor,
ending in True if the layer holds the bytes that it was given. Kernels are left out: on a processor
they need AMX."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN = 256


@contextmanager
def sglang(address: str) -> Iterator[tuple[Any, Any]]:
    distributed = import_module("sglang.srt.distributed")
    arguments = import_module("sglang.srt.server_args")
    arguments.set_global_server_args_for_scheduler(arguments.ServerArgs(model_path="dummy"))
    distributed.init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=address, local_rank=0, backend="gloo"
    )
    distributed.initialize_model_parallel(backend="gloo")
    yield (
        import_module("sglang.srt.layers.linear"),
        import_module("sglang.srt.layers.quantization.fp8"),
    )


@contextmanager
def vllm(address: str) -> Iterator[tuple[Any, Any]]:
    config, distributed = import_module("vllm.config"), import_module("vllm.distributed")
    fp8 = import_module("vllm.model_executor.layers.quantization.fp8")
    fp8.init_fp8_linear_kernel = lambda **_: None
    own = config.VllmConfig()
    object.__setattr__(own, "model_config", SimpleNamespace(dtype=torch.bfloat16, is_moe=False))
    with config.set_current_vllm_config(own):
        distributed.init_distributed_environment(1, 0, address, 0, "gloo")
        distributed.initialize_model_parallel(1, 1)
        yield import_module("vllm.model_executor.layers.linear"), fp8


def main(kind: str, quantizer: str, address: str) -> None:
    spec = importlib.util.spec_from_file_location("fp8_blocks", quantizer)
    assert spec is not None and spec.loader is not None
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    torch.manual_seed(0)
    with {"sglang": sglang, "vllm": vllm}[kind](address) as (linear, fp8):
        config = fp8.Fp8Config(
            is_checkpoint_fp8_serialized=True,
            activation_scheme="dynamic",
            weight_block_size=[128, 128],
        )
        common = {"bias": False, "quant_config": config, "params_dtype": torch.bfloat16}
        for layer, shards in (
            (
                linear.QKVParallelLinear(HIDDEN, 128, 2, 1, prefix="a.qkv_proj", **common),
                {"q": 256, "k": 128, "v": 128},
            ),
            (
                linear.MergedColumnParallelLinear(
                    HIDDEN, [384, 384], prefix="m.gate_up_proj", **common
                ),
                {0: 384, 1: 384},
            ),
            (linear.RowParallelLinear(384, HIDDEN, prefix="m.down_proj", **common), {None: HIDDEN}),
        ):
            parts = []
            for shard, rows in shards.items():
                weight = torch.randn(rows, layer.weight.shape[1]) * torch.rand(rows, 1)
                parts.append(ours.quantized(weight.bfloat16()))
                for name, tensor in zip(("weight", "weight_scale_inv"), parts[-1], strict=True):
                    held = getattr(layer, name)
                    held.weight_loader(held, tensor, *([] if shard is None else [shard]))
            for at, name in enumerate(("weight", "weight_scale_inv")):
                held, whole = getattr(layer, name).data, torch.cat([part[at] for part in parts])
                same = (held.dtype, held.shape) == (whole.dtype, whole.shape) and torch.equal(
                    held.contiguous().view(torch.uint8), whole.view(torch.uint8)
                )
                print(type(layer).__name__, name, same)


if __name__ == "__main__":
    main(*sys.argv[1:])
