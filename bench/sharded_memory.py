"""The memory of one rank of several that train one model (FSDP2): what torch's own `FSDPMemTracker`
counts of our packing, passes and sharding, against what `asyncrl check` predicts.

Nothing is computed: tensors have shapes and no numbers, and collectives are those of torch's fake
process group, so that a processor is enough for 32 ranks of a model of 32 billion parameters. It
takes seconds to a minute a case. A rank forwards and backwards one rollout twice, with gradients
there the second time, as in a step of several passes.

    tracked     the most of the second pass: shards, their gradients, and what the pass has
    predicted   the same of `asyncrl check`: weights, gradients, activations and logits
    in all      what `asyncrl check` says of a rank: AdamW's moments besides

The optimizer's moments are left out of what is tracked: they are 8 bytes a parameter over the
ranks, and the tracker's own figure of them is not that (`--optimizer` shows it).

    python bench/sharded_memory.py [--only 8b-4]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import NamedTuple

GIB = 2**30


class Shape(NamedTuple):
    """Sizes of one of Qwen3's models, as its config.json has them."""

    hidden: int
    between: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int = 151_936
    head: int = 128
    tied: bool = False


SHAPES = {
    "8b": Shape(4096, 12_288, 36, 32, 8),
    "32b": Shape(5120, 25_600, 64, 64, 8),
    "tiny": Shape(64, 128, 3, 4, 2, vocabulary=1000, head=16),
}


class Case(NamedTuple):
    """A model's shape, ranks, tokens of the prompt and of the response, and how a pass is made."""

    shape: str
    ranks: int
    prompt: int
    response: int
    recompute: bool = True
    chunks: bool = True

    @property
    def name(self) -> str:
        how = ("recomputed" if self.recompute else "kept") + ("" if self.chunks else ", whole")
        return f"{self.shape}-{self.ranks} {self.prompt}+{self.response} {how}"


CASES = [
    Case("8b", 4, 512, 8000, recompute=False, chunks=False),
    Case("8b", 4, 512, 8000, recompute=True, chunks=False),
    Case("8b", 4, 512, 8000),
    Case("8b", 8, 512, 32_256),
    Case("32b", 16, 512, 32_256),
    Case("32b", 32, 512, 32_256),
]


def write_model(shape: Shape, folder: str) -> None:
    """Write the config.json of a model of this shape."""
    from transformers import Qwen3Config

    Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.between,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=40_960,
        architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(folder)


def tracked(case: Case, config: object, optimizer: bool) -> dict[str, int]:
    """Bytes of a rank by what they are, as FSDPMemTracker has them at its peak."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from asyncrl.training.forward import log_probabilities, make_logits_in_chunks
    from asyncrl.training.memory import worst_batches
    from asyncrl.training.models import empty_model
    from asyncrl.training.optimizer import adamw
    from asyncrl.training.ranks.rank_group import shard
    from asyncrl.training.recomputation import recompute

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.ranks)
    mesh = DeviceMesh("cpu", list(range(case.ranks)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = empty_model(config.model.path, torch.bfloat16)
        if case.recompute:
            recompute(model)
        if case.chunks:
            make_logits_in_chunks(model)
        shard(model, mesh)
        adam = adamw(list(model.parameters()), config.train)
        (packed,) = worst_batches(config, SHAPES[case.shape].vocabulary, shared=True)
        tracker = FSDPMemTracker(model, adam if optimizer else None)
        found = dict[str, int]()
        for _ in range(2):
            with tracker:
                log_probabilities(model, packed, 1.0).sum().backward()
                if optimizer:
                    adam.step()
            (parts,) = tracker.get_tracker_snapshot("peak").values()
            found = {str(name): size for name, size in parts.items() if size}
            tracker.reset_mod_stats()
    dist.destroy_process_group()
    return found


def one(case: Case, optimizer: bool) -> None:
    """Print the bytes of a case as JSON."""
    import msgspec

    from asyncrl.config import load
    from asyncrl.training import forward
    from asyncrl.training.memory import predict

    if not case.chunks:
        forward.LOGIT_BYTES = 2**62
    with tempfile.TemporaryDirectory() as folder:
        write_model(SHAPES[case.shape], folder)
        longest = case.prompt + case.response
        config = load(
            None,
            [
                f"model.path={folder}",
                "model.dtype=bfloat16",
                f"engine.context_tokens={longest}",
                f"rollout.max_new_tokens={case.response}",
                f"train.micro_tokens={longest}",
                f"train.recompute_activations={str(case.recompute).lower()}",
                f"train.ranks={case.ranks}",
            ],
            {},
        )
        predicted = predict(config)
        print(
            json.dumps(
                {
                    "tracked": tracked(case, config, optimizer),
                    "predicted": msgspec.structs.asdict(predicted) | {"total": predicted.total},
                }
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--optimizer", action="store_true", help="track AdamW's step, too")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        one(CASES[args.one], args.optimizer)
        return
    print(f"{'GiB a rank':36} {'tracked':>8} {'predicted':>10} {'ratio':>6} {'in all':>7}")
    for number, case in enumerate(CASES):
        if not case.name.startswith(args.only):
            continue
        command = [sys.executable, __file__, "--one", str(number)]
        command += ["--optimizer"] * args.optimizer
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        of_rank, parts = found["tracked"], found["predicted"]
        here = sum(parts[name] for name in ("weights", "gradients", "activations", "logits"))
        total = of_rank["Total"]
        print(
            f"{case.name:36} {total / GIB:8.1f} {here / GIB:10.1f} {here / total:6.2f} "
            f"{parts['total'] / GIB:7.1f}",
            flush=True,
        )
        print("    " + ", ".join(f"{k} {v / GIB:.2f}" for k, v in of_rank.items() if k != "Total"))


if __name__ == "__main__":
    main()
