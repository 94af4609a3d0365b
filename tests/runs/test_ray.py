"""Real runs whose machines are nodes of a real Ray, all on this machine: `cluster.kind = "ray"`."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from closed_port import closed_port
from train_support import (
    actors,
    command,
    end,
    processes,
    resume,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.runtime.processes.machine import gpus_here
from asyncrl.runtime.run_dir import LOCK, SUMMARY

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed"),
]

BY_RAY = {
    "cluster__kind": "ray",
    "cluster__agents": 2,
    "rollout__actors": 2,
    "train__checkpoint_every": 2,
}
STORE = 80 * 2**20  # what Ray needs at least
BEGUN_S = 600.0
"""Seconds to the first steps: two nodes of Ray and two agents start on the cores of other tests."""


@pytest.fixture
def ray() -> Iterator[Any]:
    """A head without cores, so that agents are on the nodes that a test adds."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=STORE)
    except (OSError, RuntimeError, AssertionError) as error:  # a sandbox may keep things from it
        pytest.skip(f"Ray does not start on this machine: {error}")
    yield cluster
    cluster.shutdown()


def node(ray: Any, gpus: int = 0) -> Any:
    """A node that says that it has a core, and so many GPUs."""
    return ray.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=STORE)


@pytest.fixture
def ray_on_gpus() -> Iterator[str]:
    """The address of a head that says it has three GPUs."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster()
    try:
        cluster.add_node(num_cpus=1, num_gpus=3, include_dashboard=False, object_store_memory=STORE)
    except (OSError, RuntimeError, AssertionError) as error:
        pytest.skip(f"Ray does not start on this machine: {error}")
    yield cluster.address
    cluster.shutdown()


def agents() -> set[int]:
    """The agents that Ray has started, by their process."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    words = [line.split() for line in listed.stdout.splitlines()]
    return {int(each[0]) for each in words if "asyncrl.launch.cluster.ray_agent" in each}


@pytest.mark.explore
def test_a_run_begins_on_two_nodes_and_ends_well(ray: Any, model: Path, tmp_path: Path) -> None:
    """Their agents join over TLS, as any machine does: one has the engines, and one a rank. Where
    there is one node, nothing begins."""
    run, _ = tmp_path / "run", node(ray)
    too_few = {"cluster__ray_address": ray.address, "cluster__join_s": 6.0}
    done = train(command(model, run, **too_few, **BY_RAY))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Ray has no 2 nodes with 1 free cores each" in done.stderr
    assert "it has 2, with 0, 1 cores" in done.stderr and "Traceback" not in done.stderr
    assert not (run / "journal.sqlite").exists() and (run / LOCK).exists()

    run, _ = tmp_path / "other", node(ray)
    engines = {"cluster__agents": 1, "rollout__actors": 1}
    ranks = {"cluster__trainer_agents": 1, "train__ranks": 2}
    where = BY_RAY | {"cluster__ray_address": ray.address} | engines | ranks
    with started(command(model, run, train__steps=4, **where)) as launcher:
        begun = lambda: steps_done(run) >= 1 or launcher.poll() is not None  # noqa: E731
        wait_for("a step", begun, BEGUN_S)
        code, shown, said = end(launcher)
    assert code == 0, shown + said
    assert shown.count(" takes part, with 1 cores.") == 1
    assert shown.count(" takes part, with 1 cores, for the role trainer.") == 1
    told = summary.read(run / SUMMARY)
    assert told.ok and told.balances() and not told.restarts
    wait_for("nothing that is left", lambda: not agents() and not processes(run))


@pytest.mark.explore
def test_a_node_is_removed_and_another_added(ray: Any, model: Path, tmp_path: Path) -> None:
    """It ends by a signal; the end of the launcher of its next life is that of all that Ray has
    started."""
    run, nodes = tmp_path / "run", [node(ray), node(ray)]
    argv = command(model, run, train__steps=10_000, cluster__ray_address=ray.address, **BY_RAY)
    with started(argv) as launcher:
        wait_for("steps", lambda: steps_done(run) >= 2, BEGUN_S)
        wait_for("both agents", lambda: len(agents()) == 2)
        actors(run, "coordinator-0", "trainer-0", "reward-0")
        ray.remove_node(nodes[0])
        wait_for("its agent's end", lambda: len(agents()) == 1)
        before = steps_done(run)
        wait_for("steps by the other one", lambda: steps_done(run) >= before + 4)
        node(ray)
        wait_for("an agent on the new one", lambda: len(agents()) == 2)
        launcher.send_signal(signal.SIGTERM)
        code, shown, said = end(launcher)
    assert code == 0, shown + said
    assert shown.count(" takes part, with 1 cores.") >= 2
    assert "is lost, with 1 actors" in shown or "the work of its 1 actors continues" in shown
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"rollout": 1}
    wait_for("nothing that is left", lambda: not agents() and not processes(run))

    before = steps_done(run)
    with started(resume(run)) as launcher:
        wait_for("steps of the next life", lambda: steps_done(run) > before, BEGUN_S)
        launcher.kill()
        launcher.wait()
    wait_for("nothing that is left", lambda: not agents() and not processes(run))


ON_GPUS = {
    "engine__kind": "sglang",
    "engine__sglang__launch": [sys.executable],
    "engine__sglang__device": "cuda",
    "engine__sglang__tensor_parallel": 2,
}


@pytest.mark.explore
def test_gpus_are_asked_of_ray_and_looked_for_where_it_says_they_are(
    ray: Any, model: Path, tmp_path: Path
) -> None:
    run, _ = tmp_path / "run", [node(ray, gpus=2), node(ray, gpus=1)]
    where = {"cluster__ray_address": ray.address, "cluster__join_s": 6.0}
    done = train(command(model, run, **where, **BY_RAY, **ON_GPUS))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Ray has no 2 nodes with 1 free cores and 2 free GPUs each" in done.stderr
    assert "it has 3, with 0, 1, 1 cores and 0, 1, 2 GPUs" in done.stderr
    if gpus_here():
        pytest.skip("this machine has GPUs, which Ray would be right about")
    node(ray, gpus=2)
    settings = where | {"cluster__join_s": 280.0} | BY_RAY | ON_GPUS
    done = train(command(model, tmp_path / "other", **settings))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "takes no part: it has no GPU that it may use, and a rollout actor" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "other/journal.sqlite").exists()
    wait_for("nothing that is left", lambda: not agents() and not processes(tmp_path / "other"))


HOLD = """
import sys, ray
from asyncrl.launch.cluster.ray_driver import hold_gpus
ray.init(address=sys.argv[1], log_to_driver=False)
here = ray.util.get_node_ip_address()
held = hold_gpus(int(sys.argv[2]), here, float(sys.argv[4]))
class Named:
    def names(self): return ray.get_gpu_ids()
others = [ray.remote(num_cpus=0, num_gpus=1)(Named).remote() for _ in range(int(sys.argv[3]))]
print(sorted(name for other in others for name in ray.get(other.names.remote())))
"""


@pytest.mark.explore
def test_the_trainers_gpus_are_nobody_elses(ray_on_gpus: str) -> None:
    def held(
        mine: int, others: int, within_s: float = BEGUN_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", HOLD, ray_on_gpus, str(mine), str(others), str(within_s)]
        return train(argv, **environment)

    first = held(1, 2)
    assert first.stdout.strip() == "[1, 2]", first.stderr
    assert held(2, 1, CUDA_VISIBLE_DEVICES="0,1,2").stdout.strip() == "[2]"
    assert held(0, 3).stdout.strip() == "[0, 1, 2]"
    moved = held(1, 0, CUDA_VISIBLE_DEVICES="2").stderr
    assert "start `asyncrl train` with CUDA_VISIBLE_DEVICES=0." in moved
    assert "Ray has not given the 4 GPUs that the trainer needs" in held(4, 0, within_s=6.0).stderr


@pytest.mark.explore
def test_where_no_ray_answers_nothing_begins(model: Path, tmp_path: Path) -> None:
    run, nowhere = tmp_path / "run", f"127.0.0.1:{closed_port()}"
    done = train(command(model, run, cluster__ray_address=nowhere, **BY_RAY))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"Ray does not answer at '{nowhere}'" in done.stderr and "Traceback" not in done.stderr
    assert not (run / "journal.sqlite").exists()
