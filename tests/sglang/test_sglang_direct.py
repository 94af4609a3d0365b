"""Weights of a mixture of experts straight from the trainer into real servers, which outlive it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from served_families import FAMILIES, KINDS, built
from train_support import (
    command,
    end,
    processes,
    processes_with,
    resume,
    started,
    steps_done,
    wait_for,
)

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.explain import summary
from asyncrl.runtime.run_dir import INITIAL, METRICS, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

STEPS = 2
GUARD = "asyncrl.engines.servers.guarded_command"


@pytest.mark.timeout(1200)
def test_two_servers_are_sent_each_version_by_the_trainer_and_outlive_it(
    sglang_launch: tuple[str, ...], tmp_path: Path
) -> None:
    """Checksums of the servers' own tensors, each expert's too, and the canary are looked at each
    time: one wrong weight ends an actor. The next trainer, and the next launcher, find the servers
    that there are. These return the experts of tokens, with which the trainer computes."""
    run, model = tmp_path / "run", tmp_path / "m"
    built(FAMILIES["Qwen3-MoE"], KINDS["sglang"]).save_pretrained(model)
    write_tokenizer(model)
    argv = command(
        model,
        run,
        engine__kind="sglang",
        engine__sglang__launch=[*sglang_launch],
        engine__context_tokens=128,
        publication__path="direct",
        publication__bucket_bytes=1 << 20,
        rollout__actors=2,
        train__steps=10_000,
        train__router_replay=True,
    )

    def wait_for_steps(who: str) -> None:
        seen = steps_done(run)
        wait_for(f"steps {who}", lambda: steps_done(run) >= seen + STEPS)

    def guards() -> list[int]:
        return processes_with(str(run / INITIAL), GUARD)

    with started(argv) as launcher:
        wait_for("steps", lambda: steps_done(run) >= STEPS, 600)
        both = wait_for("both servers", lambda: (found := guards())[1:] and found)
        wait_for("both engines", lambda: publishes_to(run) == 2, 600)
        os.kill(processes(run)["trainer-0"], signal.SIGKILL)
        wait_for_steps("of another trainer")
        assert guards() == both
        launcher.kill()
        launcher.wait()
    with started(resume(run)) as launcher:
        wait_for_steps("of another launcher")
        assert guards() == both
        launcher.send_signal(signal.SIGTERM)
        code, shown, said = end(launcher)
    assert code == 0, shown + said
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.publication.count > 0
    assert "is started again" not in shown and not guards()
    said_by_actors = "".join(log.read_text() for log in (run / "logs").glob("*.log"))
    assert "no known layout" not in said_by_actors
    points = map(json.loads, (run / METRICS).read_text().splitlines())
    steps = [point["metrics"] for point in points if point["kind"] == "step"]
    replayed = [step["router_replayed"] for step in steps]
    assert sum(replayed) / len(replayed) > 0.5, "the rest was taken back by a version"
    assert max(step["router_flips"] for step in steps) < 0.2, "the experts are of these tokens"


def publishes_to(run: Path) -> int:
    """The number of rollout actors that have come."""
    log = (run / "logs" / "coordinator-0.log").read_text()
    return sum(f"rollout-{index} is here" in log for index in range(2))
