"""Agents beside a real run: the same engine serves leases and calls, and what agents did is kept
apart from what is trained."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
from agents_run import CALLS, AgentsRun
from train_support import command, end, started

from asyncrl.observe import summary
from asyncrl.tasks.text import Tokenizer

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_an_agent_talks_to_the_policy_while_it_is_trained(talked_to: AgentsRun) -> None:
    """Its calls go on where the one before ended, over several publications; its session is one
    sequence, and in no ledger of the run."""
    assert talked_to.status == 0, talked_to.said
    found = summary.read(talked_to.run / "summary.json")
    assert found.ok and found.steps >= 5 and found.balances()
    assert talked_to.sessions.keys() == {"one", "two", "a", "b"}
    one, two = talked_to.sessions["one"], talked_to.sessions["two"]
    assert (one.end, one.reward, one.calls) == ("rewarded", 1.5, CALLS)
    assert (two.end, two.reward, two.calls) == ("drained", None, 1)
    for session in talked_to.sessions.values():
        for leaf in session.leaves:
            ids, mask = np.frombuffer(leaf.ids, np.int32), np.frombuffer(leaf.mask, np.uint8)
            behaviour = np.frombuffer(leaf.behaviour, np.float32)
            assert (
                len(ids) == len(mask) == len(behaviour)
                and sum(span.end - span.start for span in leaf.spans) == mask.sum()
            )
            assert (behaviour[mask == 1] < 0).all() and (behaviour[mask == 0] == 0).all()
        assert sum(leaf.trained for leaf in session.leaves) == session.sampled


def test_the_task_judges_what_an_agent_did(talked_to: AgentsRun) -> None:
    """In a process of its own, as it does for rollouts: by the tokens of the last reply."""
    assert talked_to.refused == "no_verdict"
    a, b = talked_to.sessions["a"], talked_to.sessions["b"]
    assert (a.prompt_index, a.reward, b.end) == (7, talked_to.reward, "drained")
    (leaf,) = a.leaves
    sampled = np.frombuffer(leaf.ids, np.int32)[np.frombuffer(leaf.mask, np.uint8) == 1].tolist()
    question = talked_to.prompt.split(" + 1 =")[0]
    answer = Tokenizer(talked_to.run / "initial").decode(sampled)
    assert talked_to.reward == pytest.approx(int(question) + 1 + len(answer) / 1000)


def test_a_port_in_use_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        argv = command(model, tmp_path / "run", gateway__port=other.getsockname()[1])
        with started(argv) as process:
            code, _, err = end(process)
    assert code == 2 and "gateway.port" in err and not (tmp_path / "run").exists()
