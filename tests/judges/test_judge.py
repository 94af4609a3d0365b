"""A judge on a server, in virtual time: one verdict an answer, within its limits, and never a zero
where it failed."""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path

import httpx2
import pytest
import trio
from judge_world import Server, about, configured, opened, said, settings

from asyncrl.config import ConfigError
from asyncrl.config.judging import judge_s
from asyncrl.judges.outcomes import JudgeRefused
from asyncrl.judges.pace import Pace
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.reasons import cause_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "judged" / "reward-0"


def most_in_a_minute(times: list[float]) -> int:
    """The most of them in any minute."""
    return max(sum(start <= time < start + 60.0 - 1e-6 for time in times) for start in times)


def read_all(folder: Path) -> list[str]:
    """The text of each file in a folder."""
    return [path.read_text() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_scored_twice_or_zero_by_a_slow_judge_that_fails(
    file: Path, seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """2 s an answer, 5 % failures of each kind that passes, 60 requests a minute; answers come in
    groups of eight, and are given to the judge as a coordinator would."""
    draw = random.Random(seed)

    def answer(text: str, number: int) -> httpx2.Response | Exception | float:
        if draw.random() < 0.05:
            return draw.choice(
                [
                    httpx2.Response(429, headers={"retry-after": "3"}),
                    httpx2.Response(503),
                    httpx2.ConnectError("no"),
                ]
            )
        return 5.0

    server, verdicts, answers = Server(answer), dict[str, Verdict](), 240
    async with opened(server, file, requests_per_minute=60) as judge, trio.open_nursery() as all_:
        held = trio.Semaphore(64)

        async def ask(text: str) -> None:
            verdicts[text] = await judge.ask(about(text))
            held.release()

        for number in range(answers):
            await held.acquire()
            all_.start_soon(ask, f"answer {number}")
    assert len(verdicts) == answers
    assert all(verdict == Scored(0.5) for verdict in verdicts.values())
    assert set(Counter(server.scored).values()) == {1}
    assert len(server.texts) > answers
    assert most_in_a_minute(server.began) <= 60
    # the limit is used: 5 % of requests fail, and a failed one stops the others for 3 s at most
    assert trio.current_time() < 1.25 * answers + 20


async def test_limits_hold_for_tokens_and_for_requests_at_a_time(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    used, server = 3000, Server(lambda text, number: said("score: 7/10", tokens=used), 10.0)
    limits = {"requests_per_minute": 6000, "tokens_per_minute": 60_000, "concurrency": 4}
    async with opened(server, file, **limits) as judge, trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(judge.ask, about(f"answer {number}"))
    assert server.most == 4
    assert most_in_a_minute(server.began) * used <= 60_000 + (1 + 4) * used
    assert len(server.texts) == 40


def test_a_pace_never_exceeds_its_limit_in_any_minute() -> None:
    draw = random.Random(1)
    for limit in (1, 7, 60, 1000):
        pace, now, began = Pace(limit, 10.0**9), 0.0, []
        for _ in range(3 * limit):
            now = max(now + draw.expovariate(limit / 30), pace.ready_at)
            if draw.random() < 0.01:
                pace.pause(now + 5.0)
                assert pace.ready_at >= now + 5.0
                continue
            began.append(now)
            pace.take(now, 1.0)
        assert most_in_a_minute(began) <= limit


async def test_equal_contents_are_asked_once_in_flight_and_after_a_resume(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(lambda text, number: 10.0)
    async with opened(server, file) as judge, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(judge.ask, about("same"))
    assert server.texts == ["same"]
    async with opened(server, file, url="http://127.0.0.1:9/moved", retries=0) as judge:
        assert await judge.ask(about("same")) == Scored(1.0)
        assert await judge.ask(about("same", exact=True)) == Scored(1.0)
    assert server.texts == ["same"]
    async with opened(server, file, model="another") as judge:
        await judge.ask(about("same"))
    assert server.texts == ["same"] * 2


async def test_a_cancelled_asker_leaves_its_question_to_the_next(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(lambda text, number: 10.0)
    verdicts = list[Verdict]()

    async def ask(judge: object) -> None:
        verdicts.append(await judge.ask(about("same")))  # type: ignore[attr-defined]

    async with opened(server, file) as judge, trio.open_nursery() as nursery:
        with trio.move_on_after(1.0):
            async with trio.open_nursery() as first:
                first.start_soon(ask, judge)
                await trio.sleep(0.5)
                nursery.start_soon(ask, judge)
                await trio.sleep_forever()
    assert verdicts == [Scored(1.0)]
    assert len(server.texts) == 2 and server.scored == ["same"]


@pytest.mark.parametrize(
    ("response", "reason", "requests"),
    [
        (httpx2.Response(429, text="slow"), "judge rate limited: 429", 3),
        (httpx2.Response(500), "judge unavailable: 500", 3),
        (httpx2.Response(529), "judge unavailable: 529", 3),
        (httpx2.ReadError("reset"), "judge unreachable: ReadError", 3),
        (httpx2.Response(400, text="too long"), "judge refused: 400: too long", 1),
        (said("a fine answer"), "judge unreadable: no number stands after the marker SCORE:", 2),
        (
            said("so", finish="length"),
            "judge unreadable: it was cut at judge.max_tokens before the score",
            2,
        ),
        (
            said("SCORE: 11"),
            "judge unreadable: a score is not between 0 and 10 (judge.highest)",
            2,
        ),
        (
            httpx2.Response(200, text="<html>"),
            "judge unreadable: it is not what this API answers",
            2,
        ),
        (
            httpx2.Response(200, content=b"x" * 2**21),
            "judge unreadable: its reply is larger than 1048576 bytes",
            2,
        ),
    ],
)
async def test_an_outage_is_no_verdict_by_its_kind(
    file: Path,
    response: httpx2.Response | Exception,
    reason: str,
    requests: int,
    autojump_clock: trio.testing.MockClock,
) -> None:
    copies = lambda text, number: (  # noqa: E731
        response
        if isinstance(response, Exception)
        else httpx2.Response(response.status_code, content=response.content)
    )
    server = Server(copies)
    async with opened(server, file, retries=2) as judge:
        assert await judge.ask(about("a")) == NoVerdict(reason)
        assert len(server.texts) == requests
        await judge.ask(about("a"))  # what has no verdict is not kept
    assert len(server.texts) == 2 * requests
    outside = ("judge rate limited", "judge unavailable", "judge unreachable", "judge timeout")
    assert (cause_of(reason) == "outside") is reason.startswith(outside)


async def test_a_judge_that_never_answers_is_a_timeout_and_within_the_bound(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(lambda text, number: 10.0, latency_s=10_000.0)
    async with opened(server, file, retries=1, timeout_s=5.0) as judge:
        verdict = await judge.ask(about("a"))
        assert verdict == NoVerdict("judge timeout: no answer within 5 s")
        assert trio.current_time() < judge_s(configured(settings(retries=1, timeout_s=5.0)))


async def test_a_wait_that_the_server_asks_for_is_kept_by_all(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Longer than an answer may take, it ends that answer, and the judge is left alone."""

    def answer(text: str, number: int) -> httpx2.Response | float:
        busy = text == "first" and not number
        return httpx2.Response(429, headers={"retry-after": "120"}) if busy else 10.0

    server = Server(answer)
    async with opened(server, file) as judge, trio.open_nursery() as nursery:
        nursery.start_soon(judge.ask, about("first"))
        await trio.sleep(3.0)
        nursery.start_soon(judge.ask, about("second"))
    assert server.began[0] == 0.0
    assert min(server.began[1:]) >= 122.0


@pytest.mark.parametrize(
    ("status", "first", "later"),
    [
        (401, True, True),
        (402, True, True),
        (403, True, False),
        (404, True, False),
        (302, True, False),
    ],
)
async def test_a_judge_that_refuses_all_ends_the_run_by_name(
    file: Path, status: int, first: bool, later: bool, autojump_clock: trio.testing.MockClock
) -> None:
    refusing = [True]
    server = Server(
        lambda text, number: (
            httpx2.Response(status, text="bad key sk-secret") if refusing[0] else 10.0
        )
    )
    async with opened(server, file) as judge:
        if first:
            with pytest.raises(JudgeRefused, match=str(status)) as refused:
                await judge.ask(about("a"))
            assert isinstance(refused.value, ConfigError)
        refusing[0] = False
        assert await judge.ask(about("a")) == Scored(1.0)
        refusing[0] = True
        if later:
            with pytest.raises(JudgeRefused):
                await judge.ask(about("b"))
        else:
            assert isinstance(await judge.ask(about("b")), NoVerdict)


async def test_a_key_is_in_the_header_alone(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Even where the server quotes it."""
    key = "sk-very-secret-0123"
    monkeypatch.setenv("JUDGE_KEY", key)
    caplog.set_level(logging.DEBUG)
    answers = [
        httpx2.Response(400, text=f"Incorrect key: {key}"),
        httpx2.Response(403, text=f"Incorrect key: {key}"),
        said(f"no score, but {key}"),
        said(f"no score, but {key}"),
    ]
    server = Server(lambda text, number: answers.pop(0) if text != "good" else 10.0)
    texts = list[str]()
    async with opened(server, file, api_key_env="JUDGE_KEY") as judge:
        await judge.ask(about("good"))
        for number in range(3):
            texts.append(repr(await judge.ask(about(f"bad {number}"))))
    assert all(headers["authorization"] == f"Bearer {key}" for headers in server.headers)
    written = read_all(tmp_path)
    assert not any(key in text for text in [*texts, *written, caplog.text])
    assert written and "[key]" in caplog.text
