"""Agents' episodes, trained in real runs: by a program that a stranger could have written, by one
elsewhere that speaks plain HTTP, and by a taskset of `verifiers`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from train_support import DEADLINE_S, command, end, started, train, wait_for

import asyncrl as rl
from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.journal import read
from asyncrl.runtime.processes.machine import free_port

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
SETTINGS = {
    "task__name": "jsonl",
    "rollout__max_new_tokens": 40,
    "train__steps": 2,
    "train__eval_every": 0,
}


def numbers(folder: Path) -> str:
    """A file of games: a number each, from 1 to 16."""
    file, line = folder / "numbers.jsonl", '{"prompt": "Guess a number. %d", "answer": "%d"}\n'
    file.write_text("".join(line % (n, 1 + n % 16) for n in range(48)))
    return str(file)


def trained(run: Path) -> list[e.Event]:
    """The events of a run that has made its steps, and lost no token."""
    found = summary.read(run / "summary.json")
    assert found.ok and found.steps == 2 and found.balances()
    return [event for _, event in read(run / "journal.sqlite")]


@pytest.mark.explore
def test_a_strangers_program_is_trained(model: Path, tmp_path: Path) -> None:
    """One of bench/programs/; notebooks and examples train environments."""
    pytest.importorskip("requests")
    run, program = tmp_path / "run", ROOT / "bench" / "programs" / "with_requests.py"
    agent = json.dumps([sys.executable, str(program)])
    settings = {"task__path": numbers(tmp_path), "agent__run": agent}
    ended = train(command(model, run, **settings, **SETTINGS))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    events = trained(run)
    assert any(isinstance(event, e.Called) for event in events)
    assert sum(isinstance(event, e.Rewarded) for event in events) >= 16
    for one in rl.open_run(run).rollouts(last=4):
        [said] = one.printed.values()
        assert said.startswith("answered: ") and '{"reward": ' in said


@pytest.mark.explore
def test_programs_elsewhere_are_trained(model: Path, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    argv = command(
        model,
        run,
        task__path=numbers(tmp_path),
        agent__run="http",
        agent__port=port,
        agent__attempts=2,
        **SETTINGS,
    )
    url, rewards = f"http://127.0.0.1:{port}", 0
    with started(argv) as process, httpx2.Client(timeout=60.0) as client:

        def ready() -> bool:
            try:
                return client.get(f"{url}/ready").status_code == 200
            except httpx2.TransportError:
                return False

        def ask(path: str, key: str, body: object = None) -> httpx2.Response | None:
            """An answer; None where the run is over."""
            try:
                return client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
            except httpx2.TransportError:
                return None

        wait_for("gateway", ready)
        key = (run / "gateway.key").read_text()
        while (given := ask(f"{url}/v1/episodes", key)) is not None:
            if given.status_code != 200:
                continue
            episode = given.json()
            said = {
                "model": "policy",
                "max_tokens": 8,
                "messages": [{"role": "user", "content": episode["prompt"]}],
            }
            reply = ask(episode["base_url"] + "/chat/completions", episode["api_key"], said)
            if reply is None or reply.status_code != 200:
                continue
            text = reply.json()["choices"][0]["message"]["content"]
            reward = {"reward": float(len(text) % 3)}
            session = f"{url}/v1/sessions/{episode['session']}/reward"
            if (taken := ask(session, episode["reward_key"], reward)) is not None:
                rewards += taken.status_code == 200
        code, out, err = end(process)
    assert code == 0, out + err
    given_rewards = [event for event in trained(run) if isinstance(event, e.Rewarded)]
    assert 16 <= len(given_rewards) <= rewards + 1


@pytest.mark.explore
def test_a_taskset_of_verifiers_is_trained(model: Path, tmp_path: Path) -> None:
    """The commands of docs/agents.md, with a game of TextArena that needs no download."""
    if not PYTHON.exists():
        pytest.skip("`verifiers` is not here; make verifiers builds its environment")
    (taskset := tmp_path / "game.toml").write_text(
        '[env.taskset]\nid = "textarena_offline"\n[sampling]\nmax_tokens = 12\n'
    )
    tasksets = f"{ROOT}:{ROOT / 'tests' / 'support' / 'tasksets'}"
    program = [str(PYTHON), "-m", "asyncrl.agents.tasksets"]
    said = subprocess.run(
        [*program, "prompts", "64", str(taskset)],
        env={**os.environ, "PYTHONPATH": tasksets},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    (games := tmp_path / "games.jsonl").write_text(said.stdout)
    run = tmp_path / "run"
    argv = command(
        model,
        run,
        task__path=str(games),
        agent__run="http",
        agent__port=free_port(),
        engine__context_tokens=2048,
        **SETTINGS,
    )
    with started([*program, "play", str(run), str(taskset)], PYTHONPATH=tasksets) as playing:
        ended = train(argv)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        playing.terminate()
        code, out, err = end(playing)
    assert code == 143, out + err
    events = trained(run)
    assert any(isinstance(event, e.Called) for event in events)
    assert sum(isinstance(event, e.Rewarded) for event in events) >= 16


def test_a_port_in_use_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        argv = command(model, tmp_path / "run", agent__run="http", agent__port=port)
        with started(argv) as process:
            code, _, err = end(process)
    assert code == 2 and "agent.port" in err and not (tmp_path / "run").exists()
