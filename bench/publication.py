"""Publication through asyncrl (broadcast in pieces, by shared memory as on one machine, checksums
on both sides, and the weights in their place) against one bare `torch.distributed` broadcast of the
same bytes as a single tensor, among the same processes, over gloo, by turns in one run: `staged`
beside the engine's own weights and copied into them at the end, and `direct` into them
(`publication.path`). `--sizes` in MB (default 4 and 160: 160 is a model of 41 M float32
parameters), `--receivers` engines (default 1 and 4), `--repeat` pairs of which the medians are
printed, `--bucket` MB a bucket.

The ratio is the bare broadcast's seconds over the publication's, from the first byte sent to the
last engine that has verified weights in place. An engine decodes nothing for `pause` of these
seconds: staged for the copy, direct for all of it. `held` are the bytes of its process for the
publication, beside its own weights, over those of the weights; `copied` those that it copies there.
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

from asyncrl.runtime.processes.machine import free_port
from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.direct_weights import DirectWeights

HOST = "127.0.0.1"
DEADLINE_S = 120.0
LAYER = 1 << 20  # parameters of a tensor


def bare_group(port: int, rank: int, world: int) -> Any:
    store = dist.TCPStore(
        HOST, port, None, rank == 0, timedelta(seconds=DEADLINE_S), wait_for_workers=False
    )
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=HOST)]
    return gloo(store, rank, world, options)


class Own:
    """An engine's own weights of a plan, and how a publication comes into them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.weights = plan.unpack(torch.zeros(plan.total_bytes, dtype=torch.uint8))
        self.direct = DirectWeights(plan, self.weights)

    async def staged(self, receiver: GroupReceiver, place: tuple[Any, ...]) -> dict[str, Any]:
        staged = await receiver.receive(*place, self.plan, DEADLINE_S)
        start = time.monotonic()
        for name, weight in staged.weights.items():
            self.weights[name].copy_(weight)
        pause, total = time.monotonic() - start, self.plan.total_bytes
        return {"sums": staged.checksums, "pause": pause, "held": total, "copied": total}

    async def directly(self, receiver: GroupReceiver, place: tuple[Any, ...]) -> dict[str, Any]:
        await receiver.join(*place, self.plan, DEADLINE_S)
        start = time.monotonic()
        sums = await receiver.receive_direct(*place, self.direct, DEADLINE_S)
        pause = time.monotonic() - start
        return {
            "sums": sums,
            "pause": pause,
            "held": 0,
            "copied": self.plan.total_bytes,
        }


async def engine(store: str, bare_port: int, rank: int, world: int) -> None:
    """An engine's process: a line says what comes next, an answer says when it was done."""
    torch.set_num_threads(1)
    bare = bare_group(bare_port, rank, world)
    target, own = torch.empty(0, dtype=torch.uint8), None
    async with GroupReceiver.open() as receiver:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            plan = msgspec.convert(order["plan"], Plan)
            answer: dict[str, Any] = {}
            if order["what"] == "bare":
                if target.numel() != plan.total_bytes:
                    target = torch.empty(plan.total_bytes, dtype=torch.uint8)
                bare.broadcast(target, 0).wait()
            else:
                if own is None or own.plan != plan:
                    own = Own(plan)
                receive = own.staged if order["what"] == "staged" else own.directly
                answer = await receive(receiver, (store, order["epoch"], rank, world))
            print(json.dumps(answer | {"at": time.monotonic()}), flush=True)


class Engines:
    """The processes of `count` engines."""

    def __init__(self, stack: AsyncExitStack, count: int, store: str, bare_port: int) -> None:
        command = [sys.executable, __file__, "--engine", store, str(bare_port)]
        self._processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(rank), str(count + 1)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(1, count + 1)
        ]

    def order(self, **what: Any) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(p.stdout.readline()) for p in self._processes if p.stdout is not None]

    def end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()


async def measured(
    sender: GroupSender,
    bare: Any,
    engines: Engines,
    world: int,
    plan: Plan,
    way: str,
    epoch: int,
) -> tuple[float, float, list[dict[str, Any]]]:
    """Seconds of a bare broadcast and of a publication, and the engines' answers to the second."""
    weights = {spec.name: torch.randn(LAYER) for spec in plan.specs}
    flat = torch.cat([w.view(torch.uint8) for w in weights.values()])
    said = msgspec.to_builtins(plan)
    engines.order(what="bare", plan=said)
    start = time.monotonic()
    await trio.to_thread.run_sync(lambda: bare.broadcast(flat, 0).wait())
    bare_s = max(answer["at"] for answer in engines.answers()) - start
    engines.order(what=way, epoch=epoch, plan=said)
    if way == "direct":
        await sender.join(epoch, world, plan, DEADLINE_S)
    start = time.monotonic()
    sent = await sender.send(epoch, world, plan, weights.items(), DEADLINE_S)
    answers = engines.answers()
    assert all(answer["sums"] == sent.checksums for answer in answers)
    return bare_s, max(answer["at"] for answer in answers) - start, answers


async def main(sizes: list[int], receivers: list[int], repeat: int, bucket_mb: int) -> None:
    torch.set_num_threads(1)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"gloo on loopback, {os.cpu_count()} cores (load {load}), buckets of {bucket_mb} MB, "
        f"medians of {repeat}"
    )
    print("     MB | engines | way    | bare MB/s | MB/s | ratio | pause s | held | copied")
    for count in receivers:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            sender = await stack.enter_async_context(
                GroupSender.open(HOST, folder / "weights.store")
            )
            port = free_port()
            engines = Engines(stack, count, sender.store, port)
            bare = await trio.to_thread.run_sync(bare_group, port, 0, count + 1)
            epoch = 0
            for size in sizes:
                layers = {
                    f"layer{i}": torch.empty(LAYER, device="meta")
                    for i in range(max(1, size * 2**20 // (4 * LAYER)))
                }
                plan = Plan.of(layers, bucket_mb * 2**20)
                for way in ("staged", "direct"):
                    epoch += 1
                    # the first touches memory and connects: not counted
                    await measured(sender, bare, engines, count + 1, plan, way, epoch)
                    rows = [
                        await measured(sender, bare, engines, count + 1, plan, way, epoch)
                        for _ in range(repeat)
                    ]
                    mb = plan.total_bytes / 1e6
                    bare_s, ours_s = median(r[0] for r in rows), median(r[1] for r in rows)
                    ratio = median(r[0] / r[1] for r in rows)
                    pause = median(max(a["pause"] for a in answers) for *_, answers in rows)
                    held, copied = (
                        rows[0][2][0][key] / plan.total_bytes for key in ("held", "copied")
                    )
                    print(
                        f"{mb:7.0f} | {count:7d} | {way} | {mb / bare_s:9.0f} | {mb / ours_s:4.0f} "
                        f"| {ratio:5.2f} | {pause:7.4f} | {held:4.2f} | {copied:6.2f}",
                        flush=True,
                    )
            engines.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 160])
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--bucket", type=int, default=32)
    parser.add_argument("--engine", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        trio.run(engine, args.engine[0], *map(int, args.engine[1:]))
    else:
        trio.run(main, args.sizes, args.receivers, args.repeat, args.bucket)
