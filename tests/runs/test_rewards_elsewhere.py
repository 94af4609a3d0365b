"""A real run whose reward actors are on machines that join for them: where one of these is lost,
its verdicts are asked of another one."""

from __future__ import annotations

import signal
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
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.runtime.run_dir import JOIN_TOKEN, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

SETTINGS = {
    "cluster__kind": "agents",
    "cluster__reward_agents": 1,
    "rollout__actors": 1,
    "train__steps": 10_000,
    "train__checkpoint_every": 2,
}


def test_a_machine_of_reward_actors_is_lost_and_another_judges(model: Path, tmp_path: Path) -> None:
    run, engines, one, two = (tmp_path / name for name in ("run", "engines", "one", "two"))
    token = run / JOIN_TOKEN
    with started(command(model, run, **SETTINGS)) as launcher:
        wait_for("join token", token.exists)
        with (
            started(joins(token, "engines", engines)) as decodes,
            started([*joins(token, "one", one), "--for", "reward"]) as judges,
        ):
            wait_for("steps", lambda: steps_done(run) >= 2)
            actors(run, "coordinator-0", "trainer-0")
            actors(engines, "rollout-0")
            actors(one, "reward-0")
            kill(judges.pid)
            wait_for("the end of what it started", lambda: not processes(one))
            with started([*joins(token, "two", two), "--for", "reward"]) as others:
                actors(two, "reward-0")  # steps may follow from what machine one had judged
                before = steps_done(run)
                wait_for("more steps", lambda: steps_done(run) >= before + 2)
                launcher.send_signal(signal.SIGTERM)
                code, shown, said = end(launcher)
                ends = [end(each)[0] for each in (decodes, others)]
    assert code == 0, shown + said
    assert ends == [0, 0] and "Machine one is lost, with 1 actors" in shown
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"reward": 1}
    assert not any(map(processes, (run, engines, one, two)))
