"""After any calls at the same time, with any ends, each bounded thing of a gateway is given back:
its slots, its waits, the answers of its sessions, their keys, and the clocks of their agents."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing
from gateway_world import CONTEXT, KEY, MODEL, write_chat
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from asyncrl.actors.agent_pool import AgentClock
from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.bundled.bundled_model import VOCABULARY
from asyncrl.messages import Ask, Play, Reply
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

CALLS, AGENT_S = 3, 1000.0
ENDS = (
    "answered",
    "its client is gone",
    "its client does not read",
    "its client sends no body",
    "the server ends",
    "the attempt ends",
    "its body is not JSON",
    "its context is too long",
    "refused",
    "wrong tokens",
    "interrupted",
    "silent",
)


class Call(msgspec.Struct, frozen=True):
    """A call that begins at a moment and ends in this way some seconds later. Of `stream` the
    client reads each token."""

    end: str
    begins: float
    lasts: float
    stream: bool


class Played:
    """One attempt, its clock, and a witness of the seconds that its agent has worked."""

    def __init__(self, sessions: PlayedSessions, rollout: int) -> None:
        self.clock, self.asks, self.worked, self.since = AgentClock(AGENT_S), 0, 0.0, 0.0
        play = Play(rollout, 1, "train", 0, 0, CONTEXT, 1.0, {})
        self.session = sessions.open(play, self.paused)

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self.asks:
            self.worked += trio.current_time() - self.since
        self.asks += 1
        try:
            with self.clock.paused():
                yield
        finally:
            self.asks -= 1
            self.since = trio.current_time()


class World:
    """A gateway whose coordinator gives each call the answer that its end is of."""

    def __init__(self, tokenizer: Tokenizer, calls: list[Call]) -> None:
        self.calls, self.most, self.running = calls, 0, 0
        self.sessions, self.waits = PlayedSessions(KEY.encode()), Waits()
        limits = Settings(MODEL, CONTEXT, VOCABULARY, calls=CALLS, call_s=20.0, body_s=9.0)
        self.gateway = Gateway(self.sessions, tokenizer, limits, self.waits)
        self.app = application(self.gateway, self.sessions, None)

    async def run(self) -> None:
        played = Played(self.sessions, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._coordinate)
            with played.clock.running():
                played.since = trio.current_time()
                async with trio.open_nursery() as calls:
                    for number in range(len(self.calls)):
                        calls.start_soon(self._call, played, number)
                await trio.sleep(5.0)
                worked = played.worked + trio.current_time() - played.since
                assert played.clock.spent_s == pytest.approx(worked)
            assert self.gateway._calls == 0 and not self.waits.table()
            assert not played.session._answers and not played.asks
            if not played.session.over:
                self.sessions.close(played.session)
            nursery.cancel_scope.cancel()
        nobody = PlayedSessions(KEY.encode())
        for held in ("_sessions", "_names", "_known"):
            assert getattr(self.sessions, held) == getattr(nobody, held), held
        for _ in range(CALLS):  # each slot is there again
            self.gateway.slot().__enter__()

    async def _call(self, played: Played, number: int) -> None:
        """One request, until the server has nothing more to do with it."""
        call, session = self.calls[number], played.session
        await trio.sleep(call.begins)
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/sessions/{session.name}/v1/completions",
            "headers": [(b"authorization", b"Bearer " + KEY.encode())],
            "query_string": b"",
        }
        asked = {
            "model": MODEL,
            "prompt": [number] * (CONTEXT if "too long" in call.end else 1),
            "stream": call.stream,
        }
        body = b"{" if "not JSON" in call.end else msgspec.json.encode(asked)
        frames = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if frames and call.end != "its client sends no body":
                await trio.lowlevel.checkpoint()
                return frames.pop(0)
            if call.end != "its client is gone":
                await trio.sleep_forever()
            await trio.sleep(call.lasts)
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            await trio.lowlevel.checkpoint()
            if call.end == "its client does not read":
                raise trio.BrokenResourceError
            self.most = max(self.most, self.gateway._calls)

        with trio.CancelScope() as server:
            if call.end == "the server ends":
                server.deadline = trio.current_time() + call.lasts
            if call.end == "the attempt ends":
                timer = partial(self._end, played, call.lasts)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(timer)
                    await self._serve(scope, receive, send)
            else:
                await self._serve(scope, receive, send)
        assert self.most <= CALLS

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except* trio.BrokenResourceError:
            pass

    async def _end(self, played: Played, seconds: float) -> None:
        await trio.sleep(seconds)
        if not played.session.over:
            self.sessions.close(played.session)

    async def _coordinate(self) -> None:
        async with trio.open_nursery() as nursery:
            self.answers = nursery
            await self.sessions.send(self)  # type: ignore[arg-type]

    async def send(self, message: object, *buffers: bytes) -> None:
        """Take a message, as a link does."""
        await trio.lowlevel.checkpoint()
        if isinstance(message, Ask):
            self.answers.start_soon(self._answer, message, int.from_bytes(buffers[0][:4], "little"))

    async def _answer(self, ask: Ask, number: int) -> None:
        call = self.calls[number]
        await trio.sleep(call.lasts / 2)
        self._reply(ask, 65, "")
        await trio.sleep(call.lasts / 2)
        match call.end:
            case "answered" | "its client does not read":
                self._reply(ask, 66, "stop")
            case "refused":
                self._reply(ask, 66, "", "the episode is over")
            case "wrong tokens":
                self._reply(ask, VOCABULARY, "stop")
            case "interrupted":
                self._reply(ask, 66, "interrupted")

    def _reply(self, ask: Ask, token: int, finish: Any, refused: str = "") -> None:
        ids, behaviour = np.array([token], np.int32), np.array([-1.0], np.float32)
        reply = Reply(ask.rollout, ask.attempt, ask.number, 0, finish, refused)
        self.sessions.take(reply, memoryview(ids.tobytes()), memoryview(behaviour.tobytes()))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("chat"))


def each(*, stream: bool) -> list[Call]:
    """Every end, one after the other and a little of each beside the next; the attempt's last."""
    ends = sorted(ENDS, key=lambda end: end == "the attempt ends")
    return [Call(end, 25.0 * at, 4.0, stream) for at, end in enumerate(ends)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads work at once, since a clock would jump while they do."""

    async def run(function: Any, *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", run)


@example(calls=each(stream=False))
@example(calls=each(stream=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.builds(
            Call,
            st.sampled_from(ENDS),
            st.sampled_from([0.0, 1.0, 3.0]),
            st.sampled_from([2.0, 0.5, 30.0]),
            st.booleans(),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_everything_is_given_back_after_any_ends(
    calls: list[Call], tokenizer: Tokenizer, at_once: None
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(World(tokenizer, calls).run, clock=clock)
