"""A server that means harm: it costs no memory, and what it says does nothing to a terminal."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import numpy as np
import pytest
import trio

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerError, ServerGone
from asyncrl.engines.servers.other_model import Incompatible, Needs
from asyncrl.engines.sglang.compatibility import check_compatibility
from asyncrl.engines.sglang.sglang_client import SglangClient

URL = "http://fake:1"
RID = "0" * 32
HOSTILE = "\x1b]0;mine\x07\x1b[2J\u202e\nasyncrl: all is well"
BOMB = 3 * 2**20
"""Bytes that were unpacked to 6 GB: of zeros gzip makes a thousandth."""


async def generate(client: SglangClient, tokens: int = 9) -> None:
    ids = np.array([1, 2], np.int32)
    async for _ in client.generate(RID, ids, max_new_tokens=tokens, temperature=1.0):
        pass


async def score(client: SglangClient) -> None:
    await client.score(np.array([1, 2], np.int32))


CALLS: dict[str, Callable[[SglangClient], Awaitable[object]]] = {
    "model_info": SglangClient.model_info,
    "server_info": SglangClient.server_info,
    "load": SglangClient.load,
    "generate": generate,
    "score": score,
    "abort": lambda client: client.abort(RID),
    "abort_all": SglangClient.abort_all,
    "pause": lambda client: client.pause("retract"),
    "resume": SglangClient.resume,
    "flush": SglangClient.flush,
    "begin_update": SglangClient.begin_update,
    "update_from_disk": lambda client: client.update_from_disk("/m", 1, flush=True),
    "checksums": SglangClient.checksums,
}
EVERY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class Answer(httpx2.AsyncByteStream):
    """A body that never ends of itself; `sent` is what was taken of it."""

    def __init__(self, piece: bytes) -> None:
        self._piece, self.sent = piece, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.sent < 2**31:
            self.sent += len(self._piece)
            yield self._piece
            await trio.lowlevel.checkpoint()
        raise AssertionError("it was read to the end")


def serving(
    answer: httpx2.AsyncByteStream, status: int = 200, headers: dict[str, str] | None = None
) -> httpx2.MockTransport:
    return httpx2.MockTransport(
        lambda request: httpx2.Response(status, stream=answer, headers=headers)
    )


@EVERY_CALL
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_compressed_answer_is_refused_unread(
    call: Callable[[SglangClient], Awaitable[object]], encoding: str
) -> None:
    answer = Answer(gzip.compress(bytes(BOMB)))
    transport = serving(answer, headers={"content-encoding": encoding})
    async with SglangClient.open(URL, transport=transport) as client:
        with pytest.raises(Misread, match=r"answered in the encoding .*, and was asked for none"):
            await call(client)
    assert answer.sent == 0


async def test_no_answer_is_asked_for_compressed() -> None:
    asked = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers["accept-encoding"])
        return httpx2.Response(503)

    async with SglangClient.open(URL, transport=httpx2.MockTransport(answer)) as client:
        for call in CALLS.values():
            with pytest.raises(RequestRefused):
                await call(client)
        await client.ready()
    assert asked == ["identity"] * (len(CALLS) + 1)


@EVERY_CALL
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("piece", [b"x" * 65_536, b": here\n\n" * 999])
async def test_an_answer_without_end_is_left_off(
    call: Callable[[SglangClient], Awaitable[object]], status: int, piece: bytes
) -> None:
    """Of 2 GiB that are offered little is taken."""
    answer = Answer(piece)
    async with SglangClient.open(URL, transport=serving(answer, status)) as client:
        with pytest.raises((Misread, RequestRefused)):
            await call(client)
    assert answer.sent < (2**27 if call is SglangClient.checksums and status == 200 else 2**23)


async def test_a_readiness_without_end_is_one(autojump_clock: trio.abc.Clock) -> None:
    answer = Answer(b"x" * 65_536)
    async with SglangClient.open(URL, transport=serving(answer)) as client:
        assert await client.ready()
    assert answer.sent < 2**20


def said(error: ServerError) -> None:
    text = str(error)
    assert text.isprintable() and "mine" in text and "\\x1b" in text and len(text) < 1500


@pytest.mark.parametrize(
    "body",
    [
        {"success": False, "message": HOSTILE},
        {"error": {"message": HOSTILE * 999}},
        {"detail": HOSTILE},
        {"detail": [{"msg": HOSTILE}]},
    ],
)
async def test_a_refusal_is_escaped_and_short(body: object) -> None:
    for raw in (json.dumps(body), json.dumps(body, ensure_ascii=False)):
        for status in (200, 400) if "success" in raw else (400, 503):
            text = raw.encode()
            transport = httpx2.MockTransport(
                lambda _, text=text, status=status: httpx2.Response(status, content=text)
            )
            async with SglangClient.open(URL, transport=transport) as client:
                with pytest.raises(RequestRefused) as caught:
                    await client.begin_update()
            assert str(caught.value).isprintable() and len(str(caught.value)) < 500
            assert "mine" in str(caught.value)


async def test_a_refusal_that_is_no_json_is_escaped_and_short() -> None:
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(500, content=(HOSTILE * 999).encode())
    )
    async with SglangClient.open(URL, transport=transport) as client:
        with pytest.raises(RequestRefused) as caught:
            await client.begin_update()
    said(caught.value)


@pytest.mark.parametrize(
    "sent",
    [
        {"error": {"message": HOSTILE * 99, "code": 400}},
        {
            "meta_info": {
                "weight_version": "1",
                "finish_reason": {"type": "abort", "message": HOSTILE, "status_code": 503},
            }
        },
    ],
)
async def test_a_refusal_in_a_stream_is_escaped_and_short(sent: object) -> None:
    body = f"data: {json.dumps(sent)}\n\n".encode()
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body))
    async with SglangClient.open(URL, transport=transport) as client:
        with pytest.raises(RequestRefused) as caught:
            await generate(client, 999)
    said(caught.value)


@pytest.mark.parametrize(
    "info",
    [
        {"model_path": HOSTILE, "is_generation": False},
        {"model_path": "/m", "architectures": [HOSTILE] * 500},
        {"model_path": "/m", "dtype": HOSTILE},
        {"model_path": "/m", "version": f"0.0.{HOSTILE}"},
    ],
)
async def test_what_a_server_says_of_itself_is_escaped(info: dict[str, object]) -> None:
    body = json.dumps(
        {"weight_version": "1", "version": "9.9.9", "skip_tokenizer_init": True} | info
    )
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body.encode()))
    async with SglangClient.open(URL, transport=transport) as client:
        with pytest.raises(Incompatible) as caught:
            await check_compatibility(client, Needs("A", "float32", 8, 1))
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 2000


async def test_an_error_of_the_transport_is_escaped() -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.RemoteProtocolError(f"illegal status line: {HOSTILE}")

    async with SglangClient.open(URL, transport=httpx2.MockTransport(broken)) as client:
        with pytest.raises(ServerGone) as caught:
            await client.model_info()
    said(caught.value)


def test_the_end_of_a_servers_log_keeps_its_lines_and_nothing_else() -> None:
    text = str(ServerGone(f"gone: {HOSTILE}", log=f"one\ntwo {HOSTILE}"))
    assert [line.isprintable() for line in text.split("\n")] == [True] * 4
