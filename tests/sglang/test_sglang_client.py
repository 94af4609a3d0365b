"""The client against servers that misbehave: every failure has a name, and every wait an end. (What
a real server does is in `test_sglang_hazards`.)"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.engines.servers import server_types
from asyncrl.engines.servers.errors import (
    Misread,
    RequestRefused,
    ServerError,
    ServerGone,
)
from asyncrl.engines.servers.server_types import Garbled, StreamEvent, StreamEvents, largest_event
from asyncrl.engines.sglang.http_types import SglangIncrements
from asyncrl.engines.sglang.sglang_client import SglangClient

URL = "http://fake:1"
RID = "0" * 32


class Body(httpx2.AsyncByteStream):
    def __init__(self, parts: Callable[[], AsyncIterator[bytes]]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts()


def answering(
    status: int, body: bytes | Callable[[], AsyncIterator[bytes]], asked: list[Any] | None = None
) -> httpx2.MockTransport:
    async def handle(request: httpx2.Request) -> httpx2.Response:
        if asked is not None:
            asked.append((request.url.path, json.loads(await request.aread() or b"null")))
        return (
            httpx2.Response(status, stream=Body(body))
            if callable(body)
            else httpx2.Response(status, content=body)
        )

    return httpx2.MockTransport(handle)


def event(ids: list[int], done: int, *, finish: dict[str, Any] | None = None, **meta: Any) -> bytes:
    entries = [[-float(i), i, None] for i in ids]
    head = {
        "id": RID,
        "finish_reason": finish,
        "completion_tokens": done,
        "weight_version": "3",
        "output_token_logprobs": entries,
    }
    return b"data: " + json.dumps({"output_ids": ids, "meta_info": head | meta}).encode() + b"\n\n"


async def stream(transport: httpx2.AsyncBaseTransport, **settings: Any) -> list[StreamEvent]:
    async with SglangClient.open(URL, transport=transport, **settings) as client:
        return [
            e
            async for e in client.generate(
                RID, np.array([1, 2], np.int32), max_new_tokens=9, temperature=1.0
            )
        ]


async def test_images_that_a_server_reads_as_other_ids_are_an_error() -> None:
    asked = list[Any]()
    for read in (5, 6):
        sent = event([7], 1, finish={"type": "stop"}, prompt_tokens=read)
        transport = answering(200, sent, asked)
        async with SglangClient.open(URL, transport=transport) as client:
            stream = client.generate(
                RID, np.array([1, 2], np.int32), max_new_tokens=9, temperature=1.0,
                images=["aGk="], expanded=5,
            )  # fmt: skip
            if read == 5:
                assert [e.ids.tolist() async for e in stream] == [[7]]
                continue
            with pytest.raises(Misread, match=r"made 6 ids of a request with images, .* 5"):
                await anext(stream)
    assert asked[0][1]["image_data"] == ["aGk="] and asked[0][1]["input_ids"] == [1, 2]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.data(), st.booleans())
def test_a_stream_comes_out_as_increments_however_it_is_sent_and_cut(
    ids: list[int], data: st.DataObject, cumulative: bool
) -> None:
    ends = sorted({*data.draw(st.lists(st.integers(1, len(ids)), max_size=5)), len(ids)})
    starts = [0, *ends[:-1]]
    sent = (
        b"".join(
            event(ids[0 if cumulative else a : b], b) for a, b in zip(starts, ends, strict=True)
        )
        + b": a remark\n\ndata: [DONE]\n\n"
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=20)))
    events, increments, got = StreamEvents(len(ids)), SglangIncrements(), []
    for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        got += [increments.read(text) for text in events.feed(sent[a:b]) if text != b"[DONE]"]
    assert all(isinstance(e, StreamEvent) for e in got)
    assert [e.start for e in got] == starts
    assert np.concatenate([e.ids for e in got]).tolist() == ids
    assert np.concatenate([e.behaviour for e in got]).tolist() == [-float(i) for i in ids]


def test_the_last_event_of_an_aborted_request_repeats_and_adds_nothing() -> None:
    increments = SglangIncrements()
    first = increments.read(event([5, 6], 2)[6:])
    for repeated in (
        [5, 6],
        [6],
    ):  # as a server says it that sends all each time, and one that sends news
        last = increments.read(
            event(repeated, 2, finish={"type": "abort", "message": "Abort in waiting queue"})[6:]
        )
        assert (
            isinstance(first, StreamEvent)
            and isinstance(last, StreamEvent)
            and last.ending is not None
        )
        assert (last.start, len(last.ids), last.ending.type) == (2, 0, "abort")


def test_a_log_probability_that_is_no_number_stays_none() -> None:
    text = event([7], 1).replace(b"-7.0", b"null")
    read = SglangIncrements().read(text[6:])
    assert isinstance(read, StreamEvent) and math.isnan(read.behaviour[0])


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            event([5, 6], 2).replace(b"[-6.0, 6, null]", b"").replace(b"], ]", b"]]"),
            "1 log-probabilities where 2 are new",
        ),
        (event([5, 6], 3), "2 ids where 3 are new"),
        (event([5], 1) + event([5], 0), "took back tokens: 0 after 1"),
        (event([5], 1).replace(b"-5.0, 5", b"-5.0, 4"), "log-probabilities of other tokens"),
        (event([2**31], 1), "an id that no vocabulary has: 2147483648"),
        (b"data: {\n\n", "an event that cannot be read"),
        (b"data: [1]\n\n", "an event that cannot be read"),
        (b"data: {}\n\n", "without meta_info"),
        (b"<html>\n\n", "no event of a stream"),
        (b"data: " + b"[" * 60_000 + b"\n\n", "an event that cannot be read"),
    ],
)
async def test_events_that_cannot_be_told_are_named(sent: bytes, why: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield sent

    with pytest.raises(Misread, match=f"{URL}/generate .*{why}"):
        await stream(answering(200, parts))


def test_an_event_is_as_large_as_its_tokens_can_be_and_no_larger() -> None:
    """An event could be 256 MiB, for each stream. The largest that a server sends of so many tokens
    passes: 20 digits of each log-probability, and a span for each token."""
    count, most = 1000, largest_event(1000)
    ids = list(range(200_000, 200_000 + count))
    largest = json.dumps(
        {
            "output_ids": ids,
            "meta_info": {
                "output_token_logprobs": [[-10.123456789012345, i, None] for i in ids],
                "weight_versions": [
                    {"version": "1234567", "start": i, "end": i + 1} for i in range(count)
                ],
            },
        }
    ).encode()
    assert list(StreamEvents(count).feed(b"data: " + largest + b"\n\n")) == [largest]
    for end in (b"", b"\n\n"):
        with pytest.raises(Garbled, match=f"an event of more than {most} bytes"):
            list(StreamEvents(count).feed(b"data: " + b"x" * most + end))


def test_a_stream_brings_no_more_than_what_was_asked_for_can_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events without news, and remarks, without end. An event may be a sixteenth of what it may be
    otherwise, so that the end comes as much sooner."""
    monkeypatch.setattr(server_types, "_EVENT_BYTES", 1 << 12)
    for kept_alive in (b": still here\n\n", event([], 0), b"\n\n" * 100):
        events, brought = StreamEvents(2), 0
        with pytest.raises(Garbled, match="more bytes than the requested tokens"):
            while brought < 2**32:
                brought += len(kept_alive)
                for _ in events.feed(kept_alive * 1000):
                    brought += 1
        assert brought < 2**19


async def test_a_stream_that_breaks_off_is_named_after_its_tokens() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield event([5], 1)

    got = []
    with pytest.raises(ServerGone, match="broke off the stream of request 0000"):
        async with SglangClient.open(URL, transport=answering(200, parts)) as client:
            async for e in client.generate(
                RID, np.array([1], np.int32), max_new_tokens=9, temperature=1.0
            ):
                got.append(e)
    assert [e.ids.tolist() for e in got] == [[5]]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b'data: {"error": {"message": "too long", "code": 400}}\n\n', 400),
        (event([], 0, finish={"type": "abort", "message": "too long", "status_code": 400}), 400),
        (event([], 0, finish={"type": "abort", "message": "too long", "status_code": 503}), 503),
    ],
)
async def test_a_refusal_inside_a_stream_is_one(sent: bytes, status: int) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield sent + b"data: [DONE]\n\n"

    with pytest.raises(RequestRefused, match="too long") as caught:
        await stream(answering(200, parts))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"success": false, "message": "no session"}', "no session"),
        (b'{"error": {"message": "no such thing"}}', "no such thing"),
        (b'{"detail": [{"msg": "missing"}]}', "missing"),
        (b"<html>gateway</html>", "gateway"),
        (b"", "no reason was given"),
    ],
)
@pytest.mark.parametrize("status", [400, 401, 422, 503])
async def test_what_a_server_says_against_a_call_is_passed_on(
    body: bytes, said: str, status: int
) -> None:
    async with SglangClient.open(URL, transport=answering(status, body)) as client:
        with pytest.raises(
            RequestRefused, match=f"{URL}/begin_weight_update was refused with {status}: .*{said}"
        ) as caught:
            await client.begin_update()
    assert caught.value.status == status


async def test_a_failure_told_with_status_200_is_one() -> None:
    async with SglangClient.open(
        URL, transport=answering(200, b'{"success": false, "message": "shape"}')
    ) as client:
        with pytest.raises(RequestRefused, match="shape"):
            await client.update(["a"], ["float32"], [[1]], group="g", version=4, flush=True)


async def test_answers_of_another_kind_are_named() -> None:
    async with SglangClient.open(URL, transport=answering(200, b'{"weight_version": 7}')) as client:
        with pytest.raises(Misread, match="not ModelInfo"):
            await client.model_info()
    scored = b'{"meta_info": {"input_token_logprobs": [[null, 1, null]]}}'
    async with SglangClient.open(URL, transport=answering(200, scored)) as client:
        with pytest.raises(Misread, match="scored other ids"):
            await client.score(np.array([1, 2], np.int32))


async def test_a_server_that_hangs_costs_a_bounded_time(autojump_clock: trio.abc.Clock) -> None:
    async def hang(request: httpx2.Request) -> httpx2.Response:
        await trio.sleep_forever()
        raise AssertionError

    async with SglangClient.open(
        URL, transport=httpx2.MockTransport(hang), deadline_s=7.0, silence_s=70.0
    ) as client:
        for call, seconds in (
            (client.model_info, 7.0),
            (client.end_update, 70.0),
            (lambda: client.pause("abort"), 70.0),
        ):
            begun = trio.current_time()
            with pytest.raises(ServerGone, match=f"did not answer within {seconds:g} s"):
                await call()
            assert trio.current_time() - begun == pytest.approx(seconds)
        assert not await client.ready()
        begun = trio.current_time()
        with pytest.raises(ServerGone, match="was not ready within 100 s"):
            await client.wait_ready(100.0)
        assert trio.current_time() - begun == pytest.approx(100.0)


async def test_a_server_that_was_left_paused_is_there_and_not_ready(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Or refuses to say what it is, while it starts."""
    paused, starting = {"/ready": 503, "/model_info": 200}, {"/ready": 503, "/model_info": 503}

    def serve(status: dict[str, int]) -> httpx2.MockTransport:
        body = b'{"model_path": "/m", "weight_version": "3"}'
        return httpx2.MockTransport(
            lambda request: httpx2.Response(status[request.url.path], content=body)
        )

    async with SglangClient.open("http://s:1", transport=serve(paused)) as client:
        assert not await client.ready() and await client.answers()
        await client.wait_there(10.0)
        with pytest.raises(ServerGone, match="was not ready within 10 s"):
            await client.wait_ready(10.0)
    async with SglangClient.open("http://s:1", transport=serve(starting)) as client:
        assert not await client.answers()
        with pytest.raises(ServerGone, match="did not answer within 10 s"):
            await client.wait_there(10.0)


async def test_a_server_that_is_not_there_or_stops_speaking_is_gone() -> None:
    """Over real sockets: nobody listens; one accepts and says nothing; one breaks off in the middle
    of an event."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    mute, answers = (
        trio.Event(),
        iter([None, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n"]),
    )

    async def serve(connection: trio.SocketStream) -> None:
        async with connection:
            await connection.receive_some()
            text = next(answers)
            if text is None:
                await mute.wait()
            else:
                await connection.send_all(text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        ids = np.array([1], np.int32)
        async with SglangClient.open(f"http://127.0.0.1:{port}/", silence_s=2.0) as client:
            for why in ("was silent for too long", "the connection failed"):
                with pytest.raises(ServerGone, match=f"127.0.0.1:{port}/generate.*{why}"):
                    async for _ in client.generate(RID, ids, max_new_tokens=1, temperature=1.0):
                        pass
        mute.set()
        nursery.cancel_scope.cancel()
    async with SglangClient.open(f"http://127.0.0.1:{port}") as client:
        assert not await client.ready()
        with pytest.raises(ServerGone, match="the server is not there or died"):
            await client.model_info()


async def test_requests_say_what_was_asked() -> None:
    asked: list[Any] = []
    transport = answering(
        200,
        b'{"success": true, "message": "", "ranks": [{"checksums": {"w": "ab"}, '
        b'"per_gpu_checksum": "cd"}]}',
        asked,
    )
    async with SglangClient.open(URL, transport=transport) as client:
        await client.abort(RID)
        await client.abort_all()
        await client.pause("in_place")
        await client.init_group("10.0.0.1", 5000, 3, "g", "gloo")
        await client.update(
            ["a", "b"], ["float32"] * 2, [(2, 3), ()], group="g", version=12, flush=False
        )
        await client.update_from_disk("/m", 4, flush=True)
        assert [rank.checksums for rank in await client.checksums()] == [{"w": "ab"}]
    assert asked == [
        ("/abort_request", {"rid": RID}),
        ("/abort_request", {"abort_all": True}),
        ("/pause_generation", {"mode": "in_place"}),
        (
            "/init_weights_update_group",
            {
                "master_address": "10.0.0.1",
                "master_port": 5000,
                "rank_offset": 1,
                "world_size": 3,
                "group_name": "g",
                "backend": "gloo",
            },
        ),
        (
            "/update_weights_from_distributed",
            {
                "names": ["a", "b"],
                "dtypes": ["float32", "float32"],
                "shapes": [[2, 3], []],
                "group_name": "g",
                "weight_version": "12",
                "flush_cache": False,
                "load_format": "flattened_bucket",
            },
        ),
        (
            "/update_weights_from_disk",
            {"model_path": "/m", "weight_version": "4", "flush_cache": True},
        ),
        ("/weights_checker", {"action": "checksum"}),
    ]


def test_the_errors_are_of_one_family() -> None:
    assert all(issubclass(kind, ServerError) for kind in (ServerGone, RequestRefused, Misread))


async def test_a_connection_that_the_server_may_be_closing_is_not_used_again() -> None:
    """uvicorn closes what was idle for 5 s: an order that crosses this is lost without an answer,
    and one of weights can't be given twice."""
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        idle_since = math.inf
        async for data in stream:
            if data.endswith(b"{}"):
                if trio.current_time() - idle_since > 1.0:
                    break  # as if it had been closing when this came
                await stream.send_all(
                    b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"success":true}'
                )
                idle_since = trio.current_time()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with SglangClient.open(f"http://127.0.0.1:{port}") as client:
            await client.begin_update()
            await client.end_update()
            await trio.sleep(1.1)
            await client.begin_update()
        nursery.cancel_scope.cancel()
    assert connections == 2


async def test_a_connection_by_which_a_call_failed_is_not_used_again() -> None:
    """uvicorn closes it behind the answer, and the next call would cross the close."""
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        async for data in stream:
            if data.endswith(b"{}") and connections == 1:
                await stream.send_all(
                    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nno.no"
                )
                await stream.receive_some()  # what crosses the close is lost
                break
            if data.endswith(b"{}"):
                await stream.send_all(
                    b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"success":true}'
                )
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with SglangClient.open(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(RequestRefused, match=r"with 500: no\.no"):
                await client.begin_update()
            await client.begin_update()
        nursery.cancel_scope.cancel()
    assert connections == 2
