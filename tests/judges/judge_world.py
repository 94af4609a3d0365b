"""A judge's server in virtual time, and one that is asked there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio

from asyncrl.config import Config
from asyncrl.config.schema import JudgeConfig, TaskConfig
from asyncrl.judges.judge_client import Judge, open_judge
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.judge_request import JudgeRequest

URL = "http://127.0.0.1:9/v1"
Answer = Callable[[str, int], httpx2.Response | Exception | float]
"""The answer to a text at its n-th request, from 0: a response, an error, or a score."""


def said(text: str, *, finish: str = "stop", tokens: int = 100) -> httpx2.Response:
    """A reply of a chat model."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return httpx2.Response(200, json={"choices": [choice], "usage": {"total_tokens": tokens}})


class Server(httpx2.AsyncBaseTransport):
    """Answers each request after `latency_s`."""

    def __init__(self, answer: Answer, latency_s: float = 2.0) -> None:
        self._answer, self._latency_s = answer, latency_s
        self.began: list[float] = []
        """Times of requests."""
        self.texts: list[str] = []
        """Texts that were read, in order."""
        self.headers: list[dict[str, str]] = []
        self.scored: list[str] = []
        """Texts that were given a score."""
        self.open = self.most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread())
        text = body["messages"][0]["content"] if "messages" in body else body["input"]
        number = self.texts.count(text)
        self.began.append(trio.current_time())
        self.texts.append(text)
        self.headers.append(dict(request.headers))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(self._latency_s)
        finally:
            self.open -= 1
        answer = self._answer(text, number)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            self.scored.append(text)
            answer = said(f"SCORE: {answer:g}")
        stream = httpx2.ByteStream(answer.content)
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=stream)


def settings(**changes: object) -> JudgeConfig:
    """A judge that reads answers alone."""
    return JudgeConfig(**{"url": URL, "model": "m", "template": "{answer}", **changes})  # type: ignore[arg-type]


def configured(judge: JudgeConfig, **sections: object) -> Config:
    """A run that asks it."""
    task = TaskConfig(name="jsonl", path="data.jsonl", verifier="judge")
    return Config(task=task, judge=judge, **sections)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(server: Server, file: Path, **changes: object) -> AsyncIterator[Judge]:
    """A judge that is at `server`."""
    async with open_judge(configured(settings(**changes)), Waits(), file, server) as judge:
        yield judge


def about(answer: str, *, exact: bool = False) -> JudgeRequest:
    """A request about an answer."""
    return JudgeRequest("q", answer, "e", exact)
