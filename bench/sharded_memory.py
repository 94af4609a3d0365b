"""The memory of one rank of several that train one model (FSDP2): what torch's own `FSDPMemTracker`
counts of our packing, passes and sharding, against what `asyncrl check` predicts.

Nothing is computed: tensors have shapes and no numbers, and collectives are those of torch's fake
process group, so that a processor is enough for 32 ranks of a model of 32 billion parameters. A
case takes a minute or two. A rank forwards and backwards one rollout twice: in the first pass of a
step gradients come to be, in the second they are there.

    first       the most of the first pass, as tracked: shards, gradients, what the pass has
    tracked     the same of the second pass
    predicted   the same of `asyncrl check`: weights, gradients, activations and logits
    in all      what `asyncrl check` says of a rank: AdamW's moments besides

The optimizer is not tracked. Its moments are 8 bytes a parameter over the ranks; with `--optimizer`
the tracker's own figure is shown, which is not that.

    python bench/sharded_memory.py [--only 8b-4]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from asyncrl.config import Config

GIB = 2**30


class Shape(NamedTuple):
    """Sizes of a model of Qwen3's kind, as its config.json has them."""

    hidden: int
    between: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int = 151_936
    head: int = 128
    tied: bool = False


SHAPES = {
    "1.7b": Shape(2048, 6144, 28, 16, 8, tied=True),
    "8b": Shape(4096, 12_288, 36, 32, 8),
    "32b": Shape(5120, 25_600, 64, 64, 8),
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


@contextmanager
def fake_ranks(size: int) -> Iterator[DeviceMesh]:
    """Be the first of so many ranks, whose collectives do nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield DeviceMesh("cpu", list(range(size)))
    finally:
        dist.destroy_process_group()


def tracked(case: Case, config: Config, optimizer: bool) -> list[dict[str, int]]:
    """Bytes of a rank by what they are, as FSDPMemTracker has them at the peak of each pass."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    from asyncrl.training.forward import log_probabilities, make_logits_in_chunks
    from asyncrl.training.memory import worst_batches
    from asyncrl.training.models import empty_model
    from asyncrl.training.optimizer import optimizer_of
    from asyncrl.training.ranks.rank_group import shard
    from asyncrl.training.recomputation import recompute

    with fake_ranks(case.ranks) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        model = empty_model(config.model.path, torch.bfloat16)
        if case.recompute:
            recompute(model)
        if case.chunks:
            make_logits_in_chunks(model)
        shard(model, mesh)
        adam = optimizer_of(list(model.parameters()), config.train)
        (packed,) = worst_batches(config, SHAPES[case.shape].vocabulary, shared=True)
        tracker = FSDPMemTracker(model, adam if optimizer else None)
        found = list[dict[str, int]]()
        for _ in range(2):
            with tracker:
                log_probabilities(model, packed, 1.0).sum().backward()
                if optimizer:
                    adam.step()
            (parts,) = tracker.get_tracker_snapshot("peak").values()
            found.append({getattr(name, "value", name): size for name, size in parts.items()})
            tracker.reset_mod_stats()
    return found


class Compared(NamedTuple):
    """Bytes of a rank at the peaks of the first and of a later pass, by what they are; what is
    predicted of the later one, and with the optimizer."""

    tracked: list[dict[str, int]]
    predicted: int
    in_all: int

    @property
    def first(self) -> int:
        return self.tracked[0]["Total"]

    @property
    def later(self) -> int:
        return self.tracked[1]["Total"]


def compared(case: Case, optimizer: bool = False) -> Compared:
    """Track a case, and predict it."""
    from asyncrl.config import load
    from asyncrl.training import chunked_logits
    from asyncrl.training.memory import predict

    if not case.chunks:
        chunked_logits.LOGIT_BYTES = 2**62
    longest = case.prompt + case.response
    with tempfile.TemporaryDirectory() as folder:
        write_model(SHAPES[case.shape], folder)
        sets = {
            "model.path": folder,
            "model.dtype": "bfloat16",
            "engine.context_tokens": longest,
            "rollout.max_new_tokens": case.response,
            "train.micro_tokens": longest,
            "train.recompute_activations": str(case.recompute).lower(),
            "train.ranks": case.ranks,
        }
        config = load(None, [f"{key}={value}" for key, value in sets.items()], {})
        parts = predict(config)
        here = parts.weights + parts.gradients + parts.activations + parts.logits
        return Compared(tracked(case, config, optimizer), here, parts.total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--optimizer", action="store_true", help="track AdamW's step, too")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(compared(CASES[args.one], args.optimizer)))
        return
    print(f"{'GiB a rank':38}  first  tracked  predicted  ratio  in all")
    for number, case in enumerate(CASES):
        if not case.name.startswith(args.only):
            continue
        command = [sys.executable, __file__, "--one", str(number)]
        command += ["--optimizer"] * args.optimizer
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = Compared(*json.loads(ran.stdout.splitlines()[-1]))
        first, later, predicted, total = (
            size / GIB for size in (found.first, found.later, found.predicted, found.in_all)
        )
        print(
            f"{case.name:38} {first:6.1f} {later:8.1f} {predicted:10.1f} {predicted / later:6.2f} "
            f"{total:7.1f}"
        )
        parts = [f"{name} {size / GIB:.2f}" for name, size in found.tracked[1].items()]
        print("    " + ", ".join(part for part in parts if not part.endswith(" 0.00")), flush=True)


if __name__ == "__main__":
    main()
