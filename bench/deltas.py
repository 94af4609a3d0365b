"""Publications that send what changed (`publication.full_every`) against those that send all, of
the same weights to the same engine process, by turns, over gloo.

A model of Qwen3's kind with bfloat16 weights and float32 masters is trained by AdamW to predict
texts that follow a rule, and every step is published twice. Its learning rate is one at which
models of billions of weights are trained by reinforcement (`--rates`), because that is what the
share of changed weights follows from: a bfloat16 weight of 0.02 moves by 1.2e-4 or not at all.

    python bench/deltas.py [--steps 50] [--rates 1e-6 1e-5 1e-4] [--layers 4]

Each line: the median and the largest share of bytes that a delta had, the median of the delta's
seconds over the whole publication's, from the first byte packed to the engine's last checksum, and
the median seconds of both. After each publication the engine's checksums, of all bytes, must be
those of the trainer; at the end its bytes are compared with the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
import trio
from torch import Tensor

from asyncrl.training.master_weights import MasterWeights
from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.buckets import Plan

HOST = "127.0.0.1"
DEADLINE_S = 120.0
BUCKET_BYTES = 32 * 2**20
NEVER = 10**6
WAYS = {"whole": 1, "delta": NEVER}
"""`full_every` of each way."""


def digest(weights: dict[str, Tensor]) -> str:
    """Digest of all bytes, in the weights' order."""
    made = hashlib.blake2b()
    for weight in weights.values():
        made.update(weight.contiguous().view(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


async def engine() -> None:
    """The engine's process: a line is a publication to receive, and is answered by a line."""
    torch.set_num_threads(1)
    async with AsyncExitStack() as stack:
        receivers = {
            way: await stack.enter_async_context(GroupReceiver.open(full_every=every))
            for way, every in WAYS.items()
        }
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            receiver, plan = receivers[order["way"]], msgspec.convert(order["plan"], Plan)
            staged = await receiver.receive(order["store"], order["epoch"], 1, 2, plan, DEADLINE_S)
            at = time.monotonic()
            found = digest(staged.weights) if order["digest"] else ""
            print(
                json.dumps({"checksums": staged.checksums, "at": at, "digest": found}), flush=True
            )


def tiny_qwen(layers: int) -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model: torch.nn.Module = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=8_000,
            hidden_size=768,
            intermediate_size=2304,
            num_hidden_layers=layers,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
            tie_word_embeddings=True,
        )
    )
    return model.to(torch.bfloat16)


def texts(step: int) -> Tensor:
    """Eight texts of 64 tokens, each of which adds a number of the text's own."""
    numbers = torch.Generator().manual_seed(step)
    first = torch.randint(0, 8_000, (8, 1), generator=numbers)
    more = torch.randint(1, 50, (8, 1), generator=numbers)
    return (first + more * torch.arange(64)) % 8_000


async def main(steps: int, rates: list[float], layers: int) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        senders = {
            way: await stack.enter_async_context(
                GroupSender.open(HOST, folder / way, full_every=every)
            )
            for way, every in WAYS.items()
        }
        with subprocess.Popen(  # noqa: ASYNC220 nothing else runs here
            [sys.executable, __file__, "--engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            for epoch, rate in enumerate(rates, 1):
                torch.manual_seed(0)
                model = tiny_qwen(layers)
                weights = dict(model.named_parameters())
                plan = Plan.of(weights, BUCKET_BYTES)
                masters = MasterWeights(model)
                optimizer = torch.optim.AdamW(
                    [master for _, master in masters.named()], lr=rate, weight_decay=0.0
                )
                took: dict[str, list[float]] = {way: [] for way in WAYS}
                shares: list[float] = []
                for step in range(steps + 1):  # the first is whole for both, and not counted
                    if step:
                        ids = texts(step)
                        model(input_ids=ids, labels=ids).loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        masters.round()
                    for way in sorted(WAYS, reverse=step % 2 == 1):
                        order = {
                            "way": way,
                            "store": senders[way].store,
                            "epoch": epoch,
                            "plan": msgspec.to_builtins(plan),
                            "digest": step == steps,
                        }
                        process.stdin.write(json.dumps(order) + "\n")
                        process.stdin.flush()
                        detached = {name: weight.detach() for name, weight in weights.items()}
                        start = time.monotonic()
                        sent = await senders[way].send(epoch, 2, plan, detached.items(), DEADLINE_S)
                        answer: dict[str, Any] = json.loads(process.stdout.readline())
                        assert answer["checksums"] == sent.checksums
                        if step:
                            took[way].append(answer["at"] - start)
                            if way == "delta":
                                shares.append(sent.sent_bytes / plan.total_bytes)
                        if step == steps:
                            assert answer["digest"] == digest(detached), way
                ratio = median(
                    ours / whole for ours, whole in zip(took["delta"], took["whole"], strict=True)
                )
                print(
                    f"{plan.total_bytes / 1e6:.0f} MB, learning rate {rate:g}, {steps} steps: "
                    f"bytes {median(shares):.3f}, at most {max(shares):.3f}; seconds "
                    f"{ratio:.2f} ({median(took['delta']):.3f} over {median(took['whole']):.3f}); "
                    f"equal to the bit",
                    flush=True,
                )
            process.stdin.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.engine:
        trio.run(engine)
    else:
        trio.run(main, args.steps, args.rates, args.layers)
