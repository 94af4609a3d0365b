"""`asyncrl play`: one episode with the real agent, gateway and verifiers, and its parts alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from container_double import on_path

from asyncrl.actors.agent_pool import AgentAttempt
from asyncrl.agents.endings import AgentFailed
from asyncrl.cli import main
from asyncrl.config import Config, ConfigError
from asyncrl.config.schema import AgentConfig, ModelConfig, SandboxConfig, TaskConfig
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.launch.play.one_episode import OneEpisode, PlayedTurn
from asyncrl.launch.play.play import play
from asyncrl.launch.play.transcript import Transcript
from asyncrl.messages import Ask, Enough, GiveReward, Play, Reply

AGENT = """
import openai

async def solve(client, episode):
    say = lambda text, **more: client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": text}], **more)
    print("seed", episode.seed)
    try:
        await say("x", n=-1)
    except openai.BadRequestError:
        pass
    first = await say("begin", max_tokens=4)
    await episode.reward(0.25)
    await say(first.choices[0].message.content + "?", stop=["!"])
    await episode.once("tool", lambda: [1, "\\x1b[2J"])
    async with episode.sandbox() as box:
        print("boxed", (await box.run(["cat"], stdin="in")).stdout, flush=True)
    if episode.prompt_index:
        raise ValueError("no such tool")
"""


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def chunk(number: int, start: int, tokens: np.ndarray, finish: str = "") -> Chunk:
    return Chunk(number, 1, 0, start, tokens, np.zeros(len(tokens), np.float32), finish)


@pytest.fixture
def episode() -> OneEpisode:
    return OneEpisode(Play(3, 1, "train", 5, 7, 6, 0.7, {}), max_calls=3, context_tokens=10)


def test_an_episode_has_the_budgets_of_a_run(episode: OneEpisode) -> None:
    first = episode.ask(Ask(3, 1, 0, 4, []), ids(1, 2, 3))
    assert isinstance(first, Request)
    assert (first.max_new_tokens, first.temperature, first.ids.tolist()) == (4, 0.7, [1, 2, 3])
    said = episode.take(chunk(0, 0, ids(11, 12, 13)))
    assert said == Reply(3, 1, 0, 0, "")
    said = episode.take(chunk(0, 3, ids(14), "length"))
    assert said is not None and said.finish == "length"
    second = episode.ask(Ask(3, 1, 1, 4, []), ids(1, 2, 3, 11, 12, 13, 14))
    assert isinstance(second, Request)
    assert second.max_new_tokens == 2, "two are left of six"
    assert second.key != first.key
    again = OneEpisode(episode.play, max_calls=3, context_tokens=10)
    assert again.ask(Ask(3, 1, 0, 4, []), ids(9)).key == first.key
    episode.take(chunk(1, 0, ids(15, 0), "stop"))
    third = episode.ask(Ask(3, 1, 2, 4, []), ids(1))
    assert isinstance(third, Reply)
    assert third.finish == "length" and "rollout.max_new_tokens" in third.refused
    assert [turn.response.tolist() for turn in episode.turns] == [[11, 12, 13, 14], [15, 0]]


def test_calls_and_contexts_have_their_bounds(episode: OneEpisode) -> None:
    long = episode.ask(Ask(3, 1, 0, 4, []), np.arange(10, dtype=np.int32))
    assert isinstance(long, Reply) and "engine.context_tokens" in long.refused
    for number in (1, 2):
        assert isinstance(episode.ask(Ask(3, 1, number, 1, []), ids(1)), Request)
    over = episode.ask(Ask(3, 1, 3, 1, []), ids(1))
    assert isinstance(over, Reply) and "agent.max_calls" in over.refused


def test_a_response_is_cut_where_the_agent_needs_no_more(episode: OneEpisode) -> None:
    episode.ask(Ask(3, 1, 0, 6, ["!"]), ids(1))
    episode.take(chunk(0, 0, ids(11, 12, 13)))
    assert episode.enough(Enough(3, 1, 0, 2)) == [0]
    assert episode.take(chunk(0, 3, ids(14), "interrupted")) is None
    assert episode.enough(Enough(3, 1, 0, 1)) == [], "it has ended"
    assert (episode.turns[0].response.tolist(), episode.turns[0].finish) == ([11, 12], "stop")
    assert episode.left == 4


def test_a_transcript_shows_a_context_once_and_no_control_characters() -> None:
    lines: list[str] = []
    transcript = Transcript(lines.append, lambda some: "".join(map(chr, some)))
    turn = PlayedTurn(0, ids(*b"ab\x1b"), ids(*b"cd"), "length")
    transcript.context(turn)
    transcript.response(turn)
    transcript.context(PlayedTurn(1, ids(*b"ab\x1bcde"), ids(), ""))
    transcript.error("POST /x", 400, b'{"error": {"message": "no\\u001b"}}')
    transcript.error("POST /x", 502, b"\xff")
    transcript.note(GiveReward(0, 1, 1, 0.5, "door"))
    transcript.ended(AgentAttempt(AgentFailed("raised", "ValueError: \x1b"), 1.0, "said\n"))
    assert lines == [
        "── call 0: context of 3 tokens",
        "ab\\x1b",
        "── call 0: response of 2 tokens, cut at its budget",
        "cd",
        "── call 1: context of 6 tokens, from token 5 on",
        "e",
        "── error 400 at POST /x: no\\x1b",
        "── error 502 at POST /x: \ufffd",
        "── reward of call 1: 0.5, key door",
        "── the end of the agent's output",
        "said",
        "── the agent failed: raised: ValueError: \\x1b",
    ]


@pytest.mark.explore
@pytest.mark.processes
def test_an_episode_is_played_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the agent, the gateway and the verifiers of a run, and scripted responses. Then again,
    where the agent raises; and one prompt without an agent."""
    (tmp_path / "played_agent.py").write_text(AGENT)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.syspath_prepend(tmp_path)
    on_path(tmp_path, monkeypatch)
    config = Config(
        task=TaskConfig(name="chain_sum", train_size=8, eval_size=2),
        agent=AgentConfig(run="played_agent:solve"),
        sandbox=SandboxConfig(kind="directory", hosts=("*",)),
    )
    lines: list[str] = []
    assert play(config, "train", 0, 5, ["one", "two!three"], lines.append) == 0
    assert lines[0] == "chain_sum: prompt 0 of train, seed 5"
    story = [line for line in lines if line.startswith("── ")]
    refused = "── error 400 at POST /sessions/r0-1/v1/chat/completions: Expected `int` >= 1"
    assert story[0].startswith(refused)
    assert [line for line in story if "response" in line] == [
        "── call 0: response of 4 tokens",
        "── call 1: response of 10 tokens",
    ], "all that was sampled, also behind the agent's stop string"
    assert "one<|end|>" in lines and "two!three<|end|>" in lines
    assert "── call 1: context of 5 tokens" in story
    assert "── reward of call 0: 0.25" in story
    assert story[-1] == "── reward by the task's verifier: 0", (
        "a turn's reward is not the episode's"
    )
    assert next(line for line in story if "noted tool" in line).endswith('"\\u001b[2J"]')
    assert lines[lines.index("── the end of the agent's output") + 1] == "seed 5\nboxed b'in'"
    docker = msgspec.structs.replace(config, sandbox=SandboxConfig(kind="docker", image="none:1"))
    unpulled: list[str] = []
    assert play(docker, "train", 0, 5, ["one"], unpulled.append) == 1
    assert unpulled[1:] == [
        "── the agent failed: image: the image none:1 cannot be pulled: Error: manifest unknown"
    ], "no agent has started"
    again: list[str] = []
    assert play(config, "train", 1, 5, ["one"], again.append) == 1
    assert "── the agent failed: raised: ValueError: no such tool" in again[-1]
    plain = Config(task=config.task)
    with pytest.raises(ConfigError, match="--prompt is 8, and the train split has 8 prompts"):
        play(plain, "train", 8, 0, ["1"], lines.append)

    def interrupting(line: str) -> None:
        if line.startswith("── call 0"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # it ends no clean-up

    assert play(plain, "train", 0, 0, ["1"], interrupting) == 130
    alone: list[str] = []
    assert play(plain, "evaluation", 1, 0, ["surely not"], alone.append) == 0
    assert alone[-1] == "── reward by the task's verifier: 0"


def test_a_program_elsewhere_needs_a_port() -> None:
    with pytest.raises(ConfigError, match="must know the gateway's port"):
        play(Config(agent=AgentConfig(run="http")), "train", 0, 0, ["x"], print)


def test_seeds_are_for_agents(capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelConfig(warmup_steps=0)
    Config(task=TaskConfig(name="seeds"), agent=AgentConfig(run="mine:solve"), model=model)
    with pytest.raises(ConfigError, match="only an agent can make one of it"):
        Config(task=TaskConfig(name="seeds"), model=model)
    with pytest.raises(ConfigError, match="no answers to learn from"):
        Config(task=TaskConfig(name="seeds"), agent=AgentConfig(run="mine:solve"))
    assert main(["play", "--set", "task.name=seeds"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
