"""Agents beside a real run: the same engine serves leases and calls, and what agents did is kept
apart from what is trained."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import httpx2
import msgspec
import numpy as np
import openai
import pytest
from train_support import command, end, started, steps_done, tiny_model, wait_for

from asyncrl.observe import summary
from asyncrl.processes.machine import free_port
from asyncrl.sessions.finished import FinishedSession
from asyncrl.tasks.text import Tokenizer

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def ready(port: int) -> bool:
    try:
        return bool(
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200
        )
    except OSError:  # also what urllib makes of one
        return False


def test_an_agent_talks_to_the_policy_while_it_is_trained(tmp_path: Path) -> None:
    """Its calls go on where the one before ended, over several publications; its session is one
    sequence, and in no ledger of the run."""
    run, port = tmp_path / "run", free_port()
    argv = command(
        tiny_model(tmp_path / "model"),
        run,
        train__steps=100_000,
        train__eval_every=0,
        gateway__port=port,
        supervision__grace_s=60.0,
    )
    with started(argv) as process:
        wait_for("gateway", lambda: ready(port))
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/sessions/one/v1",
            api_key=(run / "gateway.key").read_text(),
            max_retries=0,
        )
        text, calls = "hello", 4
        for call in range(calls):
            wait_for("step", lambda call=call: steps_done(run) >= 2 * call)
            reply = client.completions.create(
                model="policy", prompt=text, max_tokens=4, temperature=1.0
            )
            text += reply.choices[0].text
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=client.base_url, api_key="other").completions.create(
                model="policy", prompt="x", max_tokens=1
            )
        urllib.request.urlopen(
            urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/sessions/one/reward",
                data=b'{"reward": 1.5}',
                headers={
                    "authorization": f"Bearer {client.api_key}",
                    "content-type": "application/json",
                },
            ),
            timeout=60,
        )
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/sessions/two/v1", api_key=client.api_key
        ).completions.create(
            model="policy", prompt="bye", max_tokens=2
        )  # is open when the run ends
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err
    found = summary.read(run / "summary.json")
    assert found.ok and found.steps >= 5 and found.balances()
    lines = (run / "sessions/rollout-0.jsonl").read_bytes().splitlines()
    one, two = (msgspec.json.decode(line, type=FinishedSession) for line in lines)
    assert (one.session, one.end, one.reward, one.calls) == ("one", "rewarded", 1.5, calls)
    assert (two.session, two.end, two.reward, two.calls) == ("two", "drained", None, 1)
    for session in (one, two):
        for leaf in session.leaves:
            ids, mask = np.frombuffer(leaf.ids, np.int32), np.frombuffer(leaf.mask, np.uint8)
            behaviour = np.frombuffer(leaf.behaviour, np.float32)
            assert (
                len(ids) == len(mask) == len(behaviour)
                and sum(span.end - span.start for span in leaf.spans) == mask.sum()
            )
            assert (behaviour[mask == 1] < 0).all() and (behaviour[mask == 0] == 0).all()
        assert sum(leaf.trained for leaf in session.leaves) == session.sampled


TELLING = """
def judge(answer, line):
    return int(line["answer"]) + len(answer) / 1000
"""


def test_the_task_judges_what_an_agent_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as it does for rollouts: by the tokens of the last reply."""
    run, port, file = tmp_path / "run", free_port(), tmp_path / "prompts.jsonl"
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file.write_text("".join(f'{{"prompt": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(40)))
    task = {
        "task__name": "jsonl",
        "task__path": str(file),
        "task__verifier": "telling:judge",
        "supervision__grace_s": 60.0,
    }
    argv = command(
        tiny_model(tmp_path / "model"),
        run,
        train__steps=100_000,
        train__eval_every=0,
        gateway__port=port,
        **task,
    )
    with started(argv) as process:
        wait_for("gateway", lambda: ready(port))
        headers = {"authorization": f"Bearer {(run / 'gateway.key').read_text()}"}
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60.0
        ) as client:
            prompt = client.get("/v1/prompts/7").raise_for_status().json()["prompt"]
            asked = {"model": "policy", "prompt": prompt, "max_tokens": 8}
            client.post("/sessions/a/v1/completions", json=asked).raise_for_status()
            reward = (
                client.post("/v1/sessions/a/reward", json={"item": 7})
                .raise_for_status()
                .json()["reward"]
            )
            client.post("/sessions/b/v1/completions", json=asked).raise_for_status()
            assert (
                client.post("/v1/sessions/b/reward", json={"item": 40}).json()["error"]["code"]
                == "no_verdict"
            )
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err
    a, b = (
        msgspec.json.decode(line, type=FinishedSession)
        for line in (run / "sessions/rollout-0.jsonl").read_bytes().splitlines()
    )
    assert (a.session, a.prompt_index, a.reward) == ("a", 7, reward) and (b.session, b.end) == (
        "b",
        "drained",
    )
    (leaf,) = a.leaves
    sampled = np.frombuffer(leaf.ids, np.int32)[np.frombuffer(leaf.mask, np.uint8) == 1].tolist()
    question, answer = prompt.split(" + 1 =")[0], Tokenizer(run / "initial").decode(sampled)
    assert reward == pytest.approx(int(question) + 1 + len(answer) / 1000)


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        argv = command(
            tiny_model(tmp_path / "model"), tmp_path / "run", gateway__port=other.getsockname()[1]
        )
        with started(argv) as process:
            code, _, err = end(process)
    assert code == 2 and "gateway.port" in err and not (tmp_path / "run").exists()
