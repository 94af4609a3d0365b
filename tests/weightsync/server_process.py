"""The ranks of a server in a process each, for the tests: they meet as SGLang's do, through
torch.distributed's own machinery, and take flattened buckets. A line of JSON in, a line of JSON
out."""

from __future__ import annotations

import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def meet(order: dict) -> dist.ProcessGroup:
    rendezvous = dist.rendezvous(
        f"tcp://{order['host']}:{order['port']}", order["rank"], order["world"]
    )
    store, rank, world = next(rendezvous)
    name = order["name"]
    group, _ = distributed_c10d._new_process_group_helper(
        world,
        rank,
        [],
        dist.Backend("gloo"),
        dist.PrefixStore(name, store),
        group_name=name,
        timeout=distributed_c10d.default_pg_timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


def main() -> None:
    torch.set_num_threads(1)
    group: dist.ProcessGroup | None = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["what"] == "meet":
            group = meet(order)
            answer: dict = {}
        else:
            flat = torch.empty(order["bytes"], dtype=torch.uint8)
            try:
                dist.broadcast(flat, src=0, group=group)
                answer = {"digest": hashlib.sha256(flat.numpy().data).hexdigest()}
            except RuntimeError as error:
                answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
