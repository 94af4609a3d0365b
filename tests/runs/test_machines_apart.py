"""Real runs on two machines that are apart: network namespaces, with a wire between them that takes
20 ms each way, loses one packet in a hundred, and is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from apart import NEAR, apart, reason_against
from test_joined_machines import JOINED, goes_on_with_another, joins
from train_support import command, end, processes, started, steps_done, wait_for

from asyncrl.observe.run_dir import JOIN_TOKEN

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]
HERE = {"cluster__host": NEAR, "publication__host": NEAR}


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if why := reason_against():
        pytest.skip(why)


def test_a_run_learns_over_a_bad_network_and_outlives_its_cut(model: Path, tmp_path: Path) -> None:
    run, one, two = tmp_path / "run", tmp_path / "one", tmp_path / "two"
    token = run / JOIN_TOKEN
    with (
        apart() as network,
        started(network.near(command(model, run, **JOINED, **HERE))) as launcher,
    ):
        wait_for("join token", token.exists)
        with started(network.far(joins(token, "one", one))) as first:
            wait_for("steps", lambda: steps_done(run) >= 4)
            assert set(processes(one)) == {"rollout-0", "rollout-1"}
            assert network.wire.lost > 10 and network.wire.carried > 20 * network.wire.lost
            network.wire.cut = True
            code, _, said = end(first)
            assert code == 1 and "this machine's actors are ended" in said
            assert not processes(one)
        network.wire.cut = False
        goes_on_with_another(run, launcher, network.far(joins(token, "two", two)), two)
