"""An engine's side of the wire in a process of its own, for the tests: a line of JSON in, a
publication received, a line of JSON out."""

from __future__ import annotations

import json
import sys

import msgspec
import torch
import trio

from asyncrl.weightsync.broadcast import GroupReceiver
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.errors import TransferError


async def main() -> None:
    torch.set_num_threads(1)
    async with GroupReceiver.open() as receiver:
        print(json.dumps({"ready": True}), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            order = json.loads(line)
            plan = msgspec.convert(order["plan"], Plan)
            place = order["store"], order["epoch"], order["rank"], order["world"]
            try:
                if order["direct"]:
                    weights = plan.unpack(torch.zeros(plan.total_bytes, dtype=torch.uint8))
                    own = DirectWeights(plan, weights)
                    await receiver.join(*place, plan, order["s"])
                    checksums = await receiver.receive_direct(*place, own, order["s"])
                else:
                    staged = await receiver.receive(*place, plan, order["s"])
                    weights, checksums = staged.weights, staged.checksums
            except TransferError as error:
                print(json.dumps({"error": str(error)}), flush=True)
            else:
                sums = {name: float(w.double().sum()) for name, w in weights.items()}
                print(json.dumps({"checksums": checksums, "sums": sums}), flush=True)


if __name__ == "__main__":
    trio.run(main)
