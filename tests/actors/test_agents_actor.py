"""The agents actor, before a scripted coordinator: what agents ask for goes over the link, and what
is wrong is told to who did it, in a sentence, and to nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import trio
import trio.testing
from scripted_agents import KEY, ScriptedCoordinator, TaskPlayer, played

from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.actors.elsewhere import ElsewherePool
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd, AgentEnded, failed
from asyncrl.agents.gateway.offers import Offers
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.messages import Ask, Enough, GiveFailure, GiveReward, Note, Played, StopPlaying
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

PATIENCE_S = 120.0

Body = dict[str, Any]
Http = Callable[..., Awaitable[httpx2.Response]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return Tokenizer(folder, chat=True)


def door(facts: EpisodeFacts, client: httpx2.AsyncClient) -> Http:
    """A raw HTTP client of an episode: method, path below the URL of the gateway, body, key."""
    root = facts.base_url.partition("/sessions/")[0]

    async def ask(
        method: str, path: str, body: object = None, key: str | None = None
    ) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        return await client.request(
            method,
            root + path,
            content=content,
            headers={"authorization": f"Bearer {facts.api_key if key is None else key}"},
            timeout=PATIENCE_S,
        )

    return ask


def chat(facts: EpisodeFacts, **more: Any) -> tuple[str, str, Body]:
    messages = [{"role": "user", "content": "?"}]
    body = {"model": "policy", "messages": messages, **more}
    return "POST", f"/sessions/{facts.session}/v1/chat/completions", body


def sentence(answer: httpx2.Response, status: int, code: str) -> str:
    """The sentence of an error in OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code, error
    return str(error["message"])


def over_http(agent: Callable[[EpisodeFacts, Http], Awaitable[AgentEnd]]) -> TaskPlayer:
    async def play(facts: EpisodeFacts) -> AgentEnd:
        async with httpx2.AsyncClient() as client:
            return await agent(facts, door(facts, client))

    return TaskPlayer(play)


async def test_an_official_client_plays_over_the_link(tokenizer: Tokenizer) -> None:
    def solve(facts: EpisodeFacts) -> AgentEnd:
        assert facts.prompt == "train 3?" and facts.entry == {"answer": "42"}
        with openai.OpenAI(
            base_url=facts.base_url, api_key=facts.api_key, timeout=PATIENCE_S, max_retries=0
        ) as client:
            said: list[Any] = [{"role": "user", "content": facts.prompt}]
            first = client.chat.completions.create(
                model="policy", messages=said, temperature=0.3, max_tokens=9, stop=["!"]
            )
            said += [first.choices[0].message, {"role": "user", "content": "and?"}]
            last = client.chat.completions.create(model="policy", messages=said)
        assert first.choices[0].message.content == "four"
        return AgentEnded(float(last.choices[0].message.content or "nan"))

    async def agent(facts: EpisodeFacts) -> AgentEnd:
        return await trio.to_thread.run_sync(solve, facts)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, TaskPlayer(agent)) as coordinator:
            await coordinator.play()
            ask, context = await coordinator.ask()
            assert ask == Ask(17, 1, 0, 9, ["!"])
            assert "train 3?" in context
            await coordinator.reply(ask, "four!!x", finish="")
            # what it has read ends with the stop string, not with what came in one piece with it
            assert (await coordinator.hear())[0] == Enough(17, 1, 0, 5)
            ask, context = await coordinator.ask()
            assert ask.number == 1 and "four" in context and "and?" in context
            await coordinator.reply(ask, "0.5$")
            assert (await coordinator.hear())[0] == GiveReward(17, 1, None, 0.5)
            assert (await coordinator.hear())[0] == Played(17, 1, "stop")


async def test_the_clock_stands_while_a_call_is_answered(tokenizer: Tokenizer) -> None:
    clocks: list[AgentClock] = []

    class Watched(TaskPlayer):
        async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
            clocks.append(clock)
            return await super().play(facts, clock)

    async def agent(facts: EpisodeFacts) -> AgentEnd:
        async with httpx2.AsyncClient() as client:
            await door(facts, client)(*chat(facts))
        return AgentEnded(1.0)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, Watched(agent)) as coordinator:
            await coordinator.play()
            ask, _ = await coordinator.ask()
            spent = clocks[0].spent_s
            await trio.sleep(0.05)
            assert clocks[0].spent_s == spent
            await coordinator.reply(ask, "x$")
            assert isinstance((await coordinator.hear())[0], GiveReward)
            assert clocks[0].spent_s > spent


async def test_an_episode_s_notes_and_the_rewards_of_turns_are_told(tokenizer: Tokenizer) -> None:
    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        notes, reward = (
            f"/v1/sessions/{facts.session}/notes/",
            f"/v1/sessions/{facts.session}/reward",
        )
        assert (await http("GET", notes + "old")).json() == {"value": [1, None]}
        sentence(await http("GET", notes + "a%2Fb"), 404, "no_note")
        assert (await http("POST", notes + "a%2Fb", {"value": {"x": 1}})).json() == {
            "value": {"x": 1}
        }
        again = await http("POST", notes + "a%2Fb", {"value": 2})  # the first of a name counts
        assert again.json() == (await http("GET", notes + "a%2Fb")).json() == {"value": {"x": 1}}
        sentence(
            await http("POST", reward, {"reward": 1, "turn": -1}, facts.reward_key), 422, "no_turn"
        )
        assert (await http(*chat(facts))).status_code == 200
        given = await http("POST", reward, {"reward": 0.25, "turn": -1}, facts.reward_key)
        assert given.json() == {"session": facts.session, "reward": 0.25, "turn": -1}
        return AgentEnded({"right": 1.0, "brief": 0.5})

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play(notes={"old": b"[1,null]"})
            assert (await coordinator.hear())[0] == Note(17, 1, "a/b", b'{"x": 1}')
            ask, _ = await coordinator.ask()
            await coordinator.reply(ask, "hm", finish="length")
            assert [(await coordinator.hear())[0] for _ in range(3)] == [
                GiveReward(17, 1, 0, 0.25),
                GiveReward(17, 1, None, 1.5),
                Played(17, 1, "length"),
            ]


async def test_what_is_wrong_is_said_and_changes_nothing(
    tokenizer: Tokenizer,
) -> None:
    others = trio.Event()

    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        if facts.session == "r18-1":
            await others.wait()
            return AgentEnded(None)
        reward, right = f"/v1/sessions/{facts.session}/reward", facts.reward_key
        one = {"reward": 1.0}
        # keys are for one thing of one session
        assert "key for rewards" in sentence(
            await http("POST", reward, one), 401, "invalid_api_key"
        )
        sentence(await http("POST", reward, one, key="x"), 401, "invalid_api_key")
        sentence(await http(*chat(facts), key=right), 401, "invalid_api_key")
        foreign = chat(facts)[1].replace("r17-1", "r18-1")
        sentence(await http("POST", foreign, chat(facts)[2]), 401, "invalid_api_key")
        sentence(
            await http("POST", "/v1/sessions/r18-1/reward", one, key=right), 401, "invalid_api_key"
        )
        sentence(await http("POST", "/v1/sessions/r9-1/reward", one), 401, "invalid_api_key")
        run = KEY.decode()
        sentence(await http("POST", "/v1/sessions/r9-1/reward", one, run), 404, "unknown_session")
        # what is no reward
        for text in (b'{"reward": NaN}', b'{"reward": Infinity}', b"{", b'{"reward": "1"}', b""):
            answer = await http("POST", reward, text, right)
            assert answer.status_code == 400 and answer.json()["error"]["message"]
        sentence(await http("POST", reward, b'{"reward": 1e39}', right), 422, "invalid_value")
        sentence(await http("POST", reward, {"reward": 1, "turn": 0}, right), 422, "no_turn")
        # parameters, as everywhere; the temperature is the run's
        refused = await http(*chat(facts, modalities=["audio"]))
        assert "modalities" in sentence(refused, 400, "invalid_value")
        long = [{"role": "user", "content": "x" * 500}]
        sentence(await http(*chat(facts, messages=long)), 400, "context_length_exceeded")
        answer = await http(*chat(facts, temperature=0.1))
        assert answer.headers["x-ignored"] == "temperature"
        # two rewards of a turn, and of the whole; a call after it
        turn = {"reward": 0.5, "turn": 0}
        assert (await http("POST", reward, turn, right)).status_code == 200
        sentence(await http("POST", reward, turn, right), 409, "rewarded")
        # a failed call of a tool, once, with the key for rewards
        path, tool = reward.replace("/reward", "/failed"), {"tool": "search", "turn": 0}
        sentence(await http("POST", path, tool), 401, "invalid_api_key")
        sentence(await http("POST", path, {"tool": "search", "turn": 1}, right), 422, "no_turn")
        for body in (b"{}", b'{"tool": ""}', b'{"tool": 1}', b'{"tool": "x", "turn": 1.5}'):
            assert (await http("POST", path, body, right)).status_code == 400
        assert (await http("POST", path, tool, right)).status_code == 200
        sentence(await http("POST", path, tool, right), 409, "failed")
        assert (await http("POST", reward, one, right)).status_code == 200
        sentence(await http("POST", reward, one, right), 409, "rewarded")
        assert "no more calls" in sentence(await http(*chat(facts)), 422, "rewarded")
        return AgentEnded(1.0)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            await coordinator.play(18)
            ask, _ = await coordinator.ask()
            assert ask.number == 0, "nothing that was refused has reached the coordinator"
            await coordinator.reply(ask, "x$")
            assert [(await coordinator.hear())[0] for _ in range(4)] == [
                GiveReward(17, 1, 0, 0.5),
                GiveFailure(17, 1, 0, "search"),
                GiveReward(17, 1, None, 1.0),
                Played(
                    *(17, 1, "", "two_rewards"),
                    "the agent gave the episode a reward, and returned another; do one of these",
                ),
            ]
            others.set()
            assert (await coordinator.hear())[0] == Played(18, 1, "stop")


@pytest.mark.parametrize("why", ["coordinator", "context"])
async def test_an_agent_that_wants_more_than_it_may_is_cut(tokenizer: Tokenizer, why: str) -> None:
    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        assert (await http(*chat(facts))).status_code == 200
        if why == "coordinator":
            said = sentence(await http(*chat(facts)), 422, "episode_full")
        else:
            long = [{"role": "user", "content": "x" * 500}]
            said = sentence(await http(*chat(facts, messages=long)), 400, "context_length_exceeded")
        return failed("raised", said)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            ask, _ = await coordinator.ask()
            await coordinator.reply(ask, "x$")
            if why == "coordinator":
                ask, _ = await coordinator.ask()
                await coordinator.reply(ask, "", "length", refused="it has no token left")
            assert (await coordinator.hear())[0] == Played(17, 1, "length")


@pytest.mark.parametrize(("asked", "end"), [(None, "length"), (9, "length"), (2, "")], ids=str)
async def test_an_agent_that_cannot_use_a_cut_answer_is_cut(
    tokenizer: Tokenizer, asked: int | None, end: str
) -> None:
    """Unless it is its own length at which the answer is cut; and the one before was whole."""

    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        for _ in range(2):
            assert (await http(*chat(facts, max_tokens=asked))).status_code == 200
        return failed("exit", "exit code 1 / ERROR: incomplete")

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            for finish in ("stop", "length"):
                ask, _ = await coordinator.ask()
                await coordinator.reply(ask, "xx", finish)
            said, _ = await coordinator.hear()
            assert isinstance(said, Played) and said.finish == end


async def test_what_the_coordinator_refuses_the_agent_is_told(tokenizer: Tokenizer) -> None:
    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        said = sentence(await http(*chat(facts)), 422, "refused")
        reward = f"/v1/sessions/{facts.session}/reward"
        none = await http("POST", reward, {"reward": 1, "turn": 0}, facts.reward_key)
        sentence(none, 422, "no_turn")  # it was not answered
        return failed("raised", said)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            ask, _ = await coordinator.ask()
            await coordinator.reply(ask, "", "", refused="as many calls as it may")
            assert (await coordinator.hear())[0] == Played(
                *(17, 1, "", "raised", "as many calls as it may")
            )


@pytest.mark.parametrize("died", [False, True])
async def test_a_client_that_leaves_has_enough_unless_its_agent_died(
    tokenizer: Tokenizer, died: bool
) -> None:
    left = trio.Event()

    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(http, *chat(facts)))
            await left.wait()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked(0.2)  # the gateway has seen it
        return failed("crashed", "the agent's process died") if died else AgentEnded(0.0)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            ask, _ = await coordinator.ask()
            await coordinator.reply(ask, "abc", finish="")
            await trio.testing.wait_all_tasks_blocked(0.2)
            left.set()
            if died:  # its next attempt is given the whole answer
                assert (await coordinator.hear())[0] == Played(
                    17, 1, "", "crashed", "the agent's process died"
                )
                return
            assert [(await coordinator.hear())[0] for _ in range(3)] == [
                Enough(17, 1, 0, 3),
                GiveReward(17, 1, None, 0.0),
                Played(17, 1, "stop"),
            ]


async def test_a_prompt_that_cannot_be_given_to_an_agent_is_its_own_failure(
    tokenizer: Tokenizer,
) -> None:
    async def agent(facts: EpisodeFacts) -> AgentEnd:
        return AgentEnded(1.0)

    async def prompts(split: str, prompt_index: int) -> tuple[str, dict[str, Any], list[Any]]:
        await trio.lowlevel.checkpoint()
        if prompt_index == 1:
            raise KeyError("question")
        return "?", {}, []

    async with played(tokenizer, TaskPlayer(agent), prompts=prompts) as p:
        await p.play(rollout=1, prompt_index=1)
        failure, _ = await p.hear()
        assert failure == Played(1, 1, "", "no_facts", "KeyError: 'question'")
        await p.play(rollout=2, prompt_index=3)
        assert isinstance((await p.hear())[0], GiveReward)


async def test_of_an_attempt_that_is_stopped_nothing_more_is_said(tokenizer: Tokenizer) -> None:
    killed: list[str] = []

    async def agent(facts: EpisodeFacts, http: Http) -> AgentEnd:
        try:
            await http(*chat(facts))
        except BaseException:
            killed.append(facts.session)
            raise
        return AgentEnded(1.0)

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, over_http(agent)) as coordinator:
            await coordinator.play()
            await coordinator.ask()
            await coordinator.send(StopPlaying(17, 1))
            await coordinator.send(StopPlaying(99, 1))  # it is not here
            await coordinator.play(attempt=2)
            ask, _ = await coordinator.ask()
            assert (ask.attempt, killed) == (2, ["r17-1"])
            await coordinator.reply(ask, "x$")
            assert (await coordinator.hear())[0] == GiveReward(17, 2, None, 1.0)
            assert (await coordinator.hear())[0] == Played(17, 2, "stop")
            await coordinator.play(18)
            await coordinator.ask()
        # a drain ends what is played, and says nothing of it
        assert killed == ["r17-1", "r18-1"]


async def episode(coordinator: ScriptedCoordinator, http: httpx2.AsyncClient) -> EpisodeFacts:
    """Take an episode, as a program elsewhere does."""
    answer = await http.post(
        coordinator.url + "/v1/episodes",
        headers={"authorization": f"Bearer {KEY.decode()}"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200, answer.text
    given = answer.json()
    assert given.pop("session") == given["base_url"].split("/")[-2]
    return EpisodeFacts(**given)


async def test_programs_elsewhere_take_episodes(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    offers = Offers()
    pool = ElsewherePool(offers, Waits())
    with trio.fail_after(PATIENCE_S):
        async with (
            played(tokenizer, pool, offers=offers) as coordinator,
            httpx2.AsyncClient() as client,
        ):
            stranger = await client.post(coordinator.url + "/v1/episodes")
            sentence(stranger, 401, "invalid_api_key")
            await coordinator.play()
            facts = await episode(coordinator, client)
            assert (facts.prompt, facts.attempt, facts.seed) == ("train 3?", 0, 5)
            http = door(facts, client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(http, *chat(facts)))
                ask, _ = await coordinator.ask()
                await coordinator.reply(ask, "x$")
            reward = f"/v1/sessions/{facts.session}/reward"
            given = await http("POST", reward, {"reward": 0.5}, facts.reward_key)
            assert given.status_code == 200
            assert (await coordinator.hear())[0] == GiveReward(17, 1, None, 0.5)
            assert (await coordinator.hear())[0] == Played(17, 1, "stop")
            # one gives up, with the key that gives rewards
            await coordinator.play(18)
            facts = await episode(coordinator, client)
            gone = f"/v1/sessions/{facts.session}"
            sentence(await door(facts, client)("DELETE", gone), 401, "invalid_api_key")
            wrong = await door(facts, client)("DELETE", gone, {"why": 1}, facts.reward_key)
            sentence(wrong, 400, "invalid_value")
            why = {"reason": "the game\x1b[2J\nbroke"}
            ended = await door(facts, client)("DELETE", gone, why, facts.reward_key)
            assert ended.status_code == 200
            assert (await coordinator.hear())[0] == Played(
                *(18, 1, "", "given_up", "the game\\x1b[2J broke")
            )
            assert "(given up): the game\\x1b[2J broke" in caplog.text
        async with (
            played(tokenizer, pool, offers=offers, episode_s=0.2) as coordinator,
            httpx2.AsyncClient() as client,
        ):
            await coordinator.play(19)
            await episode(coordinator, client)  # and is silent
            assert (await coordinator.hear())[0] == Played(
                *(19, 1, "", "timeout", "the program had the ball for 0.2 s")
            )


async def test_an_episode_goes_to_a_program_that_waits(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.agents.gateway.app.POLL_S", 0.05)
    offers = Offers()
    with trio.fail_after(PATIENCE_S):
        async with (
            played(tokenizer, ElsewherePool(offers, Waits()), offers=offers) as coordinator,
            httpx2.AsyncClient() as client,
        ):
            headers = {"authorization": f"Bearer {KEY.decode()}"}
            none = await client.post(coordinator.url + "/v1/episodes", headers=headers)
            assert none.status_code == 204
            # one that is stopped before it was taken is nobody's
            await coordinator.play()
            await trio.testing.wait_all_tasks_blocked(0.05)
            await coordinator.send(StopPlaying(17, 1))
            await coordinator.play(attempt=2)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert (await episode(coordinator, client)).attempt == 1


def test_the_actor_needs_no_torch() -> None:
    modules = "asyncrl.actors.agents_actor, asyncrl.agents.gateway.app"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path.cwd()).returncode == 0
