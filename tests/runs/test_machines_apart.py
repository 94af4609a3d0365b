"""Real runs on two machines that are apart: network namespaces, with a wire between them that takes
20 ms each way, loses one packet in a hundred, and is cut."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from apart import NEAR, apart, reason_against
from test_joined_machines import JOINED, LOST, joins
from train_support import actors, command, end, processes, started, steps_done, wait_for

from asyncrl.explain import summary
from asyncrl.runtime.run_dir import JOIN_TOKEN, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]
HERE = {"cluster__host": NEAR, "publication__host": NEAR}


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if why := reason_against():
        pytest.skip(why)


def test_two_ranks_learn_over_a_wire_and_the_far_one_is_lost(model: Path, tmp_path: Path) -> None:
    """The near machine has the engines and rank 0. What is asked of the wire is a good one: each
    layer's weights and gradients cross it in each pass."""
    run, near, far = tmp_path / "run", tmp_path / "near", tmp_path / "far"
    token, ranks = run / JOIN_TOKEN, {"cluster__trainer_agents": 1, "train__ranks": 2}
    with (
        apart(delay_s=0.001, loss=0.0) as network,
        started(network.near(command(model, run, **JOINED, **HERE, **ranks))) as launcher,
    ):
        wait_for("join token", token.exists)
        with (
            started(network.near(joins(token, "near", near))) as engines,
            started([*network.far(joins(token, "far", far)), "--for", "trainer"]) as trains,
        ):
            wait_for("steps", lambda: steps_done(run) >= 2)
            actors(far, "trainer-1")
            wait_for("packets", lambda: network.wire.carried > 100)
            network.wire.cut = True
            wait_for("the end of its rank", lambda: not processes(far))
            before = steps_done(run)
            wait_for("steps of one rank", lambda: steps_done(run) >= before + 2)
            launcher.send_signal(signal.SIGTERM)
            code, shown, said = end(launcher)
            ended, _, _ = end(engines)
            trains.kill()
    assert code == 0, shown + said
    assert ended == 0 and "Machine far is lost, with 1 actors" in shown
    assert "The trainer continues with 1 of 2 ranks" in shown
    assert summary.read(run / SUMMARY).balances()


def test_a_run_learns_over_a_bad_network_and_who_was_cut_off_joins_again(
    model: Path, tmp_path: Path
) -> None:
    run, one = tmp_path / "run", tmp_path / "one"
    token = run / JOIN_TOKEN
    with (
        apart() as network,
        started(network.near(command(model, run, **JOINED, **HERE))) as launcher,
    ):
        wait_for("join token", token.exists)
        with started(network.far(joins(token, "one", one))) as first:
            wait_for("steps", lambda: steps_done(run) >= 4)
            actors(one, "rollout-0", "rollout-1")
            wait_for("lost packets", lambda: network.wire.lost > 10)
            assert network.wire.carried > 20 * network.wire.lost
            network.wire.cut = True
            wait_for("the end of its actors", lambda: not processes(one))
            network.wire.cut = False
            before = steps_done(run)
            actors(one, "rollout-0", "rollout-1")
            wait_for("more steps", lambda: steps_done(run) >= before + 2)
            launcher.send_signal(signal.SIGTERM)
            code, shown, said = end(launcher)
            ended, words, _ = end(first)
    assert code == 0, shown + said
    assert ended == 0 and "tries to join again" in words and "The run is over." in words
    assert LOST in shown and shown.count("Machine one takes part") == 2
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"rollout": 2}
