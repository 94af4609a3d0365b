"""Doors to test: before a scripted engine that says what it is told, or before the embedded
engine."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import trio

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Engine, Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.gateway.app import application
from asyncrl.gateway.engine_generator import EngineGenerator
from asyncrl.gateway.gateway import Gateway
from asyncrl.gateway.gateway_settings import Settings
from asyncrl.gateway.task_verifier import TaskVerifier
from asyncrl.ipc.messages import Finish, Verdict
from asyncrl.ipc.waits import Waits
from asyncrl.sessions.recorder import Bounds
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.bundled import END_ID, VOCABULARY, write_tokenizer

KEY = "the-key-of-this-run"
MODEL = "policy"
CONTEXT = 2000
BOUNDS = Bounds()
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


def scripted(script: Callable[[Request], Script], *, chunk_tokens: int = 4) -> ScriptedEngine:
    return ScriptedEngine(
        script,
        EngineOptions(slots=4, context_tokens=CONTEXT, chunk_tokens=chunk_tokens),
        vocab_size=VOCABULARY,
    )


class Exam:
    """A task of three prompts, whose verdicts are as told; it takes `seconds` for each, and keeps
    what it judged."""

    def __init__(self, *verdicts: Verdict, seconds: float = 0.5) -> None:
        self.verdicts, self.seconds = deque(verdicts), seconds
        self.judged: list[tuple[int, list[int]]] = []
        self.finishes: list[Finish] = []

    async def prompt(self, prompt_index: int) -> str:
        return ["one?", "two?", "three?"][prompt_index]

    async def judge(self, prompt_index: int, reply: bytes, finish: Finish) -> Verdict:
        self.judged.append((prompt_index, tokens(reply)))
        self.finishes.append(finish)
        await trio.sleep(self.seconds)
        return self.verdicts.popleft()


@asynccontextmanager
async def opened(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    bounds: Bounds = BOUNDS,
    verifier: TaskVerifier | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Gateway, httpx2.AsyncClient]]:
    """A gateway before `engine`, and a client of it without a socket. Nothing is loaded."""
    generator = EngineGenerator(engine)
    limits = Settings(
        model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY, bounds=bounds, **settings
    )
    gateway = Gateway(generator, tokenizer, limits, Waits(), verifier)
    transport = httpx2.ASGITransport(application(gateway, KEY), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(
            transport=transport, base_url="http://gateway", headers=headers
        ) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(generator.run)
        nursery.start_soon(gateway.run)
        yield gateway, client
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


def tokens(data: bytes) -> list[int]:
    found: list[int] = np.frombuffer(data, np.int32).tolist()
    return found
