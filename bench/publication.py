"""Publication through asyncrl (pack, checksum, broadcast in buckets, checksum, unpack) against one
bare `torch.distributed` broadcast of the same bytes as a single tensor, between the same two
processes, over gloo, by turns in one run. `--sizes` in MB (default 4 and 160: 160 is a model of 41
M float32 parameters), `--repeat` pairs of which the medians are printed, `--bucket` MB a bucket.

The ratio is the bare broadcast's seconds over the publication's, from the first byte packed to the
last checksum taken by the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import trio

from asyncrl.processes.machine import free_port
from weightsync.buckets import Plan
from weightsync.collective import Receiver, Sender

HOST = "127.0.0.1"
DEADLINE_S = 120.0
LAYER = 1 << 20  # parameters of a tensor


def bare_group(port: int, rank: int) -> Any:
    store = dist.TCPStore(
        HOST, port, None, rank == 0, timedelta(seconds=DEADLINE_S), wait_for_workers=False
    )
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=HOST)]
    return gloo(store, rank, 2, options)


async def engine(store: str, bare_port: int) -> None:
    """The engine's process: a line says what comes next, an answer says when it was done."""
    torch.set_num_threads(1)
    bare = bare_group(bare_port, 1)
    target = torch.empty(0, dtype=torch.uint8)
    async with Receiver.open() as receiver:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            if order["what"] == "bare":
                if target.numel() != order["bytes"]:
                    target = torch.empty(order["bytes"], dtype=torch.uint8)
                bare.broadcast(target, 0).wait()
                answer: dict[str, Any] = {}
            else:
                plan = msgspec.convert(order["plan"], Plan)
                staged = await receiver.receive(store, order["epoch"], 1, 2, plan, DEADLINE_S)
                answer = {"checksums": staged.checksums, "verify": staged.verify_seconds}
            print(json.dumps(answer | {"at": time.monotonic()}), flush=True)


async def main(sizes: list[int], repeat: int, bucket_mb: int) -> None:
    torch.set_num_threads(1)
    bare_port = free_port()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        sender = await stack.enter_async_context(Sender.open(HOST, folder / "weights.store"))
        command = [sys.executable, __file__, "--engine", sender.store, str(bare_port)]
        with subprocess.Popen(  # noqa: ASYNC220 nothing else runs here
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            stdin, stdout = process.stdin, process.stdout

            def order(**what: Any) -> None:
                stdin.write(json.dumps(what) + "\n")
                stdin.flush()

            bare = await trio.to_thread.run_sync(bare_group, bare_port, 0)
            print(
                f"gloo on loopback, {os.cpu_count()} cores, buckets of {bucket_mb} MB, medians "
                f"of {repeat}"
            )
            print(
                "     MB |     bare MB/s | published MB/s | ratio | assemble s  verify s    wire "
                "s | engine's verify s"
            )
            for epoch, size in enumerate(sizes):
                count = max(1, size * 2**20 // (4 * LAYER))
                weights = {f"layer{i}": torch.randn(LAYER) for i in range(count)}
                plan = Plan.of(weights, bucket_mb * 2**20)
                flat = torch.cat([w.view(torch.uint8) for w in weights.values()])
                rows = []
                for turn in range(repeat + 1):  # the first touches memory and connects: not counted
                    order(what="bare", bytes=flat.numel())
                    start = time.monotonic()
                    await trio.to_thread.run_sync(lambda flat=flat: bare.broadcast(flat, 0).wait())
                    bare_s = json.loads(stdout.readline())["at"] - start
                    order(what="publish", epoch=epoch, plan=msgspec.to_builtins(plan))
                    start = time.monotonic()
                    sent = await sender.send(epoch, 2, plan, weights.items(), DEADLINE_S)
                    answer = json.loads(stdout.readline())
                    assert answer["checksums"] == sent.checksums
                    if turn:
                        rows.append(
                            (
                                bare_s,
                                answer["at"] - start,
                                sent.assemble_seconds,
                                sent.verify_seconds,
                                sent.wire_seconds,
                                answer["verify"],
                            )
                        )
                bare_s, ours_s, assemble, verify, wire, engines_verify = (
                    median(column) for column in zip(*rows, strict=True)
                )
                ratio = median(row[0] / row[1] for row in rows)
                mb = flat.numel() / 1e6
                print(
                    f"{mb:7.0f} | {mb / bare_s:13.0f} | {mb / ours_s:14.0f} | {ratio:5.2f} | "
                    f"{assemble:10.4f} {verify:9.4f} {wire:9.4f} | {engines_verify:.4f}"
                )
            stdin.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 160])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--bucket", type=int, default=32)
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        trio.run(engine, args.engine[0], int(args.engine[1]))
    else:
        trio.run(main, args.sizes, args.repeat, args.bucket)
