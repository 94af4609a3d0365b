"""The gateway over HTTP, in virtual time, before an engine that says what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
import trio
import trio.lowlevel
from gateway_world import (
    CONTEXT,
    KEY,
    MODEL,
    Exam,
    Says,
    chat,
    events,
    ids,
    opened,
    say,
    scripted,
    tokens,
    write_chat,
)
from trio.testing import MockClock

from actors.reporting import Reporter
from actors.session_file import SessionFile, write_sessions
from asyncrl.ipc.messages import NoVerdict, Scored, Span
from asyncrl.ipc.waits import Waits
from asyncrl.sessions.finished import FinishedSession
from asyncrl.sessions.recorder import Bounds
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.bundled import END_ID, VOCABULARY, write_tokenizer

CHAT, TEXT = "/sessions/s1/v1/chat/completions", "/sessions/s1/v1/completions"
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}},
}
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


async def reward(
    client: httpx2.AsyncClient, value: Any = 1.0, session: str = "s1"
) -> httpx2.Response:
    return await client.post(f"/v1/sessions/{session}/reward", json={"reward": value})


def refused(response: httpx2.Response, status: int, code: str) -> str:
    """The sentence of a refusal in OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    assert "Traceback" not in response.text and len(error["message"]) > 10
    return str(error["message"])


async def test_a_call_is_answered_and_recorded(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("héllo")))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(3, None)
        response = await client.post(CHAT, json=chat("hi", seed=1, logprobs=True))
        assert (
            response.status_code == 200
            and response.headers["x-session"] == "s1"
            and response.headers["x-ignored"] == "seed"
        )
        body = response.json()
        (choice,) = body["choices"]
        assert (
            choice["message"] == {"role": "assistant", "content": "héllo", "refusal": None}
            and choice["finish_reason"] == "stop"
        )
        assert [token["logprob"] for token in choice["logprobs"]["content"]] == [
            -(i + 1) / 8 for i in range(7)
        ]
        assert body["usage"] == {
            "prompt_tokens": len(ids("[user]hi$[assistant]")),
            "completion_tokens": 7,
            "total_tokens": 27,
        }
        assert (await reward(client, 0.25)).json() == {"session": "s1", "reward": 0.25}
        finished = await gateway.fetch()
    (leaf,) = finished.leaves
    assert tokens(leaf.ids) == ids("[user]hi$[assistant]héllo$")
    assert list(leaf.mask) == [0] * 20 + [1] * 7
    assert np.frombuffer(leaf.behaviour, np.float32).tolist() == [0.0] * 20 + [
        -(i + 1) / 8 for i in range(7)
    ]
    assert leaf.spans == (Span(3, 20, 27),)
    assert (finished.reward, finished.end, finished.calls, finished.meetings) == (
        0.25,
        "rewarded",
        1,
        {"opened": 1},
    )


@pytest.mark.parametrize("kind", [CHAT, TEXT])
async def test_a_stream_is_the_answer_in_parts(
    tokenizer: Tokenizer, virtual: MockClock, kind: str
) -> None:
    asked: dict[str, Any] = (
        chat("hi", tools=[ADD], logprobs=True)
        if kind == CHAT
        else {"model": MODEL, "prompt": "hi", "logprobs": 0}
    )
    engine = scripted(Says(say(f"é😀 {CALL}{CALL}")), chunk_tokens=1)
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        whole = (await client.post(kind, json=asked)).json()
        response = await client.post(
            kind, json={**asked, "stream": True, "stream_options": {"include_usage": True}}
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = events(response.text)
        await reward(client)
        finished = await gateway.fetch()
    assert parts[-1]["usage"] == whole["usage"] and parts[-1]["choices"] == []
    choices = [part["choices"][0] for part in parts[:-1]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
        whole["choices"][0]["finish_reason"]
    ]
    (expected,) = whole["choices"]
    if kind == TEXT:
        assert (
            "".join(choice["text"] for choice in choices) == expected["text"] == f"é😀 {CALL}{CALL}"
        )
        assert [p for c in choices for p in c["logprobs"]["token_logprobs"]] == expected[
            "logprobs"
        ]["token_logprobs"]
    else:
        assert (
            "".join(choice["delta"].get("content", "") for choice in choices)
            == expected["message"]["content"]
            == "é😀 I add.I add."
        )
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        assert [call["index"] for call in calls] == [0, 1] and len(
            {call["id"] for call in calls}
        ) == 2
        assert [call["function"] for call in calls] == [
            call["function"] for call in expected["message"]["tool_calls"]
        ]
        assert expected["finish_reason"] == "tool_calls"
        scores = [
            token
            for choice in choices
            if choice["logprobs"]
            for token in choice["logprobs"]["content"]
        ]
        assert scores == expected["logprobs"]["content"]
    assert finished.meetings == {"opened": 1, "retried": 1}
    assert len(finished.leaves) == 2 and finished.leaves[0] == finished.leaves[1]


async def test_two_turns_with_a_tool_are_one_leaf(tokenizer: Tokenizer, virtual: MockClock) -> None:
    says = Says(say(CALL), say("3"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        first = (await client.post(CHAT, json=chat("1+2?", tools=[ADD]))).json()["choices"][0]
        (call,) = first["message"]["tool_calls"]
        assert (
            call["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
            and first["message"]["content"] == "I add."
        )
        result = {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": [{"type": "text", "text": "3"}],
        }
        second = await client.post(CHAT, json=chat("1+2?", first["message"], result, tools=[ADD]))
        assert second.json()["choices"][0]["message"]["content"] == "3"
        await reward(client)
        finished = await gateway.fetch()
    assert says.asked()[1] == f"{says.asked()[0]}{CALL}<|end|>[tool]3<|end|>[assistant]"
    assert finished.meetings == {"opened": 1, "continued": 1}
    (leaf,) = finished.leaves
    assert leaf.trained == len(CALL) + 1 + len("3") + 1


async def test_pain_18_what_was_sampled_is_the_context_and_no_second_tokenization(
    tmp_path: Path, virtual: MockClock
) -> None:
    """The tokenizer knows `ab` as one id, and the model sampled it as two."""
    write_tokenizer(tmp_path, ["ab"])
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.ids("ab") != ids("ab")
    says = Says(say("ab"), say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        await client.post(TEXT, json={"model": MODEL, "prompt": "q:"})
        await client.post(TEXT, json={"model": MODEL, "prompt": "q:ab, ab"})
        await client.post(TEXT, json={"model": MODEL, "prompt": "q:a, ab"})
        await reward(client)
        finished = await gateway.fetch()
    ab = tokenizer.ids("ab")
    assert says.requests[1].ids.tolist() == [*ids("q:ab, "), *ab]
    assert says.requests[2].ids.tolist() == [*ids("q:a, "), *ab]
    assert finished.meetings == {"opened": 1, "rewritten": 2}
    assert [leaf.trained for leaf in finished.leaves] == [3, 2, 2]


async def test_a_reply_that_came_back_otherwise_is_a_branch(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("one"), say("two"), say("three")))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi"))
        await client.post(CHAT, json=chat("hi", {"role": "assistant", "content": "only"}, "go on"))
        await client.post(CHAT, json=chat("hi", {"role": "assistant", "content": "one"}, "go on"))
        await reward(client)
        finished = await gateway.fetch()
    assert finished.meetings == {"opened": 1, "rewritten": 1, "continued": 1}
    assert [leaf.trained for leaf in finished.leaves] == [4 + 6, 4]
    assert tokens(finished.leaves[1].ids) == ids(
        "[user]hi$[assistant]only$[user]go on$[assistant]two$"
    )


async def test_a_stop_string_ends_the_answer_and_what_follows_is_counted(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("one two three four", ends="hang")), chunk_tokens=10)
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json=chat("hi", stop=[" tw", "zzz"]))
        (choice,) = response.json()["choices"]
        assert choice["message"]["content"] == "one" and choice["finish_reason"] == "stop"
        await reward(client)
        finished = await gateway.fetch()
    (leaf,) = finished.leaves
    assert tokens(leaf.ids)[-leaf.trained :] == ids("one tw")
    assert finished.sampled == 6 and finished.unused == 4


async def test_length_ends_an_answer(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("0123456789")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for name in ("max_tokens", "max_completion_tokens"):
            (choice,) = (await client.post(CHAT, json=chat("hi", **{name: 4}))).json()["choices"]
            assert choice["finish_reason"] == "length" and choice["message"]["content"] == "0123"


async def test_a_publication_during_a_call_is_two_spans(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123456789", pace=1.0)))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                await trio.sleep(5.5)
                await engine.load(1, None)

            nursery.start_soon(publish)
            assert (await client.post(CHAT, json=chat("hi"))).json()["choices"][0]["message"][
                "content"
            ] == "0123456789"
        await reward(client)
        (leaf,) = (await gateway.fetch()).leaves
    assert leaf.spans == (Span(0, 20, 25), Span(1, 25, 31))


async def test_the_key_is_asked_for_before_anything(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for header in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer \u00e9"):
            for method, path in (
                ("POST", CHAT),
                ("GET", "/v1/models"),
                ("POST", "/v1/sessions/s/reward"),
                ("DELETE", "/v1/sessions/s"),
            ):
                response = await client.request(
                    method, path, content=b"{", headers={"authorization": header.encode()}
                )  # type: ignore[dict-item]
                refused(response, 401, "invalid_api_key")
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == MODEL
        assert (await client.get("/sessions/a/v1/models")).status_code == 200


async def test_ready_says_whether_calls_are_answered(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (gateway, client):
        assert (await client.get("/ready", headers={"authorization": ""})).status_code == 503
        response = await client.post(CHAT, json=chat("hi"))
        refused(response, 503, "not_ready")
        assert response.headers["retry-after"] == "1"
        await engine.load(0, None)
        assert (await client.get("/ready")).status_code == 200
        await gateway.drain(1.0)
        assert (await client.get("/ready")).status_code == 503


async def test_a_session_is_named_in_the_path_or_in_a_header(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        assert "base URL" in refused(
            await client.post("/v1/chat/completions", json=chat("hi")), 400, "no_session"
        )
        assert (
            await client.post("/v1/chat/completions", json=chat("hi"), headers={"x-session": "h"})
        ).headers["x-session"] == "h"
        refused(
            await client.post(CHAT, json=chat("hi"), headers={"x-session": "h"}),
            400,
            "two_sessions",
        )
        refused(
            await client.post("/sessions/a%20b/v1/chat/completions", json=chat("hi")),
            400,
            "session_name",
        )
        refused(
            await client.post(
                "/v1/chat/completions", json=chat("hi"), headers={"x-session": "a" * 65}
            ),
            400,
            "session_name",
        )


async def test_rewards(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        refused(await reward(client), 404, "unknown_session")
        await client.post(CHAT, json=chat("hi"))
        for body in (
            b'{"reward": NaN}',
            b'{"reward": 1e999}',
            b'{"reward": null}',
            b"{}",
            b"[]",
            b"",
            b'{"reward": 1, "x": 2}',
            b'{"reward": "1"}',
            b'{"prompt_index": -1}',
            b'{"prompt_index": 1.5}',
        ):
            response = await client.post("/v1/sessions/s1/reward", content=body)
            assert response.status_code == 400 and response.json()["error"]["message"], body
        assert (await reward(client, -2)).status_code == 200
        assert "rewarded" in refused(await reward(client), 410, "session_ended")
        refused(await client.post(CHAT, json=chat("hi")), 410, "session_ended")
        await client.post("/sessions/s2/v1/chat/completions", json=chat("hi"))
        assert (await client.delete("/v1/sessions/s2")).status_code == 200
        refused(await client.delete("/v1/sessions/s2"), 410, "session_ended")
        ends = [await gateway.fetch() for _ in range(2)]
    assert [(f.session, f.end, f.reward) for f in ends] == [
        ("s1", "rewarded", -2.0),
        ("s2", "given_up", None),
    ]


async def test_a_reward_is_left_to_the_task(tokenizer: Tokenizer, virtual: MockClock) -> None:
    """It judges the tokens that were sampled last, once the gateway knows of any; without a verdict
    the session goes on."""
    engine, exam = (
        scripted(Says(say("four"), say("five"))),
        Exam(NoVerdict("timeout"), Scored(0.75)),
    )
    async with opened(engine, tokenizer, verifier=exam) as (gateway, client):
        await engine.load(0, None)
        assert (await client.get("/v1/prompts/2")).json() == {"prompt_index": 2, "prompt": "three?"}
        for place in ("3", "-1", "1.5", "x", "9" * 5000):
            refused(await client.get(f"/v1/prompts/{place}"), 404, "unknown_prompt")
            refused(
                await client.get(f"/v1/prompts/{place}", headers={"authorization": "none"}),
                401,
                "invalid_api_key",
            )
        left = partial(client.post, "/v1/sessions/s1/reward", json={"prompt_index": 2})
        refused(await left(), 404, "unknown_session")
        await client.post(CHAT, json=chat("three?"))
        assert "timeout" in refused(await left(), 422, "no_verdict")
        await client.post(
            CHAT, json=chat("three?", {"role": "assistant", "content": "four"}, "sure?")
        )
        assert (await left()).json() == {"session": "s1", "reward": 0.75}
        refused(await left(), 410, "session_ended")
        finished = await gateway.fetch()
    assert exam.judged == [(2, ids("four$")), (2, ids("five$"))]
    assert exam.finishes == ["stop", "stop"]
    assert (finished.end, finished.reward, finished.prompt_index, finished.calls) == (
        "rewarded",
        0.75,
        2,
        2,
    )


async def test_what_is_judged_is_the_session_as_it_stands(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """Its last reply that came to its end; no call runs then or begins, and it is not idle."""
    engine, exam = scripted(Says(say("no", pace=1.0), say("yes"))), Exam(Scored(1.0), seconds=40.0)
    async with opened(engine, tokenizer, bounds=Bounds(idle_s=30.0), verifier=exam) as (
        gateway,
        client,
    ):
        await engine.load(0, None)
        judged = partial(client.post, "/v1/sessions/s1/reward", json={"prompt_index": 0})
        with trio.move_on_after(1.5):
            await client.post(CHAT, json=chat("hi"))
        assert "no reply that came to its end" in refused(await judged(), 409, "not_now"), (
            "its only call was left"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.post, CHAT, json=chat("again", max_tokens=2)))
            await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert "running call" in refused(await judged(), 409, "not_now")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(judged)
            await trio.sleep(35)
            assert "is being judged" in refused(
                await client.post(CHAT, json=chat("hi")), 409, "not_now"
            )
            assert "is being judged" in refused(await judged(), 409, "not_now")
        finished = await gateway.fetch()
    assert exam.judged == [(0, ids("ye"))] and (finished.end, finished.reward) == ("rewarded", 1.0)


async def test_every_session_is_written_when_the_door_closes(
    tokenizer: Tokenizer, virtual: MockClock, tmp_path: Path
) -> None:
    """However many they are, and although the writer is cancelled amid them."""
    engine, path = scripted(Says(say("x"))), tmp_path / "sessions.jsonl"
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        for number in range(30):
            await client.post(
                f"/sessions/s{number}/v1/completions", json={"model": MODEL, "prompt": "hi"}
            )
        async with trio.open_nursery() as writing:
            file, waits = SessionFile(path, 1 << 30), Waits()
            writing.start_soon(write_sessions, gateway, file, Reporter(waits), waits, trio.Event())
            await gateway.drain(0.0)
            writing.cancel_scope.cancel()
    assert {
        msgspec.json.decode(line, type=FinishedSession).session
        for line in path.read_bytes().splitlines()
    } == {f"s{n}" for n in range(30)}


async def test_a_door_that_closes_waits_for_nobody_outside(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """Not for verdicts, and not for a request that is still on its way in."""
    engine, exam = scripted(Says(say("x"))), Exam(Scored(1.0), seconds=200.0)
    arrived = trio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b'{"model": "policy", "prompt": "'
        await arrived.wait()
        yield b'x"}'

    async def expect(status: int, send: Callable[[], Awaitable[httpx2.Response]]) -> None:
        refused(await send(), status, "not_ready")

    async with opened(engine, tokenizer, verifier=exam) as (gateway, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                expect,
                503,
                partial(client.post, "/v1/sessions/s1/reward", json={"prompt_index": 0}),
            )
            nursery.start_soon(
                expect,
                503,
                partial(client.post, "/sessions/s2/v1/completions", content=slow_body()),
            )
            await trio.sleep(1)
            begun = trio.current_time()
            nursery.start_soon(gateway.drain, 0.0)
            await trio.sleep(1)
            arrived.set()
        finished = await gateway.fetch()
    assert trio.current_time() - begun < 2 and (finished.session, finished.end) == ("s1", "drained")


async def test_a_session_that_ends_while_it_is_judged_keeps_its_end(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine, exam = scripted(Says(say("x"))), Exam(Scored(1.0), Scored(1.0), seconds=20.0)
    async with opened(engine, tokenizer, verifier=exam, call_s=30.0) as (gateway, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi"))

        async def judge() -> None:
            refused(
                await client.post("/v1/sessions/s1/reward", json={"prompt_index": 0}),
                410,
                "session_ended",
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(judge)
            await trio.sleep(1)
            assert (
                await client.post(
                    "/v1/sessions/s1/reward", json={"reward": -1.0, "prompt_index": 0}
                )
            ).status_code == 200
        finished = await gateway.fetch()
        assert (finished.reward, finished.prompt_index) == (-1.0, 0)
        await client.post("/sessions/s2/v1/chat/completions", json=chat("hi"))
        exam.seconds = 31.0
        assert "verdict" in refused(
            await client.post("/v1/sessions/s2/reward", json={"prompt_index": 0}), 504, "too_slow"
        )


async def test_no_task_judges_where_none_is(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi"))
        assert "no task" in refused(
            await client.post("/v1/sessions/s1/reward", json={"prompt_index": 0}), 400, "no_task"
        )
        refused(await client.get("/v1/prompts/0"), 400, "no_task")
        assert (await reward(client)).status_code == 200


async def test_an_idle_session_expires(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer, bounds=Bounds(idle_s=30.0)) as (gateway, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi"))
        begun = trio.current_time()
        finished = await gateway.fetch()
        assert (
            finished.end == "expired"
            and finished.sampled == 2
            and trio.current_time() - begun == pytest.approx(30, abs=1e-6)
        )
        assert "idle for 30 s" in refused(await reward(client), 410, "session_ended")


async def test_a_reward_ends_a_running_call_and_has_its_tokens(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123456789", pace=1.0)), chunk_tokens=2)
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        async with trio.open_nursery() as nursery:

            async def call(stream: bool) -> None:
                response = await client.post(CHAT, json=chat("hi", stream=stream))
                if stream:
                    last = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))
                    assert last["error"]["code"] == "session_ended"
                else:
                    refused(response, 410, "session_ended")

            nursery.start_soon(call, False)
            nursery.start_soon(call, True)
            await trio.sleep(5.5)
            assert (await reward(client)).status_code == 200
        finished = await gateway.fetch()
    assert finished.sampled == 10 and finished.calls == 2


async def test_a_call_that_takes_too_long_is_interrupted(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123456789", pace=1.0)))
    async with opened(engine, tokenizer, call_s=3.5) as (gateway, client):
        await engine.load(0, None)
        refused(await client.post(CHAT, json=chat("hi")), 504, "too_slow")
        await reward(client)
        assert (await gateway.fetch()).sampled == 3


async def test_an_engine_that_does_not_hear_is_said(
    tokenizer: Tokenizer, virtual: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted(Says(say("0123", pace=1.0, ends="hang")))
    monkeypatch.setattr(engine, "interrupt", lambda _: None)
    async with opened(engine, tokenizer, call_s=10.0) as (gateway, client):
        await engine.load(0, None)
        assert "waited 70 s for tokens" in refused(
            await client.post(CHAT, json=chat("hi")), 504, "engine_silent"
        )
        await reward(client)
        assert (await gateway.fetch()).sampled == 4


@pytest.mark.parametrize(
    ("token", "behaviour"), [(-1, -1.0), (VOCABULARY, -1.0), (65, np.nan), (65, -np.inf)]
)
async def test_an_engine_that_cannot_be_believed_is_said(
    tokenizer: Tokenizer, virtual: MockClock, token: int, behaviour: float
) -> None:
    whole = say("0123456789")
    whole.ids[5], whole.behaviour[5] = token, behaviour
    engine = scripted(Says(whole))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        refused(await client.post(CHAT, json=chat("hi")), 502, "bad_engine")
        await reward(client)
        finished = await gateway.fetch()
    (leaf,) = finished.leaves
    assert finished.sampled == leaf.trained == 4 and tokens(leaf.ids)[-4:] == ids("0123"), (
        "the chunk before is good"
    )


async def test_as_many_calls_as_may_be(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x", pace=1.0)))
    async with opened(engine, tokenizer, calls=2) as (_, client):
        await engine.load(0, None)
        responses: list[httpx2.Response] = []

        async def call(name: int) -> None:
            responses.append(
                await client.post(f"/sessions/s{name}/v1/chat/completions", json=chat("hi"))
            )

        async with trio.open_nursery() as nursery:
            for name in range(5):
                nursery.start_soon(call, name)
        assert sorted(response.status_code for response in responses) == [200, 200, 429, 429, 429]
        assert all(
            response.headers["retry-after"] == "1"
            for response in responses
            if response.status_code == 429
        )
        assert (await client.post(CHAT, json=chat("hi"))).status_code == 200


async def test_bounds_of_sessions(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer, bounds=Bounds(sessions=1, calls=1, tokens=100)) as (
        _,
        client,
    ):
        await engine.load(0, None)
        refused(await client.post(CHAT, json=chat("hi")), 400, "session_full")
        assert (await client.post(CHAT, json=chat("hi", max_tokens=4))).status_code == 200
        refused(await client.post(CHAT, json=chat("hi", max_tokens=4)), 400, "session_full")
        refused(
            await client.post("/sessions/s2/v1/chat/completions", json=chat("hi", max_tokens=4)),
            429,
            "too_many_sessions",
        )


async def test_a_drain_lets_calls_end_and_then_interrupts(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123", pace=1.0), say("0123456789", pace=1.0)))
    async with opened(engine, tokenizer) as (gateway, client):
        await engine.load(0, None)
        responses: list[httpx2.Response] = []

        async def call(name: str) -> None:
            responses.append(
                await client.post(f"/sessions/{name}/v1/chat/completions", json=chat("hi"))
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "short")
            await trio.sleep(0.1)
            nursery.start_soon(call, "long")
            await trio.sleep(0.1)
            await gateway.drain(6.0)
            refused(await client.post(CHAT, json=chat("hi")), 503, "not_ready")
        assert responses[0].status_code == 200
        refused(responses[1], 503, "interrupted")
        ends = [await gateway.fetch() for _ in range(2)]
    assert [(f.session, f.end, f.sampled) for f in ends] == [
        ("short", "drained", 5),
        ("long", "drained", 6),
    ]


async def test_ids_as_a_prompt_are_the_context(tokenizer: Tokenizer, virtual: MockClock) -> None:
    says = Says(say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        body = (
            await client.post(
                TEXT, json={"model": MODEL, "prompt": [1, 2, END_ID], "temperature": 0.5}
            )
        ).json()
        assert body["object"] == "text_completion" and body["choices"][0]["text"] == "x"
        assert (
            await client.post(TEXT, json={"model": MODEL, "prompt": ["one"]})
        ).status_code == 200
        for prompt in ([1, 260], [3_000_000_000], [-1], [], [1, "a"], ["a", "b"], "", [[1]]):
            response = await client.post(TEXT, json={"model": MODEL, "prompt": prompt})
            assert response.status_code == 400 and response.json()["error"]["message"], prompt
        refused(
            await client.post(TEXT, json={"model": MODEL, "prompt": [1] * CONTEXT}),
            400,
            "context_length_exceeded",
        )
        refused(
            await client.post(TEXT, json={"model": MODEL, "prompt": "a", "max_tokens": CONTEXT}),
            400,
            "context_length_exceeded",
        )
    assert says.requests[0].ids.tolist() == [1, 2, END_ID] and says.requests[0].temperature == 0.5


async def test_an_engine_that_fails_is_no_traceback(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)

        def submit(_: object) -> None:
            raise RuntimeError("secret/path")

        monkeypatch.setattr(engine, "submit", submit)
        assert "secret" not in refused(
            await client.post(CHAT, json=chat("hi")), 500, "internal_error"
        )
