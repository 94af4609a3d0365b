"""Users' agents under asyncio, against a fake gateway: a function, an environment, a program."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from closed_port import closed_port
from fake_gateway import REWARDS, FakeGateway, fake_gateway
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.agents import AgentEpisode
from asyncrl.agents.agent_episode import EpisodeError
from asyncrl.agents.agent_rewards import LARGEST, WrongReward, as_outcome, as_reward
from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, played
from asyncrl.agents.examples.guess_the_number import Game
from asyncrl.agents.gateway_client import GatewayClient
from asyncrl.agents.load_agent import load_agent
from asyncrl.algorithms import advantages
from asyncrl.bundled.bundled_model import END_ID, write_tokenizer
from asyncrl.config.errors import ConfigError
from asyncrl.tasks.text import Tokenizer

AGENTS = """
import time
from asyncrl.agents import MODEL, Step

async def ask(client, messages):
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    return answer.choices[0].message.content

async def solve(client, episode):
    text = await ask(client, [{"role": "user", "content": episode.prompt}])
    await episode.reward(0.25)
    return {"right": float(text == "4"), "brief": episode.seed / 100}

def blocking(client, episode):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": episode.prompt}])
    found = episode.once("outer", lambda: episode.once("inner", lambda: [1, 2]))
    episode.reward(0.5, call=0)
    episode.failed("search", call=0)
    return float(answer.choices[0].message.content) + len(found)

async def opens(client, episode):
    async with episode.opened("directory", "room") as path:
        await episode.reward(len(path)) if episode.prompt != "2 + 2 =" else 1 / 0

def opens_blocking(client, episode):
    with episode.opened("container", "asyncrl-1", "docker") as name:
        return float(len(name))

class Opens:
    async def reset(self, entry, seed, episode):
        async with episode.opened("directory", "room"): pass
        return ""

    def step(self, reply): return Step("", 1.0, True)

async def nothing(client, episode): return None
async def says(client, episode): return eval(episode.entry["value"])
async def raises(client, episode): raise ValueError("a\\x1b[2J\\nb")
async def exits(client, episode): raise SystemExit(3)
async def one(client): pass
number = 4

class Count:
    async def reset(self, entry, seed):
        self.turn = 0
        return f"{entry['prompt']} {seed}"

    def step(self, reply):
        self.turn += 1
        return Step(f"turn {self.turn}", float(reply), done=self.turn == 3)

class Tool(Count):
    role = "planner"

    def step(self, reply):
        self.turn += 1
        failed, role = ("search", "critic") if reply == "bad" else ("", "")
        return Step("", 0.0, self.turn == 3, failed=failed, role=role)

class Bare:
    def reset(self, entry, seed): return ""

class Wants(Count):
    def __init__(self, size): pass
"""


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as served:
        yield served


@pytest.fixture(autouse=True, scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "mine_to_play.py").write_text(AGENTS)
    (folder / "does_not_import.py").write_text("1 / 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def end_of(gateway: FakeGateway, run: str | list[str], **changes: Any) -> AgentEnd:
    run = run if isinstance(run, list) or ":" in run else f"mine_to_play:{run}"
    return asyncio.run(played(load_agent(run), gateway.facts(**changes), Closing()))


def test_a_function(gateway: FakeGateway) -> None:
    gateway.replies = ["4"]
    assert end_of(gateway, "solve") == AgentEnded({"right": 1.0, "brief": 0.17})
    assert gateway.asked == [[{"role": "user", "content": "2 + 2 ="}]]
    assert gateway.rewards == [(0.25, -1)]


def test_a_function_that_blocks(gateway: FakeGateway) -> None:
    gateway.replies = ["4"]
    assert end_of(gateway, "blocking") == AgentEnded(6.0)
    assert gateway.rewards == [(0.5, 0)] and gateway.failed == [("search", 0)]
    assert gateway.notes == {"inner": [1, 2], "outer": [1, 2]}


def test_what_is_opened_is_ended_whatever_happens_in_its_block(gateway: FakeGateway) -> None:
    both = [("POST", "room"), ("DELETE", "room")]
    raised = end_of(gateway, "opens")
    assert isinstance(raised, AgentFailed) and "ZeroDivisionError" in raised.text
    assert gateway.opened == both
    assert end_of(gateway, "opens_blocking") == AgentEnded(float(len("the asyncrl-1")))
    assert end_of(gateway, "Opens") == AgentEnded(1.0)
    assert gateway.opened == [*both, ("POST", "asyncrl-1"), ("DELETE", "asyncrl-1"), *both]


def test_none_is_for_the_verifier(gateway: FakeGateway) -> None:
    assert end_of(gateway, "nothing") == AgentEnded(None)


def test_an_environment(gateway: FakeGateway) -> None:
    gateway.replies = ["0.5", "-1", "2"]
    assert end_of(gateway, "Count") == AgentEnded(1.5)
    assert gateway.rewards == [(0.5, -1), (-1.0, -1), (2.0, -1)] and not gateway.failed
    first, second = {"role": "user", "content": "2 + 2 = 17"}, {"role": "user", "content": "turn 1"}
    assert gateway.asked[:2] == [[first], [first, {"role": "assistant", "content": "0.5"}, second]]
    assert len(gateway.asked[2]) == 5


@pytest.mark.parametrize(
    ("calls", "code", "reward"),
    [
        (2, "episode_full", -0.5),
        (1, "context_length_exceeded", 0.5),
        (0, "episode_full", None),
        (2, "refused", None),
    ],
)
def test_an_environment_ends_where_its_episode_is_as_long_as_it_may_be(
    gateway: FakeGateway, calls: int, code: str, reward: float | None
) -> None:
    gateway.replies, gateway.calls, gateway.full = ["0.5", "-1", "2"], calls, code
    end = end_of(gateway, "Count")
    assert end == AgentEnded(reward) if reward else isinstance(end, AgentFailed)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("float('nan')", "not finite"),
        ("-float('inf')", "not finite"),
        ("10**400", "too large"),
        ("1e300", "too large"),
        ("True", "not a number"),
        ("'1.0'", "not a number"),
        ("1j", "not a number"),
        ("[1.0]", "not a number"),
        ("{'right': True}", "not a number"),
        ("{'right': 1e38, 'brief': 1e38}", "too large"),
        ("{}", "not named"),
        ("{1: 1.0}", "not named"),
        ("{'': 1.0}", "not named"),
    ],
)
def test_what_is_no_reward_is_a_failure(gateway: FakeGateway, value: str, kind: str) -> None:
    end = end_of(gateway, "says", entry={"value": value})
    assert isinstance(end, AgentFailed) and end.kind == kind


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0), np.int64(1), Fraction(1)])
def test_numbers_of_any_kind_are_rewards(value: Any) -> None:
    assert as_reward(value) == 1.0 and as_outcome({"a": value}) == {"a": 1.0}


def test_what_is_too_large_to_be_trained_is_what_advantages_refuse() -> None:
    assert LARGEST == advantages.LARGEST == as_reward(LARGEST)


def test_what_raises_is_one_printable_line(gateway: FakeGateway) -> None:
    end = end_of(gateway, "raises")
    assert isinstance(end, AgentFailed) and end.kind == "raised"
    assert end.text.startswith(r"ValueError: a\x1b[2J b (line ") and "mine_to_play.py" in end.text
    left = end_of(gateway, "exits")
    assert isinstance(left, AgentFailed) and left.text.startswith("SystemExit: 3")


async def _with(gateway: FakeGateway, use: Any, **changes: Any) -> Any:
    facts = gateway.facts(**changes)
    async with GatewayClient(facts.base_url) as client:
        return await use(AgentEpisode(facts, client))


def test_a_result_is_computed_once(gateway: FakeGateway) -> None:
    computed = []

    async def search() -> Any:
        computed.append(1)
        await asyncio.sleep(0)
        return {"found": (1, None), 7: "é/?"}

    async def twice(episode: AgentEpisode) -> Any:
        return await asyncio.gather(*(episode.once("a/b ?é", search) for _ in range(2)))

    first = asyncio.run(_with(gateway, twice))
    again = asyncio.run(_with(gateway, twice, attempt=1))
    assert first == again == [{"found": [1, None], "7": "é/?"}] * 2
    assert computed == [1]


def test_a_result_that_raised_is_not_noted(gateway: FakeGateway) -> None:
    async def fails(episode: AgentEpisode) -> None:
        await episode.once("key", lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(_with(gateway, fails))
    assert not gateway.notes


@pytest.mark.parametrize("result", [math.nan, {1, 2}, b"bytes", object()])
def test_a_result_that_is_not_json_is_refused(gateway: FakeGateway, result: Any) -> None:
    with pytest.raises(TypeError, match=r"the result of once\('key'\) is not JSON"):
        asyncio.run(_with(gateway, lambda episode: episode.once("key", lambda: result)))
    assert not gateway.notes


@pytest.mark.parametrize("key", ["", "x" * 201, 7])
def test_keys_are_short_texts(gateway: FakeGateway, key: Any) -> None:
    with pytest.raises(ValueError, match="1 to 200 characters"):
        asyncio.run(_with(gateway, lambda episode: episode.once(key, dict)))


def test_rewards_take_their_own_key_and_a_call_that_is_there(gateway: FakeGateway) -> None:
    async def late(episode: AgentEpisode) -> None:
        await episode.reward(1.0, call=0)

    with pytest.raises(EpisodeError, match=r"there is no call 0\\x1b"):
        asyncio.run(_with(gateway, late))
    gateway.asked.append([])
    with pytest.raises(EpisodeError, match="not with this key"):
        asyncio.run(_with(gateway, late, reward_key="key-for-calls"))
    with pytest.raises(WrongReward, match="nan"):
        asyncio.run(_with(gateway, lambda episode: episode.reward(math.nan)))
    asyncio.run(_with(gateway, late))
    assert gateway.rewards == [(1.0, 0)]


def test_an_environment_says_which_calls_of_tools_failed(gateway: FakeGateway) -> None:
    gateway.replies = ["bad", "good"]
    assert end_of(gateway, "Tool") == AgentEnded(0.0)
    assert gateway.failed == [("search", -1)]
    assert gateway.roles == ["planner", "critic", "critic"], "and in which role the next ones are"


def test_failed_calls_are_named_and_take_the_key_for_rewards(gateway: FakeGateway) -> None:
    async def late(episode: AgentEpisode) -> None:
        await episode.failed("run", call=0)

    for tool in ("", "x" * 65, None):
        with pytest.raises(ValueError, match="1 to 64 characters"):
            asyncio.run(_with(gateway, lambda episode, tool=tool: episode.failed(tool)))
    with pytest.raises(TypeError, match="the number of a call"):
        asyncio.run(_with(gateway, lambda episode: episode.failed("run", True)))
    with pytest.raises(EpisodeError, match="not with this key"):
        asyncio.run(_with(gateway, late, reward_key="key-for-calls"))
    asyncio.run(_with(gateway, late))
    assert gateway.failed == [("run", 0)]


def test_a_gateway_that_is_gone(gateway: FakeGateway) -> None:
    gone = f"http://127.0.0.1:{closed_port()}/sessions/episode-3/v1"
    with pytest.raises(EpisodeError, match="cannot be reached"):
        asyncio.run(_with(gateway, lambda episode: episode.reward(1.0), base_url=gone))


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_program(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    text = (
        "import openai, os, json\n"
        "client = openai.OpenAI()\n"
        "said = client.chat.completions.create(model='policy', messages=[\n"
        "    {'role': 'user', 'content': os.environ['ASYNCRL_PROMPT']}])\n"
        "print('x' * 200_000)\n"
        "print(json.dumps({'reward': {'right': float(said.choices[0].message.content),\n"
        "    'seed': int(os.environ['ASYNCRL_SEED'])}}))\n"
    )
    gateway.replies = ["4"]
    assert end_of(gateway, program(text)) == AgentEnded({"right": 4.0, "seed": 17.0})
    assert '\n{"reward": {"right": 4.0,' in capsys.readouterr().out


def test_what_a_program_is_told(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "the user's own")  # the SDK warns of a second key
    out = tmp_path / "told"
    text = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
    assert end_of(gateway, program(text), attempt=2) == AgentEnded(None)
    told = json.loads(out.read_text())
    url = f"http://127.0.0.1:{gateway.port}"
    assert told["OPENAI_BASE_URL"] == f"{url}/sessions/episode-3/v1"
    assert told["ANTHROPIC_BASE_URL"] == f"{url}/sessions/episode-3"
    assert told["ANTHROPIC_API_KEY"] == told["OPENAI_API_KEY"]
    assert "ANTHROPIC_AUTH_TOKEN" not in told
    assert told["OPENAI_MODEL"] == told["ANTHROPIC_MODEL"] == "policy"
    assert told["OPENAI_AGENTS_DISABLE_TRACING"] == "1"  # it sends prompts and this key to OpenAI
    assert told["ASYNCRL_SESSION_URL"] == f"{url}/v1/sessions/episode-3"
    assert told["ASYNCRL_REWARD_KEY"] == REWARDS != told["OPENAI_API_KEY"]
    assert told["ASYNCRL_ATTEMPT"] == "2" and json.loads(told["ASYNCRL_ENTRY"])["answer"] == 4


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("print('{\"reward\": 1}'); raise SystemExit(7)", "exit", "exit code 7"),
        ("import os; os.abort()", "exit", "signal 6"),
        ("1 / 0", "exit", "ZeroDivisionError"),
        ('print(\'{"reward": "1"}\')', "not a number", "str"),
        ("print('{\"reward\": NaN}')", "not finite", "nan"),
    ],
)
def test_a_program_that_fails(gateway: FakeGateway, text: str, kind: str, says: str) -> None:
    end = end_of(gateway, program(text))
    assert isinstance(end, AgentFailed) and end.kind == kind and says in end.text


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("no_such_module:solve", "cannot be imported"),
        ("does_not_import:solve", "ZeroDivisionError"),
        ("mine_to_play:missing", "has no missing"),
        ("mine_to_play:number", "is a int"),
        ("mine_to_play:one", "cannot be called with a client and an episode"),
        ("mine_to_play:Bare", "without step"),
        ("mine_to_play:Wants", "needs arguments"),
        ("solve", "give the module:name"),
        ("python agent.py", 'or a program as a list of words, as in ["python", "agent.py"]'),
        ([], "empty command"),
        (["no-such-program"], "no such program"),
        ([sys.executable, "-u", "no_such.py", "x"], "'no_such.py', and there is no such file in /"),
    ],
)
def test_an_agent_that_cannot_be_had_is_one_sentence(run: str | list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent(run)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_users_agents_import_no_trio_and_no_torch() -> None:
    code = "import sys, asyncrl.agents.load_agent\n"
    code += "assert not {'torch', 'trio', 'transformers'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("run", "imports_openai"),
    [
        ("asyncrl.agents.examples.guess_the_number:Game", False),
        ("asyncrl.agents.examples.retry:solve", True),
    ],
)
def test_what_is_warm_imports_nothing_more_in_an_episode_and_has_no_thread(
    run: str, imports_openai: bool
) -> None:
    code = f"""
import asyncio, sys, threading
from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnded, played
from asyncrl.agents.load_agent import load_agent
from asyncrl.agents.warm import warm
from fake_gateway import fake_gateway
agent = load_agent({run!r})
with fake_gateway() as gateway:
    before, threads = {{*sys.modules}}, threading.active_count()
    warm({run!r})
    warmed = {{*sys.modules}}
    assert threading.active_count() == threads
    assert ("openai" in warmed) is {imports_openai} is bool(warmed - before)
    gateway.replies = ["8", "4"]
    facts = gateway.facts(entry={{"prompt": "Guess.", "answer": 4}})
    end = asyncio.run(played(agent, facts, Closing()))
    assert isinstance(end, AgentEnded), end
    print(sorted({{*sys.modules}} - warmed))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


# ------------------------------------------------------------------------------ bundled agents


def test_guess_the_number(gateway: FakeGateway) -> None:
    gateway.replies = ["8", "12!", "x", "11"]
    run = "asyncrl.agents.examples.guess_the_number:Game"
    entry = {"prompt": "Guess.", "answer": 11}
    assert end_of(gateway, run, entry=entry) == AgentEnded(1.0)
    told = [message["content"] for message in gateway.asked[-1] if message["role"] == "user"]
    assert told == ["Guess.", "9 to 16", "9 to 11", "9 to 11"]
    left = [16, 8, 3, 3, 0]
    turns = [math.log((1 + a) / (1 + b), 17) for a, b in pairwise(left)]
    assert [reward for reward, _ in gateway.rewards] == pytest.approx(turns)


def test_a_game_that_ends_without_the_number_earns_what_it_ruled_out() -> None:
    game = Game()
    game.reset({"prompt": "Guess.", "answer": 7, "largest": 7}, 0)
    steps = [game.step(guess) for guess in ("1", "1", "6")]
    assert [step.done for step in steps] == [False, False, True]  # as many as halving needs
    assert [step.text for step in steps] == ["2 to 7", "2 to 7", "7 to 7"]
    halvings = (math.log2(8 / 7), 0.0, math.log2(7 / 2))  # of eight, the last of which finds it
    assert [step.reward for step in steps] == pytest.approx([each / 3 for each in halvings])
    with pytest.raises(ValueError, match="20 is not one of the numbers 1 to 16"):
        game.reset({"prompt": "Guess.", "answer": 20}, 0)


@given(st.integers(2, 100), st.data())
def test_a_game_that_finds_the_number_earns_1(largest: int, data: st.DataObject) -> None:
    game, number = Game(), data.draw(st.integers(1, largest))
    game.reset({"prompt": "Guess.", "answer": number, "largest": largest}, 0)
    earned = 0.0
    for guess in data.draw(st.lists(st.integers(-3, 103), max_size=largest.bit_length() - 1)):
        earned += game.step(str(guess)).reward
        if guess == number:
            break
    else:
        earned += game.step(str(number)).reward
    assert earned == 1.0


def test_the_calculator(gateway: FakeGateway) -> None:
    function = {"name": "add", "arguments": '{"a": 2, "b": 2}'}
    call = {"id": "c1", "type": "function", "function": function}
    gateway.replies = [{"role": "assistant", "content": None, "tool_calls": [call]}, "4"]
    assert end_of(gateway, "asyncrl.agents.examples.calculator:solve") == AgentEnded(None)
    assert gateway.asked[1][2] == {"role": "tool", "tool_call_id": "c1", "content": "4"}
    assert gateway.asked[1][1]["tool_calls"][0]["function"] == function


@pytest.mark.parametrize(("replies", "calls"), [(["3", "4"], 2), (["3"], 3)])
def test_retry(gateway: FakeGateway, replies: list[str | dict[str, Any]], calls: int) -> None:
    gateway.replies = replies
    assert end_of(gateway, "asyncrl.agents.examples.retry:solve") == AgentEnded(None)
    assert len(gateway.asked) == calls


def test_the_bundled_model_chats_as_it_was_taught(tmp_path: Path) -> None:
    """A first message is the prompt of a single turn, and a reply comes back as it was sampled."""
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path, chat=True)
    assert tokenizer.encode("2 + 2 =") == list(b"2 + 2 =\n")
    assert tokenizer.encode("2 + 2 =\n") == list(b"2 + 2 =\n"), "as agents are given prompts"
    chat = [
        {"role": "user", "content": "2 + 2 ="},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "wrong, try again"},
    ]
    ids = tokenizer.ids(tokenizer.render(chat))
    assert ids == [*b"2 + 2 =\n5", END_ID, *b"wrong, try again\n"]
    assert Tokenizer(tmp_path).encode("2 + 2 =") == list(b"2 + 2 ="), "without task.chat"


def test_the_bundled_models_template_says_tools_and_their_calls(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    chat = [
        {"role": "system", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "4"},
    ]
    said = Tokenizer(tmp_path, chat=True).render(chat, [{"name": "add"}])
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    assert said == f'{{"name": "add"}}\nAdd.\n{one}\n{one}<|end|>4\n'
