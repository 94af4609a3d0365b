"""Seconds from `asyncrl train` to the first sampled token in the journal, of a run with eight
actors (a coordinator, a trainer, four rollout and two reward actors) whose rollout actors are
started by

    local    the launcher
    agents   two machines that join as soon as there is a token, both this one
    ray      two nodes of a Ray that runs already, both this machine

in turn, with a tiny model of random weights. A rollout actor of a machine that joins is forked by
its agent, which has to import torch first; so does the launcher's fork server. The last column is
what it takes longer than `local`, in the mean of the same rounds.

    python bench/first_token.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kill_matrix import Matrix, tiny

from asyncrl.experience import events as e
from asyncrl.runtime.run_dir import JOIN_TOKEN

NODES = 2
EIGHT: dict[str, object] = {"rollout.actors": 4, "reward.actors": 2}
STORE = 80 * 2**20
"""Bytes of a node's object store: what Ray needs at least."""


@contextmanager
def ray_nodes() -> Iterator[str]:
    """The address of a Ray with a head without cores, and two nodes of two."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=STORE)
        for _ in range(NODES):
            cluster.add_node(num_cpus=2, object_store_memory=STORE)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def first_token(kind: str, model: Path, folder: Path, ray: str) -> float:
    """Start a run, and end it at its first token; returns seconds."""
    more = EIGHT | {"cluster.kind": f'"{kind}"', "cluster.ray_address": f'"{ray}"'}
    more |= {"cluster.agents": NODES} if kind != "local" else {}
    matrix = Matrix(folder / "run", model, 0, more)
    with ExitStack() as stack:
        stack.callback(matrix.wait, "end of the actors", lambda: not matrix.actors())
        stack.callback(matrix.close)
        began = time.monotonic()
        matrix.start()
        if kind == "agents":
            token = folder / "run" / JOIN_TOKEN
            matrix.wait("token to join with", token.exists)
            for number in range(NODES):
                stack.enter_context(machine(token, number, folder))
        found = matrix.wait("token", lambda: any(map(_token, matrix.follower.events)))
    return found - began


@contextmanager
def machine(token: Path, number: int, folder: Path) -> Iterator[None]:
    """An agent, for the length of the block."""
    argv = [sys.executable, "-m", "asyncrl.cli", "agent", "--join", str(token)]
    argv += ["--name", f"machine-{number}", "--dir", str(folder / f"machine-{number}")]
    with (folder / f"machine-{number}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _token(event: e.AnyEvent) -> bool:
    return isinstance(event, e.Extended)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="first-token-") as place, ray_nodes() as ray:
        model = tiny(Path(place) / "model")
        for number in range(args.rounds):
            for kind in ("local", "agents", "ray"):
                folder = Path(place) / f"{kind}-{number}"
                folder.mkdir()
                seconds[kind].append(first_token(kind, model, folder, ray))
                print(f"{kind:<8}{seconds[kind][-1]:>8.1f} s", flush=True)
    print(f"\n{'':<8}{'median':>8}{'worst':>8}{'later':>8}")
    for kind, found in seconds.items():
        later = statistics.mean(a - b for a, b in zip(found, seconds["local"], strict=True))
        print(f"{kind:<8}{statistics.median(found):>8.1f}{max(found):>8.1f}{later:>8.1f}")


if __name__ == "__main__":
    main()
