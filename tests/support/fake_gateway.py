"""A gateway of the agents' API that answers with what it is told, over a socket, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from asyncrl.agents.agent_episode import EpisodeFacts

CALLS, REWARDS, RUN = "key-for-calls", "key-for-rewards", "key-of-the-run"


class FakeGateway:
    """Sessions' notes and rewards, and the chats that were asked for. `replies` are given in turn,
    the last one again and again; a reply is a text or a message. `calling` is set when a call has
    come, which is answered once `answer` is set. The call after `calls` is refused with `full`.
    Programs elsewhere get the episodes that are `offered`; `ends` has the rewards of the whole, and
    why programs gave up."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.replies: list[str | dict[str, Any]] = ["hi"]
        self.asked: list[list[dict[str, Any]]] = []
        self.roles: list[str] = []
        self.models: list[str] = []
        self.calls, self.full = 1000, "episode_full"
        self.notes: dict[str, Any] = {}
        self.rewards: list[tuple[float, int]] = []
        self.failed: list[tuple[str, int]] = []
        self.opened: list[tuple[str, str]] = []
        self.offered: list[dict[str, Any]] = []
        self.ends: list[float | str] = []
        self.calling, self.answer = threading.Event(), threading.Event()
        self.answer.set()

    def facts(self, **changes: Any) -> EpisodeFacts:
        said: dict[str, Any] = {
            "prompt": "2 + 2 =",
            "entry": {"prompt": "2 + 2 =", "answer": 4},
            "prompt_index": 3,
            "seed": 17,
            "attempt": 0,
            "base_url": f"http://127.0.0.1:{self.port}/sessions/episode-3/v1",
            "api_key": CALLS,
            "reward_key": REWARDS,
        }
        return EpisodeFacts(**(said | changes))

    def handle(self, method: str, path: str, key: str, body: Any) -> tuple[int, Any]:
        start = "/v1/sessions/episode-3/"
        if path == "/sessions/episode-3/v1/chat/completions" and key == CALLS:
            if len(self.asked) >= self.calls:
                return 422, {"error": {"message": "it is as long as it may be", "code": self.full}}
            self.asked.append(body["messages"])
            self.models.append(body.get("model", ""))
            self.roles.append(body.get("metadata", {}).get("role", ""))
            self.calling.set()
            assert self.answer.wait(300)
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            said = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy"}
            return 200, {**said, "choices": [choice]}
        if path.startswith(f"{start}notes/") and key == CALLS:
            name = unquote(path.removeprefix(f"{start}notes/"))
            if method == "POST":
                self.notes[name] = body["value"]
            elif name not in self.notes:
                return 404, {"error": {"message": "no such note"}}
            return 200, {"value": self.notes[name]}
        if path == "/v1/episodes" and key == RUN:
            return (200, self.offered.pop(0)) if self.offered else (503, {})
        if path == f"{start}reward" and key == REWARDS and "turn" not in body:
            self.ends.append(body["reward"])
            return 200, {}
        if path == start[:-1] and method == "DELETE" and key == REWARDS:
            self.ends.append(body["reason"])
            return 200, {}
        if path == f"{start}reward" and key == REWARDS:
            if body["turn"] >= len(self.asked):
                return 404, {"error": {"message": f"there is no call {body['turn']}\x1b[2J"}}
            self.rewards.append((body["reward"], body["turn"]))
            return 200, {}
        if path == f"{start}failed" and key == REWARDS:
            self.failed.append((body["tool"], body["turn"]))
            return 200, {}
        if path == f"{start}opened" and key == REWARDS:
            self.opened.append((method, body["name"]))
            return 200, {"opened": f"the {body['name']}", "ended": True}
        return 401, {"error": {"message": f"not with this key: {path}"}}


@contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    """Serve one, on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("content-length", "0"))
            body = json.loads(self.rfile.read(size)) if size else None
            key = self.headers.get("authorization", "").removeprefix("Bearer ")
            status, said = gateway.handle(self.command, self.path, key, body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_DELETE = do_GET

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        gateway = FakeGateway(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield gateway
        finally:
            gateway.answer.set()
            server.shutdown()
            thread.join()
