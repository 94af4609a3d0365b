"""The lean client of the gateway, against a server that says and closes what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncrl.agents.agent_episode import EpisodeError, EpisodeFacts
from asyncrl.agents.environments import Step, play
from asyncrl.agents.gateway_client import BODY_BYTES, GatewayAnswer, GatewayClient, GatewayLost
from asyncrl.agents.model_call import RETRIES, EpisodeFull, reply_to

ASKS_S = 20.0


def said(status: int, body: Any, *lines: str) -> bytes:
    """An answer, with lines of its head besides."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} OK", f"content-length: {len(text)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + text


CHAT = said(200, {"choices": [{"message": {"content": "seven"}}]})
BUSY = said(503, {"error": {"message": "behind"}}, "retry-after: 0")
CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"
FULL = said(422, {"error": {"message": "full", "code": "episode_full"}})


class Server:
    """Gives each request the next of `answers`. It closes the connection after those that are
    in `closes`, and does not answer None. `asked` are the requests, each with the number of its
    connection."""

    def __init__(self, answers: list[bytes | None], closes: set[int]) -> None:
        self.answers, self.closes = answers, closes
        self.asked: list[tuple[int, str, Any]] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length: ")[2].split("\r\n")[0])
                text = await reader.readexactly(size)
                at = len(self.asked)
                self.asked.append((number, head.split("\r\n")[0], json.loads(text or b"null")))
                if (answer := self.answers[at]) is not None:
                    writer.write(answer)
                if at in self.closes:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


@asynccontextmanager
async def served(
    *answers: bytes | None, closes: tuple[int, ...] = ()
) -> AsyncIterator[tuple[Server, GatewayClient, EpisodeFacts]]:
    server = Server(list(answers), {*closes})
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/sessions/one/v1"
        facts = EpisodeFacts("", {}, 0, 0, 0, url, "calls", "rewards")
        async with GatewayClient(url) as client:
            yield server, client, facts


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), ASKS_S))

    run.__name__ = test.__name__
    return run


async def ask(
    client: GatewayClient, body: Any = None, within_s: float | None = ASKS_S
) -> GatewayAnswer:
    return await client.ask("POST", "/here", "calls", body, within_s=within_s)


@in_loop
async def test_questions_share_a_connection_and_answers_are_theirs() -> None:
    numbers = range(6)
    async with served(*(said(200, {"n": n}) for n in numbers)) as (server, client, _):
        answers = await asyncio.gather(*(ask(client, n) for n in numbers))
    assert [answer.body["n"] for answer in answers] == [n for _, _, n in server.asked]
    assert server.connections == 1 and server.asked[0][1] == "post /here http/1.1"


@in_loop
async def test_a_connection_that_the_gateway_closed_meanwhile_is_opened_again() -> None:
    async with served(said(200, {}), said(200, {"n": 1}), closes=(0,)) as (server, client, _):
        await ask(client)
        await asyncio.sleep(0.05)  # the end of a real socket is on its way
        assert (await ask(client)).body == {"n": 1}
    assert [number for number, *_ in server.asked] == [0, 1]


@in_loop
async def test_a_gateway_that_says_it_closes_is_not_asked_again_on_that_connection() -> None:
    last = said(200, {}, "connection: close")
    async with served(last, said(404, {"error": {"message": "no"}})) as (server, client, _):
        await ask(client)
        answer = await ask(client)
    assert (answer.good, answer.error) == (False, {"message": "no"})
    assert [number for number, *_ in server.asked] == [0, 1]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (CUT, "not complete"),
        (b"", "not complete"),
        (b"nonsense\r\n\r\n", "not complete"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2**17, "not complete"),
    ],
)
def test_half_an_answer_is_none_and_the_next_question_gets_its_own(
    answer: bytes, says: str
) -> None:
    async def test() -> None:
        async with served(answer, said(200, {"n": 1}), closes=(0,)) as (_, client, _facts):
            with pytest.raises(GatewayLost, match=says):
                await ask(client)
            assert (await ask(client)).body == {"n": 1}

    in_loop(test)()


@in_loop
async def test_an_answer_is_bounded() -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES + 1}\r\n\r\n".encode()
    async with served(head + b" " * (BODY_BYTES + 1)) as (_, client, _facts):
        with pytest.raises(GatewayLost, match="longer than"):
            await ask(client)


@in_loop
async def test_a_late_answer_is_not_the_next_ones() -> None:
    async with served(None, said(200, {"n": 1})) as (server, client, _):
        with pytest.raises(TimeoutError):
            await ask(client, within_s=0.05)
        assert (await ask(client)).body == {"n": 1}
    assert server.connections == 2


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"[" * 100_000])
def test_a_body_that_is_no_object_is_an_empty_one(body: bytes) -> None:
    async def test() -> None:
        async with served(said(500, body)) as (_, client, _facts):
            assert (await ask(client))[::2] == (500, {})

    in_loop(test)()


@in_loop
async def test_a_call_is_asked_again_where_the_gateway_is_busy_or_gone() -> None:
    async with served(BUSY, CUT, CHAT, closes=(1,)) as (server, client, facts):
        assert await reply_to([{"role": "user", "content": "x"}], facts, client) == "seven"
    (_, line, body), *others = server.asked
    assert line == "post /sessions/one/v1/chat/completions http/1.1"
    assert body == {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
    assert [again for *_, again in others] == [body, body]


class Thinking:
    """An environment of one turn, which reads special tokens."""

    skip_special_tokens = False

    def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        return "x"

    def step(self, reply: str) -> Step:
        return Step("", 1.0, done=True)


@in_loop
async def test_an_environment_asks_for_special_tokens() -> None:
    async with served(CHAT, said(200, {})) as (server, _client, facts):
        assert await play(Thinking(), facts) == 1.0
    assert server.asked[0][2] == {
        "model": "policy",
        "messages": [{"role": "user", "content": "x"}],
        "skip_special_tokens": False,
    }


@pytest.mark.parametrize(
    ("answers", "kind", "says"),
    [
        ([BUSY] * (RETRIES + 1), EpisodeError, "refused a call: behind"),
        ([FULL], EpisodeFull, "refused a call: full"),
        ([said(400, {"error": {"message": "a\x1b"}})], EpisodeError, r"a\\x1b"),
        ([said(404, b"")], EpisodeError, "status 404"),
        ([said(200, {"choices": []})], EpisodeError, "no reply"),
        ([said(200, {"choices": [{"message": None}]})], EpisodeError, "no reply"),
    ],
)
def test_a_call_that_is_refused_says_why(
    answers: list[bytes], kind: type[EpisodeError], says: str
) -> None:
    async def test() -> None:
        async with served(*answers) as (server, client, facts):
            with pytest.raises(kind, match=says):
                await reply_to([], facts, client)
        assert len(server.asked) == len(answers)

    in_loop(test)()


def test_an_url_without_a_host_is_refused() -> None:
    for url in ("https://host/v1", "/sessions/one/v1"):
        with pytest.raises(ValueError, match="begins with http"):
            GatewayClient(url)
