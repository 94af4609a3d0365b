"""A server that decodes in virtual time, for what a real one does not do on demand. Response token
i (prefix included) has the id `token(first id of the prompt, i)`, and as log-probability minus the
version that sampled it, so each chunk can be checked."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import trio

URL = "http://fake:1"


def token(prompt: int, index: int) -> int:
    """Of 97 ids the last comes only where the prompt is 90 or more."""
    return (prompt + index) % (90 if prompt < 90 else 97)


LAYERS, ROUTED, EXPERTS = 3, (0, 2), 300
"""Layers, those of them that have a router, and the experts of each."""


def experts(prompt: int, index: int, version: int) -> list[list[int]]:
    """The experts of the pass that predicts response token `index` (prefix included), by layer."""
    first = [7 * prompt + 3 * index + 5 * version + layer for layer in range(LAYERS)]
    return [
        [n % EXPERTS, (n + 1) % EXPERTS] if layer in ROUTED else [0, 0]
        for layer, n in enumerate(first)
    ]


class _Body(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        await self._parts.aclose()  # type: ignore[attr-defined]


class _Running:
    """A request: the ids that it came with, and the version of each token sampled since."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.ids: list[int] = body["input_ids"]
        self.budget: int = body["sampling_params"]["max_new_tokens"]
        self.interval: int = body["sampling_params"]["stream_interval"]
        self.stops = set(body["sampling_params"]["stop_token_ids"])
        self.rid: str = body["rid"]
        self.body = body
        self.versions: list[str] = []
        self.computed: list[str] = []  # the version of the pass at the position before each token
        self.retractions = 0
        self.ending: dict[str, Any] | None = None


class FakeServer(httpx2.AsyncBaseTransport):
    """`faults` says by the first id of a prompt what becomes of it: (kind, after so many tokens).
    `asked` holds every call."""

    def __init__(self, *, pace_s: float = 0.01) -> None:
        self.version, self.pace_s = "0", pace_s
        self.faults: dict[int, tuple[str, int]] = {}
        self.asked: list[tuple[float, str, Any]] = []
        self.running: dict[str, _Running] = {}
        self.paused, self.dead, self.most = False, False, 0
        self._changed = trio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread() or b"null")
        path = request.url.path
        if path != "/ready":
            self.asked.append((trio.current_time(), path, body))
        await trio.lowlevel.checkpoint()
        if self.dead:
            raise httpx2.ConnectError("refused")
        if path == "/generate":
            return httpx2.Response(200, stream=_Body(self._decode(_Running(body))))
        if path == "/ready":
            return httpx2.Response(503 if self.paused else 200)
        if path == "/abort_request":
            for rid, one in self.running.items():
                fault = self.faults.get(one.ids[0], ("", 0))[0]
                if (body.get("abort_all") or rid.startswith(body["rid"])) and fault != "deaf":
                    one.ending = {"type": "abort", "message": "Aborted"}
            self._wake()
        return httpx2.Response(200, content=b'{"success": true}')

    async def load(self, version: int, seconds: float, mode: str = "retract") -> None:
        """Publish weights, as a publisher does."""
        self.paused = True
        if mode == "abort":
            for one in self.running.values():
                one.ending = {"type": "abort", "message": "Aborted"}
        self._wake()
        await trio.sleep(seconds)
        self.version, self.paused = str(version), False
        for one in self.running.values():
            if mode == "retract":
                one.retractions += 1
                one.computed = [self.version] * len(one.versions)
        self._wake()

    def die(self) -> None:
        self.dead = True
        self._wake()

    def paths(self, path: str) -> list[Any]:
        return [body for _, asked, body in self.asked if asked == path]

    def sampling(self, body: Any) -> str:
        """The version that the next token of a request is sampled under."""
        return self.version

    def reported(self, version: str) -> str:
        """The name that it gives the weights of a version."""
        return version

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _decode(self, one: _Running) -> AsyncIterator[bytes]:
        kind, after = self.faults.get(one.ids[0], ("", -1))
        self.running[one.rid] = one
        self.most = max(self.most, len(self.running))
        sent = 0
        try:
            while one.ending is None:
                if self.dead:
                    raise httpx2.ReadError("broken")
                if self.paused or (kind == "hang" and len(one.versions) >= after):
                    await self._changed.wait()
                    continue
                changed = self._changed
                with trio.move_on_after(self.pace_s):
                    await changed.wait()
                    continue
                one.versions.append(self.sampling(one.body))
                one.computed.append(self.version)
                count = len(one.versions)
                if self._token(one, count - 1) in one.stops:
                    one.ending = {"type": "stop", "matched": self._token(one, count - 1)}
                elif count == one.budget:
                    one.ending = {"type": "length", "length": count}
                elif kind == "break" and count > after:
                    raise httpx2.RemoteProtocolError("peer closed the connection")
                elif count == 1 or count - sent >= one.interval:
                    sent = count
                    yield self._event(one, kind if count > after else "")
            yield self._event(one, kind)
            yield b"data: [DONE]\n\n"
        finally:
            del self.running[one.rid]

    def _token(self, one: _Running, index: int) -> int:
        return token(one.ids[0], len(one.ids) - 1 + index)

    def _experts(self, one: _Running, kind: str) -> str | None:
        """Of each position from the one that was asked for on, in int32."""
        known = len(one.ids) - 1
        rows = [
            experts(one.ids[0], known + i, int(version)) for i, version in enumerate(one.computed)
        ]
        before = [experts(one.ids[0], i, 99) for i in range(known)]
        rows = (before + rows)[one.body["routed_experts_start_len"] :]
        match kind:
            case "unrecorded":
                return None
            case "skipped":
                rows[-1] = [[0, 0]] * LAYERS
            case "unknown expert":
                rows[-1] = [[1, EXPERTS]] * LAYERS
            case "fewer rows":
                rows.pop()
            case "of another model":
                return base64.b64encode(bytes(4)).decode()
            case "no numbers":
                return base64.b64encode(bytes(7)).decode()
            case "no base64":
                return "%"
        return base64.b64encode(np.array(rows, np.int32).tobytes()).decode()

    def _event(self, one: _Running, kind: str) -> bytes:
        count = len(one.versions)
        ids = [self._token(one, i) for i in range(count)]
        entries: list[Any] = [[-float(v), i, None] for v, i in zip(one.versions, ids, strict=True)]
        meta = {
            "id": one.rid,
            "finish_reason": one.ending,
            "completion_tokens": count,
            "weight_version": self.reported(self.version),
            "num_retractions": one.retractions,
        }
        if one.ending is not None:
            ends = [i for i in range(1, count) if one.versions[i] != one.versions[i - 1]]
            cuts = zip([0, *ends], [*ends, count], strict=True)
            meta["weight_versions"] = [
                {"version": self.reported(one.versions[a]), "start": a, "end": b}
                for a, b in cuts
                if b > a
            ]
            if one.body.get("return_routed_experts"):
                meta["routed_experts"] = self._experts(one, kind)
        match kind:
            case "fewer":
                entries.pop()
            case "lie" if one.ending is not None:
                meta["weight_versions"] = [{"version": "77", "start": 0, "end": count}]
            case "nan":
                entries[-1][0] = None
            case "foreign":
                ids[-1] = entries[-1][1] = 5000
            case "refuse":
                return b'data: {"error": {"message": "too long", "code": 400}}\n\n'
            case "garbage":
                return b"data: <html>\n\n"
        return (
            b"data: "
            + json.dumps(
                {"output_ids": ids, "meta_info": meta | {"output_token_logprobs": entries}}
            ).encode()
            + b"\n\n"
        )
