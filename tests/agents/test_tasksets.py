"""Tasksets of the package `verifiers`, in its own environment, against a fake gateway."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import warm_process
from fake_gateway import RUN, FakeGateway, fake_gateway

from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, played
from asyncrl.agents.load_agent import load_agent

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
TASKSETS = ROOT / "tests" / "support" / "tasksets"
DEADLINE_S = 300.0

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="`verifiers` is not here; make verifiers builds its environment"
    ),
]


class Program(NamedTuple):
    """The program, forked from a process of that environment that has imported `verifiers`, which
    takes five core seconds. tests/runs/test_train_episodes.py starts it as a user does."""

    popen: type[warm_process.Popen]

    def command(self, *words: str | Path) -> dict[str, Any]:
        """Its command line and environment."""
        argv = [str(PYTHON), "-m", "asyncrl.agents.tasksets", *map(str, words)]
        env = os.environ | {"PYTHONPATH": f"{ROOT}:{TASKSETS}"}
        return {"argv": argv, "env": env, "text": True}

    def done(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return warm_process.run(
            **self.command(*words), start=self.popen, capture_output=True, timeout=DEADLINE_S
        )

    def lines(self, count: int, taskset: str | Path) -> list[dict[str, Any]]:
        """The lines of a task."""
        said = self.done("prompts", str(count), taskset)
        assert said.returncode == 0, said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    @contextmanager
    def playing(self, gateway: FakeGateway, folder: Path, taskset: str | Path) -> Iterator[None]:
        """It plays the episodes of a run."""
        settings = {"run": "http", "port": gateway.port, "actors": 1}
        settings |= {"episode_s": 300.0, "call_s": 600.0, "max_calls": 32}
        said = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        (folder / "run.toml").write_text(f"[agent]\n{said}")
        (folder / "gateway.key").write_text(RUN)
        argv = self.command("play", folder, taskset)
        process = self.popen(argv.pop("argv"), **argv, stderr=subprocess.PIPE)
        try:
            yield
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 143, errors


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    modules = ("verifiers.v1", "openai", "verifiers.v1.harnesses.utils.mcp")
    with warm_process.warm_of(str(PYTHON), modules, str(ROOT), str(TASKSETS)) as popen:
        yield Program(popen)


def end_of(gateway: FakeGateway, entry: dict[str, Any]) -> float | str:
    """Have an episode played: its reward, or why it failed."""
    gateway.ends.clear()
    gateway.asked.clear()
    facts = msgspec.structs.asdict(gateway.facts(entry=entry))
    gateway.offered.append({"session": "episode-3", **facts})
    last = time.monotonic() + DEADLINE_S
    while not gateway.ends and time.monotonic() < last:
        time.sleep(0.02)
    (end,) = gateway.ends
    return end


@pytest.mark.explore
def test_a_taskset_that_is_not_there_is_refused_in_one_sentence(
    program: Program, tmp_path: Path
) -> None:
    said = program.done("play", tmp_path, "no-such-taskset")
    assert said.returncode == 2 and not said.stdout
    (line,) = said.stderr.splitlines()
    assert "taskset 'no-such-taskset' not found; correct its name, or install" in line


@pytest.mark.explore
@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            *("[env.taskset]\nid = 'textarena'", "taskset.game: Field required"),
            marks=pytest.mark.soak,
        ),
        ("[env.taskset]\nid = 'textarena_offline'\ngane = 3", "taskset.gane: Extra inputs"),
        ("[env.taskset]\nid = 'textarena_offline'\ngame = 'Nope-v0'", "'textarena_offline' cannot"),
        pytest.param("[env", "cannot be read", marks=pytest.mark.soak),
        ("[env]\nid = 'user-sim'\ntaskset.id = 'ways_to_end'", "the seat 'user' is not trained"),
        ("[env]\nid = 'best-of-n'\ntaskset.id = 'no'", "taskset 'no' not found"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    program: Program, tmp_path: Path, text: str, why: str
) -> None:
    (file := tmp_path / "t.toml").write_text(text)
    said = program.done("prompts", "1", file)
    assert said.returncode == 2 and not said.stdout
    (line,) = said.stderr.splitlines()
    assert why in line


@pytest.mark.explore
def test_each_end_of_an_episode_is_a_reward_or_a_failure_by_name(
    program: Program, tmp_path: Path
) -> None:
    entries = {line["prompt"]: line for line in program.lines(5, "ways_to_end")}
    right, raises, nan, dies, nothing = entries.values()
    with fake_gateway() as gateway, program.playing(gateway, tmp_path, "ways_to_end"):
        gateway.replies = ["yes"]
        assert end_of(gateway, right) == 1.0
        assert gateway.asked == [[{"role": "user", "content": "right?"}]]
        gateway.replies = ["no"]
        assert end_of(gateway, right) == 0.0
        for entry, why in (
            (raises, "the judge broke"),
            (nan, "is nan; it must be a finite number"),
            (nothing, "the taskset gave no reward"),
            (dies, "its process ended with exit code 3"),
            (right | {"hash": "another"}, "write the prompts again"),
            (right | {"task": 5}, "has 5 tasks"),
            ({"prompt": "2 + 2 ="}, "it names no task"),
        ):
            assert why in str(end_of(gateway, entry)), entry
        gateway.calls = 0  # refused before the model said anything
        assert "it is as long as it may be" in str(end_of(gateway, right))
        gateway.calls = 1000
        assert end_of(gateway, right) == 0.0  # after all of these


@pytest.mark.explore
def test_a_game_of_many_turns_is_judged_by_its_taskset(program: Program, tmp_path: Path) -> None:
    (game,) = program.lines(1, "textarena_offline")
    with fake_gateway() as gateway, program.playing(gateway, tmp_path, "textarena_offline"):
        gateway.replies = [f"[{number}]" for number in range(1, 21)]
        reward, turns = end_of(gateway, game), len(gateway.asked)
        assert isinstance(reward, float) and 0 < reward < 1 and turns > 2  # it says how near
        first, *_, last = gateway.asked
        assert "Guess The Number" in first[-1]["content"]
        roles = [message["role"] for message in last]
        assert roles == ["user", *["assistant", "user"] * (len(gateway.asked) - 1)]
        gateway.replies = [f"[{turns + round(19 * (1 - reward))}]"]  # the number, in one guess
        assert end_of(gateway, game) == 1.0 and len(gateway.asked) == 1
        # as long as it may be: the game is judged as far as it came
        gateway.replies, gateway.calls = ["[30]"], 1
        assert end_of(gateway, game) == 0.0


@pytest.mark.explore
def test_calls_of_a_seat_that_is_not_trained_never_reach_the_run(
    program: Program, tmp_path: Path
) -> None:
    with fake_gateway() as gateway, fake_gateway() as other:
        file = tmp_path / "talk.toml"
        file.write_text(
            "[env]\nid = 'user-sim'\ntaskset.id = 'ways_to_end'\n"
            "[env.user]\nmodel = 'frozen'\nmax_turns = 2\n"
            f"client.type = 'eval'\nclient.base_url = "
            f"'http://127.0.0.1:{other.port}/sessions/episode-3/v1'\n"
            "client.api_key_var = 'OTHER_KEY'\n"
        )
        right, *_ = program.lines(1, file)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTHER_KEY", "key-for-calls")
            with program.playing(gateway, tmp_path, file):
                gateway.replies, other.replies = ["yes"], ["are you there?"]
                assert end_of(gateway, right) == 1.0
        assert len(gateway.asked) == 2 and len(other.asked) == 2
        assert gateway.asked[0] == [{"role": "user", "content": "are you there?"}]


@pytest.mark.explore
def test_several_trained_seats_are_the_policies_of_their_names(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the example's game, in a process of the taskset; one run alone is refused."""
    (line,) = program.lines(1, "two_seats")
    said = program.done("play", tmp_path, "two_seats")
    assert said.returncode == 2 and "train them as a game of policies with these names" in (
        said.stderr
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{TASKSETS}")
    monkeypatch.chdir(ROOT)
    game = load_agent("docs/examples/harnesses/taskset_game.py:play")
    with fake_gateway() as gateway:

        def end(*replies: str) -> AgentEnd:
            gateway.replies = [*replies]
            return asyncio.run(played(game, gateway.facts(entry=line), Closing()))

        assert end("dcba", "abcd") == AgentEnded({"proposer": 1.5, "solver": 1.0})
        assert gateway.models == ["proposer", "solver"]
        failed = end("silent", "abcd")  # to which the taskset gives no reward
        assert isinstance(failed, AgentFailed) and "the taskset ended with 2" in failed.text
