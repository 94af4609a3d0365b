"""One run with a gateway, from its start to SIGTERM, for several tests to look at: starting it is
most of its time."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import httpx2
import msgspec
import openai
import pytest
from train_support import command, end, started, steps_done, wait_for

from asyncrl.observe.why import why
from asyncrl.processes.machine import free_port
from asyncrl.sessions.finished import FinishedSession

CALLS = 4
"""Of session "one"."""
TELLING = """
def judge(answer, line):
    return int(line["answer"]) + len(answer) / 1000
"""


class AgentsRun(NamedTuple):
    """A run's end, and what it said on the way.

    `whys`: the first sentences of `asyncrl why` once it had started, and once it trained. `prompt`
    and `reward`: what session "a" was asked, and given by the task. `refused`: the code of the
    error that session "b" was told for a prompt that is none. `sessions`: by name.
    """

    run: Path
    status: int
    said: str
    whys: tuple[str, str]
    prompt: str
    reward: float
    refused: str
    sessions: dict[str, FinishedSession]


def agents_run(model: Path, folder: Path) -> AgentsRun:
    """Four sessions: "one" is rewarded by its agent, "a" is judged by the task, "two" and "b" are
    open when the run is asked to end."""
    run, port, file = folder / "run", free_port(), folder / "prompts.jsonl"
    (folder / "telling.py").write_text(TELLING)
    file.write_text("".join(f'{{"prompt": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(40)))
    argv = command(
        model,
        run,
        train__steps=100_000,
        train__eval_every=0,
        gateway__port=port,
        supervision__grace_s=60.0,
        task__name="jsonl",
        task__path=str(file),
        task__verifier="telling:judge",
    )
    with started(argv, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}") as process:
        wait_for("status", lambda: (run / "status.json").exists())
        starting = why(run, time.time())[0]
        wait_for("gateway", lambda: ready(port))
        key = (run / "gateway.key").read_text()
        talk(run, port, key)
        prompt, reward, refused = be_judged(port, key)
        training = wait_for(
            "training", lambda: "The run trains" in (now := why(run, time.time())[0]) and now
        )
        process.send_signal(signal.SIGTERM)
        status, out, err = end(process)
    lines = (run / "sessions/rollout-0.jsonl").read_bytes().splitlines()
    finished = [msgspec.json.decode(line, type=FinishedSession) for line in lines]
    sessions = {session.session: session for session in finished}
    assert len(sessions) == len(finished)
    return AgentsRun(
        run, status, out + err, (starting, training), prompt, reward, refused, sessions
    )


def ready(port: int) -> bool:
    try:
        return bool(
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200
        )
    except OSError:  # also what urllib makes of one
        return False


def talk(run: Path, port: int, key: str) -> None:
    """Call by the official client, over several publications, each time with what was said before;
    leave a session open; and be refused with another key."""

    def client(session: str, key: str) -> openai.OpenAI:
        url = f"http://127.0.0.1:{port}/sessions/{session}/v1"
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0)

    text = "hello"
    for call in range(CALLS):
        wait_for("step", lambda call=call: steps_done(run) >= 2 * call)
        reply = client("one", key).completions.create(
            model="policy", prompt=text, max_tokens=4, temperature=1.0
        )
        text += reply.choices[0].text
    with pytest.raises(openai.AuthenticationError):
        client("one", "other").completions.create(model="policy", prompt="x", max_tokens=1)
    httpx2.post(
        f"http://127.0.0.1:{port}/v1/sessions/one/reward",
        json={"reward": 1.5},
        headers={"authorization": f"Bearer {key}"},
        timeout=60.0,
    ).raise_for_status()
    client("two", key).completions.create(model="policy", prompt="bye", max_tokens=2)


def be_judged(port: int, key: str) -> tuple[str, float, str]:
    """Answer a prompt of the task, and then one that the task does not have."""
    headers = {"authorization": f"Bearer {key}"}
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60.0
    ) as client:
        prompt = client.get("/v1/prompts/7").raise_for_status().json()["prompt"]
        asked = {"model": "policy", "prompt": prompt, "max_tokens": 8}
        client.post("/sessions/a/v1/completions", json=asked).raise_for_status()
        judged = (
            client.post("/v1/sessions/a/reward", json={"prompt_index": 7}).raise_for_status().json()
        )
        client.post("/sessions/b/v1/completions", json=asked).raise_for_status()
        refused = client.post("/v1/sessions/b/reward", json={"prompt_index": 40}).json()
    return prompt, judged["reward"], refused["error"]["code"]
