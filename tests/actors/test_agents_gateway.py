"""Users' agents in real processes, before a scripted coordinator: a function that is killed amid a
call goes on in another attempt, and one that does wrong costs its own attempt a name."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from memory_link import memory_links
from scripted_agents import ScriptedCoordinator

from asyncrl.actors.agents_actor import agents_actor
from asyncrl.actors.agents_gateway import open_episodes
from asyncrl.actors.reporting import Reporter
from asyncrl.bundled.bundled_model import END_ID, write_tokenizer
from asyncrl.config.schema import AgentConfig, Config, TaskConfig
from asyncrl.experience.turns_above import TurnsAbove
from asyncrl.messages import Ask, Drain, Drained, GiveReward, Note, Played, StopPlaying
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import GATEWAY_KEY

pytestmark = pytest.mark.processes

PATIENCE_S = 300.0
EXAMPLE = Path(__file__).parents[2] / "docs/examples/forks/two_ways.py"

AGENT = """
from asyncrl.agents import as_role

async def solve(client, episode):
    async def say(text, **more):
        answer = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": text}], **more)
        return answer.choices[0].message.content
    match episode.prompt_index:
        case 0:
            found = await episode.once("tool", lambda: [episode.attempt])
            first = await say("first", stop=["!"], metadata={"role": "planner"})
            await episode.reward(0.25)
            client = as_role(client, "critic")
            return float(await say(f"{found} {first}"))
        case 1:
            raise ValueError("no such tool")
        case 2:
            return float("nan")
        case 3:
            await say("x", n=0)
"""


def answer_to(prompt: str) -> int:
    """The sum that the task asks for."""
    found = re.search(r"\d+( [+-] \d+)+", prompt)
    assert found is not None, prompt
    return sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]? ?\d+", found[0]))


def text_of(context: bytes) -> str:
    return "".join(chr(id) if id < 256 else "$" for id in np.frombuffer(context, np.int32).tolist())


@asynccontextmanager
async def played(
    folder: Path, monkeypatch: pytest.MonkeyPatch, agent: str = AGENT
) -> AsyncIterator[ScriptedCoordinator]:
    name = f"agent_{folder.name}"
    (folder / f"{name}.py").write_text(agent)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    (folder / "initial").mkdir()
    write_tokenizer(folder / "initial")
    write_key(folder / GATEWAY_KEY, b"the-key-of-this-run")
    config = Config(
        task=TaskConfig(name="chain_sum", train_size=8, eval_size=2),
        agent=AgentConfig(run=f"{name}:solve", episode_s=PATIENCE_S, history="as_sampled"),
    )
    waits, reporter = Waits(), Reporter(Waits())
    ours, theirs = memory_links()
    async with (
        ours,
        theirs,
        open_episodes(config, folder, folder / "initial", 0, waits, reporter) as opened,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(agents_actor, theirs, *opened, reporter)
        coordinator = ScriptedCoordinator(ours, "")
        yield coordinator
        await coordinator.send(Drain())
        while not isinstance((await coordinator.hear())[0], Drained):
            pass


async def test_a_killed_agent_goes_on_in_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trio.fail_after(PATIENCE_S):
        async with played(tmp_path, monkeypatch) as coordinator:
            await coordinator.play(prompt_index=0)
            note = (await coordinator.hear())[0]
            assert isinstance(note, Note) and note.name == "tool"
            ask, context = await coordinator.ask()
            assert "first" in context and ask.stops == ["!"]
            await coordinator.send(StopPlaying(17, 1))
            await coordinator.play(attempt=2, prompt_index=0, notes={note.name: note.value})
            again, same = await coordinator.ask()  # what was noted is not computed again
            due = Ask(17, 2, 0, again.max_new_tokens, ["!"], "planner")
            assert (again, same) == (due, context)
            await coordinator.reply(again, "4$")
            assert (await coordinator.hear())[0] == GiveReward(17, 2, 0, 0.25)
            ask, context = await coordinator.ask()
            assert (ask.number, ask.role) == (1, "critic") and "[0] 4" in context
            await coordinator.reply(ask, "0.5$")
            assert (await coordinator.hear())[0] == GiveReward(17, 2, None, 0.5)
            assert (await coordinator.hear())[0] == Played(17, 2, "stop")


@pytest.mark.explore
async def test_a_failed_attempt_has_a_name_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trio.fail_after(PATIENCE_S):
        async with played(tmp_path, monkeypatch) as coordinator:
            for rollout in (1, 2, 3):
                await coordinator.play(rollout, prompt_index=rollout)
            heard = [(await coordinator.hear())[0] for _ in range(3)]
            named = {end.rollout: end.failed for end in heard if type(end) is Played}
            assert named == {1: "raised", 2: "not_finite", 3: "raised"}


async def test_an_agent_forks_and_rewards_each_end_of_its_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/examples: a wrong answer, which is gone on from twice, and a right one.
    What lies above a turn follows from the contexts that the gateway asks with."""
    turns, tree = TurnsAbove(), list[tuple[int, ...] | None]()
    with trio.fail_after(PATIENCE_S):
        async with played(tmp_path, monkeypatch, EXAMPLE.read_text()) as coordinator:
            await coordinator.play(prompt_index=0)
            for number, said in enumerate(("?$", "{}$", "?$", "{}$")):
                ask, context = await coordinator.hear()
                assert isinstance(ask, Ask) and ask.number == number
                reply = said.format(answer_to(text_of(context)))
                await coordinator.reply(ask, reply)
                sampled = np.array([END_ID if c == "$" else ord(c) for c in reply], np.int32)
                tree.append(turns.add(context, sampled.tobytes()))
                if number:
                    due = {1: 0.25, 2: 0.0, 3: 0.5}[number]
                    assert (await coordinator.hear())[0] == GiveReward(17, 1, number, due)
            assert (await coordinator.hear())[0] == GiveReward(17, 1, None, 0.75)
            assert (await coordinator.hear())[0] == Played(17, 1, "stop")
    assert tree == [None, None, (0,), ()]
