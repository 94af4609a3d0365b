"""A judge of 2 s latency that fails 5 % of its requests and takes 60 of them a minute: how busy it
leaves the engines, and how each answer ends. The coordinator, the reward actor and the
judge's client are the real ones, in virtual time; engines and learner are scripted, and the judge
is a transport of HTTP.

    .venv/bin/python bench/judge.py
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import numpy as np
import trio
from trio.testing import MockClock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from scripted_world import ScriptedWorld, configured

from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.judges.judge_client import Judge, open_judge
from asyncrl.messages import NoVerdict, Scored
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.judge_request import JudgeRequest

LATENCY_S, FAILS, PER_MINUTE = 2.0, 0.05, 60
TOKENS, TOKEN_S, SLOTS, GROUP, GROUPS = 20, 0.5, 8, 4, 2
"""Tokens of an answer, seconds for each, and answers at a time: 0.8 a second, where the judge takes
one."""


BY_GROUP = PER_MINUTE // GROUP
"""Requests a minute where a request is about a group."""


class Measured(NamedTuple):
    """Results of a run: the share of its time in which a slot decoded; and counts of answers."""

    busy: float
    seconds: float
    scored: int
    without: int
    zero: int
    requests: int
    twice: int
    most_in_a_minute: int


class JudgeServer(httpx2.AsyncBaseTransport):
    """It scores from 1 to 9, after `latency_s`, and fails a share of the requests in several
    ways."""

    def __init__(self, latency_s: float, fails: float) -> None:
        self._latency_s, self._fails = latency_s, fails
        self._draw = random.Random(0)
        self.began: list[float] = []
        self.scored = Counter[str]()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        text = json.loads(await request.aread())["messages"][0]["content"]
        self.began.append(trio.current_time())
        await trio.sleep(self._latency_s)
        if self._draw.random() < self._fails:
            return self._failure()
        self.scored[text] += 1
        content = f"SCORE: {1 + hash_of(text) % 9}"
        if answers := re.findall(r"\[answer (\d+), mark \w+\]\n(.*)", text):
            scores = (f"{number} = {1 + hash_of(answer) % 9}" for number, answer in answers)
            content = f"SCORES: {', '.join(scores)}"
        body = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
        return httpx2.Response(200, stream=httpx2.ByteStream(json.dumps(body).encode()))

    def _failure(self) -> httpx2.Response:
        if self._draw.random() < 0.3:
            raise httpx2.ReadError("reset")
        if self._draw.random() < 0.5:
            return httpx2.Response(429, headers={"retry-after": "1"}, stream=httpx2.ByteStream(b""))
        return httpx2.Response(503, stream=httpx2.ByteStream(b"overloaded"))


class JudgedWorld(ScriptedWorld):
    """A run whose answers are all given to `judge`."""

    judge: Judge

    def make_judge(self, process: Any) -> Any:
        return self.judge

    def make_verifiers(self, process: Any) -> Any:
        return SimpleNamespace(judge=_asks, slowest=(0.0, "train", -1))


async def _asks(
    split: str, index: int, ids: bytes, finish: str, prompt: bytes = b""
) -> JudgeRequest | TimedVerdict:
    await trio.sleep(0.01)  # a worker's part
    text = " ".join(map(str, np.frombuffer(ids, "<i4").tolist()))
    return JudgeRequest(f"prompt {index}", text, "")


def hash_of(text: str) -> int:
    """A number of the text that is the same in each process."""
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(text))


def _script(request: Request) -> Script:
    """An answer of TOKENS tokens, unlike any other."""
    draw = np.random.default_rng(request.key)
    ids = draw.integers(3, 12, TOKENS).astype(np.int32)[request.prefix_tokens :]
    return Script(ids, np.full(len(ids), -1.0, np.float32), TOKEN_S, "stop")


async def measured(
    latency_s: float, fails: float, per_minute: int, steps: int = 20, members: str = "alone"
) -> Measured:
    """Run it in virtual time; `members` is how a group's answers are judged."""
    config = configured(
        task={"eval_size": 0, "name": "jsonl", "path": "data.jsonl", "verifier": "judge"},
        engine={"slots": SLOTS},
        rollout={"group_size": GROUP, "lease_s": 500.0},
        train={"steps": steps, "batch_groups": GROUPS, "eval_every": 0},
        staleness={"depth": 2, "max_lag": 8},
        judge={
            "url": "http://127.0.0.1:9/v1",
            "model": "m",
            "template": "{question} {answer}",
            "requests_per_minute": per_minute,
            "members": members,
        },
        supervision={"stall_s": 1000.0},
    )
    server, world = JudgeServer(latency_s, fails), JudgedWorld(config)
    world.script = _script
    with tempfile.TemporaryDirectory() as folder:
        async with open_judge(config, Waits(), Path(folder, "judged"), server) as judge:
            world.judge = judge
            outcome = await world.run()
    if not outcome.ok:
        raise RuntimeError(outcome.reason)
    verdicts = [event.verdict for event in world.of(e.Judged)]
    tokens = sum(len(event.ids) // 4 for event in world.of(e.Extended))
    began = server.began
    return Measured(
        tokens * TOKEN_S / (SLOTS * world.seconds),
        world.seconds,
        sum(isinstance(verdict, Scored) for verdict in verdicts),
        sum(isinstance(verdict, NoVerdict) for verdict in verdicts),
        sum(isinstance(verdict, Scored) and verdict.reward == 0.0 for verdict in verdicts),
        len(began),
        sum(count > 1 for count in server.scored.values()),
        max(sum(start <= time < start + 60.0 - 1e-6 for time in began) for start in began),
    )


def main() -> None:
    """Measure, and print a line for each judge."""
    print(f"{'judge':<46} busy  seconds  scored  none  zero  twice  requests  in a minute")
    slow = "2 s, 5 % failures,"
    for name, latency_s, fails, per_minute, members in (
        ("at once, without failures or limit", 0.0, 0.0, 60_000, "alone"),
        (f"{slow} 60 requests a minute", LATENCY_S, FAILS, PER_MINUTE, "alone"),
        (f"{slow} {BY_GROUP} a minute, by group", LATENCY_S, FAILS, BY_GROUP, "scored"),
    ):
        clock = MockClock(autojump_threshold=0)
        found = trio.run(measured, latency_s, fails, per_minute, 20, members, clock=clock)
        print(
            f"{name:<46} {found.busy:4.0%} {found.seconds:8.0f} {found.scored:7} {found.without:5} "
            f"{found.zero:5} {found.twice:6} {found.requests:9} {found.most_in_a_minute:12}"
        )


if __name__ == "__main__":
    main()
