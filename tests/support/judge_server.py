"""A judge on loopback, by the project's own HTTP server, in a thread of the test."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from asyncrl.runtime.httpd.asgi import Headers, Receive, Scope, Send
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.waits import Waits

EVERY = 5
"""One in so many requests fails."""


class JudgeServer:
    """It scores an answer by the parity of its text's length, after some milliseconds."""

    def __init__(self, key: str) -> None:
        self.url = ""
        self.scored = Counter[str]()
        """Scores that were given, by text."""
        self.failed = 0
        self._asked = 0
        self._key = (b"authorization", f"Bearer {key}".encode())

    def _known(self, headers: Headers) -> bool:
        return self._key in headers

    async def serve(self, port: queue.Queue[int], closed: trio.Event) -> None:
        server = HttpServer(
            self._answer,
            HttpLimits(connections=64, strangers=8),
            known=self._known,
            refused=lambda reason: None,
            waits=Waits(),
            owner="a judge",
        )
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port.put(listener.socket.getsockname()[1])
        await server.run(listener, closed.wait)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._known(scope["headers"]):
            await _send(send, 401, {"error": {"message": "Incorrect API key provided"}})
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        text = json.loads(body)["messages"][0]["content"]
        await trio.sleep(0.02)
        self._asked += 1
        if scope["path"] != "/v1/chat/completions" or self._asked % EVERY == 0:
            self.failed += 1
            await _send(send, 503, {"error": {"message": "overloaded"}})
            return
        self.scored[text] += 1
        message = {"role": "assistant", "content": f"So.\nSCORE: {len(text) % 2 * 10}"}
        choice = {"message": message, "finish_reason": "stop"}
        await _send(send, 200, {"choices": [choice], "usage": {"total_tokens": 50}})


async def _send(send: Send, status: int, body: object) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


@contextmanager
def judge_server(key: str) -> Iterator[JudgeServer]:
    """A judge that answers requests with the key, in the block."""
    server, port, tokens = JudgeServer(key), queue.Queue[int](), queue.Queue[object]()
    closed = list[trio.Event]()

    async def main() -> None:
        closed.append(trio.Event())
        tokens.put(trio.lowlevel.current_trio_token())
        await server.serve(port, closed[0])

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    token = tokens.get(timeout=30)
    server.url = f"http://127.0.0.1:{port.get(timeout=30)}/v1"
    try:
        yield server
    finally:
        token.run_sync_soon(closed[0].set)  # type: ignore[attr-defined]
        thread.join(timeout=30)
