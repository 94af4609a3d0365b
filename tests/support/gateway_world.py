"""Gateways to test: the coordinator behind them has an engine answer, scripted or embedded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import trio
from memory_link import memory_links

from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.call_images import CallImages
from asyncrl.agents.gateway.forwarding import Forwarding
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.serve import serve
from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, write_tokenizer
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Engine, Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.messages import Ask, Enough, Message, Play, Reply
from asyncrl.runtime.httpd.asgi import HttpRefusal
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

KEY = "the-key-of-this-run"
MODEL = "policy"
CONTEXT = 2000
TEMPLATE = """
{%- if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""  # noqa: E501 spaces would be part of the prompt


def write_chat(directory: Path) -> Tokenizer:
    """The bundled tokenizer, with a chat template in the manner of Qwen's."""
    write_tokenizer(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer(directory, chat=True)


def say(text: str, *, pace: float = 0.001, ends: str = "stop") -> Script:
    """A reply of these bytes; the i-th has log-probability -(i + 1) / 8."""
    ids = [*text.encode(), *([END_ID] if ends == "stop" else [])]
    behaviour = -(np.arange(len(ids), dtype=np.float32) + 1) / 8
    return Script(np.array(ids, np.int32), behaviour, pace, ends)  # type: ignore[arg-type]


class Says:
    """A script that gives these replies, one to each request, and keeps what it was asked."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = deque(scripts)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Script:
        self.requests.append(request)
        return self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]

    def asked(self) -> list[str]:
        return [
            "".join(chr(token) if token < 256 else "<|end|>" for token in request.ids)
            for request in self.requests
        ]


def scripted(
    script: Callable[[Request], Script],
    *,
    chunk_tokens: int = 4,
    context_tokens: int = CONTEXT,
    vocabulary: int = VOCABULARY,
) -> ScriptedEngine:
    return ScriptedEngine(
        script,
        EngineOptions(slots=4, context_tokens=context_tokens, chunk_tokens=chunk_tokens),
        vocab_size=vocabulary,
    )


class AnsweringCoordinator:
    """The coordinator's end of a link: an engine answers what is asked. `heard` is all that was
    said, and `asks` the calls, in order."""

    def __init__(self, engine: Engine, sessions: PlayedSessions) -> None:
        self._engine, self.sessions = engine, sessions
        self._ours, self._theirs = memory_links()
        self.heard: list[Message] = []
        self.asks: list[Ask] = []
        self.asked_first = trio.Event()

    def play(
        self, rollout: int, attempt: int = 1, notes: dict[str, bytes] | None = None
    ) -> PlayedSession:
        """Begin an attempt, which is the session rROLLOUT-ATTEMPT."""
        play = Play(rollout, attempt, "train", 0, 0, CONTEXT, 1.0, notes or {})
        return self.sessions.open(play, nullcontext)

    def enough(self) -> list[int]:
        """The tokens that agents said were enough."""
        return [message.tokens for message in self.heard if isinstance(message, Enough)]

    async def run(self) -> None:
        async with self._ours, self._theirs, trio.open_nursery() as nursery:
            nursery.start_soon(self.sessions.send, self._theirs)
            nursery.start_soon(self._engine.run, self._emit)
            async for message, buffers in self._ours:
                self.heard.append(message)
                match message:
                    case Ask():
                        number = len(self.asks)
                        self.asks.append(message)
                        self.asked_first.set()
                        ids = np.frombuffer(bytes(buffers[0]), np.int32)
                        most = message.max_new_tokens
                        self._engine.submit(
                            [Request(number, 1, number, ids, 0, most, 1.0, images=message.images)]
                        )
                    case Enough():
                        ids_of = (message.rollout, message.attempt, message.number)
                        self._engine.interrupt(
                            [
                                number
                                for number, ask in enumerate(self.asks)
                                if (ask.rollout, ask.attempt, ask.number) == ids_of
                            ]
                        )

    async def _emit(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            ask = self.asks[chunk.rollout]
            reply = Reply(ask.rollout, ask.attempt, ask.number, chunk.version, chunk.finish)
            ids, behaviour = memoryview(chunk.ids.tobytes()), chunk.behaviour.tobytes()
            self.sessions.take(reply, ids, memoryview(behaviour))
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(
    engine: Engine,
    tokenizer: Tokenizer,
    count: Callable[[str], None] = lambda name: None,
    others: Forwarding | None = None,
    images: CallImages | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[AnsweringCoordinator, httpx2.AsyncClient]]:
    """A gateway before a coordinator with `engine`, with the session r1-1, and a client of it
    without a socket, who has the run's key. Nothing is loaded."""
    sessions = PlayedSessions(KEY.encode())
    limits = Settings(
        model=MODEL,
        context_tokens=CONTEXT,
        **{"vocabulary": VOCABULARY, **settings},
    )
    gateway, coordinator = (
        Gateway(sessions, tokenizer, limits, Waits(), count, images),
        AnsweringCoordinator(engine, sessions),
    )
    app = application(gateway, sessions, None, None, others)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    coordinator.play(1)
    async with (
        httpx2.AsyncClient(
            transport=transport, base_url="http://gateway", headers=headers
        ) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(coordinator.run)
        yield coordinator, client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    context_tokens: int = CONTEXT,
    refused: Callable[[HttpRefusal], None] = lambda _: None,
    limits: HttpLimits | None = None,
) -> AsyncIterator[tuple[AnsweringCoordinator, str]]:
    """The same on a socket: the coordinator, and the gateway's URL."""
    sessions, waits = PlayedSessions(KEY.encode()), Waits()
    settings = Settings(model=MODEL, context_tokens=context_tokens, vocabulary=VOCABULARY)
    coordinator = AnsweringCoordinator(engine, sessions)
    app = application(Gateway(sessions, tokenizer, settings, waits), sessions, None)
    coordinator.play(1)

    async def serving(task_status: trio.TaskStatus[str]) -> None:
        known = sessions.known
        await serve(app, known, waits, refused=refused, limits=limits, task_status=task_status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.run)
        url: str = await nursery.start(serving)
        yield coordinator, url
        nursery.cancel_scope.cancel()


def chat(*messages: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
    """A request; a text is a user's."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages],
        **more,
    }


def events(body: str) -> list[Any]:
    """Events of a stream before `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def ids(text: str) -> list[int]:
    """The bundled tokenizer's ids, `$` being the end."""
    return [END_ID if character == ord("$") else character for character in text.encode()]
