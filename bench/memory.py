"""The memory that `asyncrl check` predicts of a trainer, against what a trainer takes: a pass and a
step of a model with real weights, of 107 M parameters unless said otherwise (`--layers`), on a CPU,
each in a process of its own.

`live` is what torch's tensors have at most, counted as the prediction counts, but of tensors with
numbers; `resident` is the largest that the system gave the process (VmHWM) less what it had before
there was a model, which kernels' own memory and the allocator's rest are part of. Ratios are of the
prediction to each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PASSES = ("packed", "padded")
CASES = [
    ("packed", "float32", False),
    ("packed", "float32", True),
    ("packed", "bfloat16", False),
    ("packed", "bfloat16", True),
    ("padded", "float32", False),
]


def resident(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def one(layers: int, passes: str, dtype: str, again: bool, longest: int, what: str) -> None:
    """Print the bytes of one case as JSON."""
    import torch
    from transformers import Qwen3Config

    from asyncrl.config import load
    from asyncrl.training.forward import make_logits_in_chunks, may_share, use_passes
    from asyncrl.training.memory import peak_of, predict, worst_batches
    from asyncrl.training.models import empty_model
    from asyncrl.training.recomputation import recompute

    with tempfile.TemporaryDirectory() as folder:
        Qwen3Config(
            vocab_size=32_000,
            hidden_size=768,
            intermediate_size=2304,
            num_hidden_layers=layers,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
            tie_word_embeddings=True,
            use_sliding_window=passes == "padded",
            sliding_window=longest if passes == "padded" else None,
            max_window_layers=0,
            architectures=["Qwen3ForCausalLM"],
        ).save_pretrained(folder)
        sets = {
            "model.path": folder,
            "model.dtype": dtype,
            "engine.context_tokens": longest,
            "rollout.max_new_tokens": longest * 3 // 4,
            "train.micro_tokens": 2 * longest,
            "train.recompute_activations": str(again).lower(),
        }
        config = load(None, [f"{key}={value}" for key, value in sets.items()], {})
        if what == "predict":
            print(json.dumps({"predicted": predict(config).total}))
            return
        before = resident("VmRSS")
        model = empty_model(folder, getattr(torch, dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    if not may_share(model):
        use_passes(model, "padded")
    if again:
        recompute(model)
    make_logits_in_chunks(model)
    batches = worst_batches(config, 32_000, shared=may_share(model))
    live = peak_of(model, batches, config).total
    print(json.dumps({"live": live, "resident": resident("VmHWM") - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--longest", type=int, default=1024, help="tokens of the longest sample")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        passes, dtype, again, what = args.one
        one(args.layers, passes, dtype, again == "True", args.longest, what)
        return
    print(f"{'case':32} {'predicted':>10} {'live':>10} {'ratio':>6} {'resident':>10} {'ratio':>6}")
    for case in CASES:
        found: dict[str, int] = {}
        for what in ("predict", "measure"):
            command = [sys.executable, __file__, "--layers", str(args.layers)]
            command += ["--longest", str(args.longest), "--one", *map(str, case), what]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            found |= json.loads(ran.stdout.splitlines()[-1])
        mib = {name: value / 2**20 for name, value in found.items()}
        name = f"{case[0]} {case[1]}{' recomputed' if case[2] else ''}"
        print(
            f"{name:32} {mib['predicted']:10.0f} {mib['live']:10.0f} "
            f"{found['predicted'] / found['live']:6.3f} {mib['resident']:10.0f} "
            f"{found['predicted'] / found['resident']:6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
