"""Real runs whose rollout actors are on machines that join: here all of them are this one."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from train_support import (
    actors,
    command,
    end,
    joins,
    kill,
    processes,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.journal import fold
from asyncrl.launch.cluster.agent import NOTICE_S
from asyncrl.runtime.run_dir import JOIN_TOKEN, JOURNAL, SUMMARY

JOINED = {
    "cluster__kind": "agents",
    "rollout__actors": 2,
    "train__steps": 10_000,
    "train__checkpoint_every": 2,
}

NOTHING_EVALUATED = {"task__eval_size": 0, "train__eval_every": 0}


LOST = "Machine one is lost, with 2 actors"
LEAVES = "Machine one leaves: the work of its 2 actors continues elsewhere."


def goes_on_with_another(
    run: Path, launcher: subprocess.Popen[str], argv: list[str], folder: Path, gone: str = LOST
) -> None:
    """A run that lost machine `one`, or had it leave, goes on with the one that `argv` has join,
    and ends well; it said that the first was `gone`."""
    before = steps_done(run)
    with started(argv) as other:
        actors(folder, "rollout-0", "rollout-1")
        wait_for("more steps", lambda: steps_done(run) >= before + 2)
        launcher.send_signal(signal.SIGTERM)
        code, shown, said = end(launcher)
        ended, words, _ = end(other)
    assert code == 0, shown + said
    assert ended == 0 and "The run is over." in words
    assert gone in shown
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"rollout": 2}
    assert not processes(run) and not processes(folder) and not (run / JOIN_TOKEN).exists()


@pytest.mark.explore
def test_a_machine_that_is_killed_costs_its_leases_and_its_actors_start_on_another(
    model: Path, tmp_path: Path
) -> None:
    run, one, two = tmp_path / "run", tmp_path / "one", tmp_path / "two"
    token = run / JOIN_TOKEN
    with started(command(model, run, **JOINED)) as launcher:
        wait_for("join token", token.exists)
        assert token.stat().st_mode & 0o777 == 0o600
        with started(joins(token, "one", one)) as first:
            wait_for("steps", lambda: steps_done(run) >= 2)
            actors(run, "coordinator-0", "trainer-0", "reward-0")
            actors(one, "rollout-0", "rollout-1")
            kill(first.pid)
            wait_for("the end of what it started", lambda: not processes(one))
        goes_on_with_another(run, launcher, joins(token, "two", two), two)


@pytest.mark.explore
def test_a_machine_that_is_told_to_leave_gives_back_what_its_actors_hold(
    model: Path, tmp_path: Path
) -> None:
    """Nothing is evaluated: an evaluation whose version no engine has any more is given up, and its
    tokens that come after are late."""
    run, one, two = tmp_path / "run", tmp_path / "one", tmp_path / "two"
    token = run / JOIN_TOKEN
    with started(command(model, run, **JOINED, **NOTHING_EVALUATED)) as launcher:
        wait_for("join token", token.exists)
        with started(joins(token, "one", one)) as first:
            wait_for("steps", lambda: steps_done(run) >= 2)
            actors(one, "rollout-0", "rollout-1")
            began = time.monotonic()
            first.send_signal(signal.SIGTERM)
            code, shown, said = end(first)
        assert code == 128 + signal.SIGTERM and "its 2 actors return their work" in shown
        assert time.monotonic() - began < NOTICE_S, "it waited for its actors, and no longer"
        assert not processes(one) and not said
        goes_on_with_another(run, launcher, joins(token, "two", two), two, LEAVES)
    assert "late" not in fold(run / JOURNAL).ledger.tokens.discarded


@pytest.mark.explore
def test_a_launcher_that_is_started_again_has_its_machine_back(model: Path, tmp_path: Path) -> None:
    run, one = tmp_path / "run", tmp_path / "one"
    token = run / JOIN_TOKEN
    argv = command(model, run, **JOINED)
    with started(argv) as launcher:
        wait_for("join token", token.exists)
        with started(joins(token, "one", one)) as agent:
            wait_for("steps", lambda: steps_done(run) >= 2)
            kill(launcher.pid)
            wait_for("the end of all actors", lambda: not processes(one) and not processes(run))
            before = steps_done(run)
            with started([*argv, "--resume", str(run)]) as again:
                wait_for("more steps", lambda: steps_done(run) >= before + 2)
                actors(one, "rollout-0", "rollout-1")
                again.send_signal(signal.SIGTERM)
                code, shown, said = end(again)
            ended, words, _ = end(agent)
    assert code == 0, shown + said
    assert ended == 0 and "This machine tries to join again" in words
    assert summary.read(run / SUMMARY).balances()
    assert not processes(run) and not processes(one) and not token.exists()


@pytest.mark.explore
def test_an_agent_and_its_actors_end_with_their_launcher(model: Path, tmp_path: Path) -> None:
    run, one = tmp_path / "run", tmp_path / "one"
    with started(command(model, run, **JOINED)) as launcher:
        wait_for("join token", (run / JOIN_TOKEN).exists)
        with started([*joins(run / JOIN_TOKEN, "one", one), "--patience", "3"]) as agent:
            wait_for("actors there", lambda: len(processes(one)) == 2)
            kill(launcher.pid)
            code, _, said = end(agent)
    assert code == 1 and "this machine's actors are ended" in said
    assert not processes(one)


def test_a_run_that_too_few_machines_join_does_not_begin(model: Path, tmp_path: Path) -> None:
    done = train(command(model, tmp_path / "run", cluster__join_s=0.5, **JOINED))
    assert done.returncode == 2
    assert "0 of 1 machines (cluster.agents) joined within 0.5 s" in done.stderr
    assert not (tmp_path / "run" / "journal.sqlite").exists()


def test_a_token_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    token = tmp_path / "join.token"
    token.write_text("{}")
    token.chmod(0o600)
    done = train(joins(token, "one", tmp_path / "one"))
    assert done.returncode == 2 and "is not a join token" in done.stderr
    token.chmod(0o644)
    done = train(joins(token, "one", tmp_path / "one"))
    assert done.returncode == 2 and "others may open" in done.stderr
