"""The engine over a server that decodes in virtual time: what it promises whatever the server does.
(Over a real server: `test_sglang_hazards`.)"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
from collected import Collected
from fake_sglang import EXPERTS, LAYERS, ROUTED, URL, FakeServer, experts, token
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from trio.testing import MockClock

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Engine, Request
from asyncrl.engines.servers.chunk_outbox import ChunkOutbox
from asyncrl.engines.servers.errors import ServerError, ServerGone
from asyncrl.engines.servers.server_engine import ABORT_S, ABORTS, PATIENCE_S, ServerEngine
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.servers.spans import TokenRun
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.runtime.ipc.waits import Waits

WEIGHTS: dict[str, Any] = {}
LAYOUT = RoutingLayout(LAYERS, ROUTED, 2, EXPERTS)


class World(Collected):
    """An engine over a fake server, and everything that it emitted."""

    def __init__(self, server: FakeServer, engine: ServerEngine, waits: Waits) -> None:
        super().__init__()
        self.server, self.engine, self.waits = server, engine, waits

    def truth(self, request: Request) -> list[tuple[int, int, float]]:
        """(version, id, log-probability) of the response from the prefix on, after looking at each
        chunk."""
        found: list[tuple[int, int, float]] = []
        for chunk in self.chunks(request.rollout):
            assert chunk.start == request.prefix_tokens + len(found) or not len(chunk.ids)
            assert len(chunk.ids) == len(chunk.behaviour) and chunk.attempt == request.attempt
            assert chunk.ids.dtype == np.int32 and chunk.behaviour.dtype == np.float32
            found += [
                (chunk.version, i, b)
                for i, b in zip(chunk.ids.tolist(), chunk.behaviour.tolist(), strict=True)
            ]
        for index, (version, sampled, behaviour) in enumerate(found, request.prefix_tokens):
            assert (sampled, behaviour) == (token(int(request.ids[0]), index), -version)
        self.recorded(request, [version for version, _, _ in found])
        return found

    def recorded(self, request: Request, versions: list[int]) -> list[bool]:
        """Of each token from the prefix on whether its experts are known, which are then those of
        the pass that predicted it."""
        known = dict[int, list[int]]()
        for chunk in self.chunks(request.rollout):
            end = chunk.start + len(chunk.ids)
            rows = () if chunk.routing is None else chunk.routing
            for index, row in enumerate(rows, end - len(rows)):
                assert index not in known and index >= request.prefix_tokens
                if not (row == 255).all():
                    known[index] = row.view("<u2").tolist()
        prompt = int(request.ids[0])
        for index, row in known.items():
            every = experts(prompt, index, versions[index - request.prefix_tokens])
            assert row == [number for layer in ROUTED for number in every[layer]]
        return [request.prefix_tokens + index in known for index in range(len(versions))]


@asynccontextmanager
async def world(
    *,
    mode: str = "retract",
    load_s: float = 0.5,
    slots: int = 4,
    running: bool = True,
    routing: RoutingLayout | None = LAYOUT,
    **server: Any,
) -> AsyncIterator[World]:
    fake = FakeServer(**server)
    waits = Waits()
    async with SglangClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:

        async def load(version: int, weights: Any, _: Any, stop: Callable[[], None]) -> float:
            stop()
            await fake.load(version, load_s, mode)
            return load_s

        engine = ServerEngine(
            client,
            load,
            EngineOptions(slots=slots, context_tokens=400, chunk_tokens=8),
            vocab_size=97,
            stop_ids=frozenset({96}),
            idle=waits.idle_for,
            routing=routing,
        )
        found = World(fake, engine, waits)
        if running:
            nursery.start_soon(engine.run, found.emit)
        yield found
        nursery.cancel_scope.cancel()


def cached(server: FakeServer) -> list[str]:
    """The version in whose part of the prefix cache each request was, all of one engine."""
    keys = [body["extra_key"].split("/") for body in server.paths("/generate")]
    assert len({nonce for nonce, _ in keys}) == 1 and all(len(nonce) == 32 for nonce, _ in keys)
    return [version for _, version in keys]


def ask(
    rollout: int,
    *,
    prompt: int = 1,
    prefix: int = 0,
    budget: int = 20,
    version: int | None = None,
    attempt: int = 0,
) -> Request:
    """`prompt` is the only id of the prompt, and of the response `prefix` tokens are known."""
    ids = [prompt, *(token(prompt, i) for i in range(prefix))]
    return Request(rollout, attempt, rollout, np.array(ids, np.int32), prefix, budget, 1.0, version)


def test_it_is_an_engine() -> None:
    engine: type[Engine] = ServerEngine
    assert engine


async def test_it_goes_on_while_a_load_is_prepared_and_stops_when_weights_change(
    autojump_clock: MockClock,
) -> None:
    """Of several servers behind one engine each says when it stops."""
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        prepared, left = trio.Event(), list[int]()

        async def load(version: int, weights: Any, _: Any, stop: Callable[[], None]) -> float:
            await trio.sleep(1.0)
            left.append(len(w.chunks(0)))
            prepared.set()
            stop()
            stop()
            await w.server.load(version, 1.0)
            left.append(len(w.chunks(0)))
            return 1.0

        w.engine._load = load
        w.engine.submit([ask(0, budget=300)])
        await w.engine.load(1, WEIGHTS)
        assert prepared.is_set() and left[0] > 5 and left[1] <= left[0] + 1, left
        await w.ended(0)
        assert {version for version, *_ in w.truth(ask(0, budget=300))} == {0, 1}


async def test_requests_wait_for_the_first_load_and_then_for_a_slot(
    autojump_clock: MockClock,
) -> None:
    async with world(slots=3) as w:
        requests = [ask(i, prompt=i) for i in range(8)]
        w.engine.submit(requests)
        await trio.sleep(5)
        assert w.engine.version is None and not w.server.asked and not w.frames
        await w.engine.load(0, WEIGHTS)
        await w.ended(*range(8))
        assert w.server.most == 3
        sent = [body["input_ids"][0] for body in w.server.paths("/generate")]
        assert [sorted(sent[a : a + 3]) for a in (0, 3, 6)] == [
            [0, 1, 2],
            [3, 4, 5],
            [6, 7],
        ]  # first come, first served
        assert set(w.finishes().values()) == {"length"}
        assert all(len(w.truth(request)) == 20 for request in requests)
        assert len({body["rid"] for body in w.server.paths("/generate")}) == 8
        assert all(len(body["rid"]) == 32 for body in w.server.paths("/generate"))
        assert w.waits.idle()["weights"] == pytest.approx(5.5)


async def test_what_is_sent_says_what_was_asked(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.engine.load(7, WEIGHTS)
        w.engine.submit([ask(1, prompt=5, prefix=3, budget=10)])
        await w.ended(1)
        (body,) = w.server.paths("/generate")
        assert (
            body["input_ids"] == [5, 5, 6, 7]
            and body["return_logprob"]
            and body["stream"]
            and cached(w.server) == ["7"]
        )
        sampling = body["sampling_params"]
        assert (
            sampling["max_new_tokens"] == 10
            and sampling["temperature"] == 1.0
            and sampling["stop_token_ids"] == [96]
        )
        assert sampling["stream_interval"] == 8 and (
            sampling["top_p"],
            sampling["top_k"],
            sampling["min_p"],
        ) == (1.0, -1, 0.0)


async def test_the_stop_id_is_part_of_the_tokens(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1, prompt=90)])
        await w.ended(1)
        assert w.finishes() == {1: "stop"}
        assert [sampled for _, sampled, _ in w.truth(ask(1, prompt=90))] == list(range(90, 97))


async def test_many_streams_leave_in_few_frames(autojump_clock: MockClock) -> None:
    async with world(slots=64) as w:
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(i, prompt=i % 20, budget=64) for i in range(64)])
        await w.ended(*range(64))
        assert len(w.chunks()) > 64 * 8
        assert len(w.frames) < 20  # nine events of each, all at the same times


@pytest.mark.parametrize("mode", ["retract", "abort"])
async def test_loads_amid_decoding_leave_every_token_under_its_version(
    mode: str, autojump_clock: MockClock
) -> None:
    async with world(mode=mode) as w:
        await w.engine.load(0, WEIGHTS)
        requests = [ask(i, prompt=i * 3, budget=60) for i in range(6)]
        w.engine.submit(requests)
        for version in (1, 2):
            await trio.sleep(0.155)
            pause = await w.engine.load(version, WEIGHTS)
            assert pause == 0.5 and w.engine.version == version
        await w.ended(*range(6))
        assert set(w.finishes().values()) == {"length"}
        truths = [w.truth(request) for request in requests]
        assert [len(truth) for truth in truths] == [60] * 6
        assert [version for version, _, _ in truths[0]] == [0] * 15 + [1] * 15 + [2] * 30
        assert set(cached(w.server)) == ({"0", "1", "2"} if mode == "abort" else {"0", "2"})


@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
async def test_experts_come_with_the_end_of_a_response_for_each_of_its_tokens(
    mode: str, autojump_clock: MockClock
) -> None:
    """Those of the pass that predicted a token; of a request that was taken back and computed again
    by other weights the earlier tokens have none."""
    async with world(mode=mode) as w:
        await w.engine.load(0, WEIGHTS)
        requests = [ask(i, prompt=i * 3, prefix=i, budget=60) for i in range(4)]
        w.engine.submit(requests)
        for version in (1, 2):
            await trio.sleep(0.155)
            await w.engine.load(version, WEIGHTS)
        w.engine.interrupt([3])
        await w.ended(*range(4))
        for request in requests:
            versions = [version for version, _, _ in w.truth(request)]
            known = w.recorded(request, versions)
            assert known == [mode != "retract" or version == 2 for version in versions]
    async with world(mode=mode, routing=None) as w:
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1)])
        await w.ended(1)
        assert not any("return_routed_experts" in body for body in w.server.paths("/generate"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unrecorded", "returned no experts with the end of a response: start it with"),
        ("skipped", "no router can have chosen"),
        ("unknown expert", "no router can have chosen"),
        ("fewer rows", "the experts of 19 tokens with the end of 20"),
        ("of another model", "1 numbers of experts, which are not rows of 2 in 3 layers"),
        ("no numbers", "experts in 7 bytes"),
        ("no base64", "experts that are no base64"),
    ],
)
async def test_experts_that_cannot_be_those_are_named(
    fault: str, said: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        w.server.faults[1] = (fault, 0)
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1)])
        await w.ended(1)
        assert w.finishes() == {1: "interrupted"} and said in caplog.text
        assert len(w.truth(ask(1))) == 17, "what was streamed before stays"


def test_much_routing_leaves_in_pieces_and_in_several_frames() -> None:
    outbox, asked = ChunkOutbox(), ask(1, prefix=3, budget=40_000)
    records = np.arange(40_000, dtype=np.uint8)[:, None].repeat(1000, 1)
    ids, behaviour = np.zeros(40_000, np.int32), np.zeros(40_000, np.float32)
    outbox.add(asked, 0, [TokenRun(0, 0, ids, behaviour)])
    outbox.route(asked, 0, records, 0)
    outbox.end(asked, 40_000, "length", 0)
    frames = []
    while len(outbox):
        frames.append(outbox.take())
    rows = [
        (chunk.start + len(chunk.ids), chunk.routing)
        for frame in frames
        for chunk in frame
        if chunk.routing is not None
    ]
    assert [end - len(piece) for end, piece in rows] == [3, *(end for end, _ in rows[:-1])]
    assert np.array_equal(np.concatenate([piece for _, piece in rows]), records)
    assert max(piece.nbytes for _, piece in rows) <= 1 << 20
    sizes = [sum(c.routing.nbytes for c in frame if c.routing is not None) for frame in frames]
    assert max(sizes) < (1 << 24) + (1 << 20) and len(frames) == 3
    assert [c.finish for frame in frames for c in frame if c.finish] == ["length"]
    assert frames[-1][-1].finish


async def test_what_is_held_back_for_long_is_told_by_a_cut(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.engines.servers.server_engine.HELD", 30)
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        long, short = ask(1, budget=300), ask(2, budget=35)
        w.engine.submit([long, short])
        await trio.sleep(0.123)
        await w.engine.load(1, WEIGHTS)
        await trio.sleep(0.5)
        assert w.finishes() == {2: "length"}
        assert 12 + 30 < len(w.truth(long)) < 12 + 50 + 1  # without it, 9 until the end
        await w.ended(1)
        assert len(w.truth(long)) == 300 and len(w.truth(short)) == 35
        assert len(w.server.paths("/abort_request")) == 1
        assert cached(w.server) == ["0", "0", "1"]


async def test_nothing_leaves_and_nothing_is_sent_while_a_load_is_under_way(
    autojump_clock: MockClock,
) -> None:
    async with world(load_s=10.0, slots=4) as w:
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1, budget=50), ask(2, budget=50)])
        await trio.sleep(0.2)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.engine.load, 1, WEIGHTS)
            await trio.sleep(1.0)
            before, asked = len(w.frames), len(w.server.asked)
            w.engine.interrupt([2])
            w.engine.submit([ask(3)])
            await trio.sleep(8.0)
            assert len(w.frames) == before and len(w.server.asked) == asked
        await w.ended(1, 2, 3)
        assert all(at >= begun + 10.0 for at, _, _ in w.server.asked[asked:])
        assert w.finishes() == {1: "length", 2: "interrupted", 3: "length"}


async def test_what_a_failed_load_may_have_decoded_never_leaves(autojump_clock: MockClock) -> None:
    class Unverified(Exception): ...

    fake, frames = FakeServer(), []

    async def load(version: int, weights: Any, _: Any, stop: Callable[[], None]) -> float:
        stop()
        await fake.load(version, 0.5)
        if version:
            await trio.sleep(
                1.0
            )  # it decodes again, and only then it turns out that the weights are wrong
            raise Unverified
        return 0.5

    async def emit(chunks: Sequence[Chunk]) -> None:
        frames.append(chunks)

    async with SglangClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:
        engine = ServerEngine(
            client,
            load,
            EngineOptions(slots=4, context_tokens=400, chunk_tokens=8),
            vocab_size=97,
            stop_ids=frozenset(),
        )
        nursery.start_soon(engine.run, emit)
        await engine.load(0, WEIGHTS)
        engine.submit([ask(1, budget=300)])
        await trio.sleep(0.3)
        with pytest.raises(Unverified):
            await engine.load(1, WEIGHTS)
        await trio.sleep(10)
        assert {chunk.version for frame in frames for chunk in frame} == {0} and engine.version == 0
        nursery.cancel_scope.cancel()


async def test_an_interrupt_ends_with_what_was_sampled_and_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with world(slots=2) as w:
        await w.engine.load(0, WEIGHTS)
        requests = [ask(i, prompt=i, budget=300) for i in range(4)]
        w.engine.submit(requests)
        await trio.sleep(0.505)
        w.engine.interrupt([0, 3, 99])
        await w.ended(0, 3)
        assert w.finishes() == {0: "interrupted", 3: "interrupted"}
        assert len(w.truth(requests[0])) == 50 and w.truth(requests[3]) == []
        assert len(w.server.paths("/abort_request")) == 1
        await trio.sleep(0.1)
        assert len(w.server.running) == 2  # the third has the slot
        w.engine.interrupt([1, 2])
        await w.ended(1, 2)
        assert not w.server.running


async def test_an_abort_that_is_not_heeded_is_said_again_and_then_the_connection_is_closed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        w.server.faults[1] = ("deaf", 0)
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1, budget=350)])
        w.server.pace_s = 1.0
        await trio.sleep(10)
        begun = trio.current_time()
        w.engine.interrupt([1])
        await w.ended(1)
        assert trio.current_time() - begun == pytest.approx(ABORTS * ABORT_S, abs=0.1)
        assert len(w.server.paths("/abort_request")) == ABORTS and not w.server.running
        assert w.finishes() == {1: "interrupted"} and "its connection is closed" in caplog.text


async def test_a_request_that_was_not_heard_of_is_closed_rather_than_aborted(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        w.server.faults[1] = ("hang", 0)
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1)])
        await trio.sleep(1)
        w.engine.interrupt([1])
        await w.ended(1)
        assert (
            not w.server.paths("/abort_request")
            and not w.server.running
            and w.finishes() == {1: "interrupted"}
        )


async def test_what_the_server_ended_unasked_goes_on(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        request = ask(1, prefix=4, budget=50)
        w.engine.submit([request])
        for _ in range(3):
            await trio.sleep(0.1)
            async with SglangClient.open(URL, transport=w.server) as somebody:
                await somebody.abort_all()
        await w.ended(1)
        assert w.finishes() == {1: "length"} and len(w.truth(request)) == 50
        sent = w.server.paths("/generate")
        assert len(sent) == 4
        assert all(
            len(body["input_ids"]) + body["sampling_params"]["max_new_tokens"] == 55
            for body in sent
        )


async def test_a_request_that_gets_nowhere_is_given_back(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        w.server.pace_s = 1.0
        w.engine.submit([ask(1)])
        async with SglangClient.open(URL, transport=w.server) as somebody:
            while not w.finishes():
                await trio.sleep(0.1)
                await somebody.abort_all()
        assert w.finishes() == {1: "interrupted"} and len(w.server.paths("/generate")) == 3


async def test_a_pinned_request_is_served_under_its_version_or_not_at_all(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        await w.engine.load(3, WEIGHTS, pin=True)
        pinned = ask(1, budget=100, version=3)
        w.engine.submit(
            [pinned, ask(2, version=2), ask(4, budget=90, version=3), ask(5, budget=300, version=3)]
        )
        await w.ended(2, 4)
        assert w.finishes() == {2: "interrupted", 4: "length"}
        await w.engine.load(4, WEIGHTS)
        await w.ended(5)
        assert {version for version, _, _ in w.truth(pinned)} == {3} and {
            chunk.version for chunk in w.chunks(5)
        } == {3}
        w.engine.submit([ask(6, version=3), ask(7, version=4, budget=300)])
        await w.ended(6)
        await trio.sleep(0.5)
        w.engine.unpin(4)
        await w.ended(7)
        assert w.finishes()[6] == w.finishes()[7] == "interrupted" and len(w.chunks(7)) > 3


@pytest.mark.parametrize(
    ("fault", "said", "told"),
    [
        (("fewer", 9), "8 log-probabilities|log-probabilities where", 9),
        (("garbage", 9), "no event of a stream|cannot be read", 9),
        (("lie", 0), "version 77", 17),
        (("break", 9), "the connection failed", 9),
    ],
)
async def test_a_stream_that_cannot_be_told_is_given_back_with_what_was_certain(
    fault: tuple[str, int],
    said: str,
    told: int,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w:
        w.server.faults[1] = fault
        await w.engine.load(0, WEIGHTS)
        bad, good = ask(1, prompt=1), ask(2, prompt=30)
        w.engine.submit([bad, good])
        await w.ended(1, 2)
        assert w.finishes() == {1: "interrupted", 2: "length"}
        assert len(w.truth(bad)) == told and len(w.truth(good)) == 20
        assert not w.server.running and "rollout 1 is returned" in caplog.text
        assert re.search(said, caplog.text)


@pytest.mark.parametrize("fault", ["nan", "foreign"])
async def test_what_no_engine_can_have_sampled_is_passed_on_for_the_coordinator_to_name(
    fault: str, autojump_clock: MockClock
) -> None:
    async with world() as w:
        w.server.faults[1] = (fault, 19)
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1)])
        await w.ended(1)
        assert w.finishes() == {1: "length"}
        last = w.chunks(1)[-1]
        assert np.isnan(last.behaviour[-1]) if fault == "nan" else last.ids[-1] == 5000


async def fails(w: World, kind: type[Exception], said: str) -> None:
    """Run the engine until it fails like this."""
    with pytest.RaisesGroup(pytest.RaisesExc(kind, match=said)):
        await w.engine.run(w.emit)


async def test_three_streams_that_fail_in_a_row_are_no_accident(autojump_clock: MockClock) -> None:
    async with world(slots=1, running=False) as w, trio.open_nursery() as nursery:
        w.server.faults = {1: ("garbage", 0), 3: ("fewer", 0), 5: ("lie", 0)}
        nursery.start_soon(w.engine.load, 0, WEIGHTS)
        w.engine.submit([ask(i, prompt=i) for i in (1, 3, 2, 1, 3, 5, 2)])
        await fails(w, ServerError, f"{URL}.* version 77")
        assert len(w.server.paths("/generate")) == 6


async def test_requests_that_the_server_refuses_end_by_that_name_and_say_nothing_of_the_server(
    autojump_clock: MockClock,
) -> None:
    async with world(slots=1) as w:
        w.server.faults = dict.fromkeys(range(8), ("refuse", 0))
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(i, prompt=i) for i in range(9)])
        await w.ended(*range(9))
        assert w.finishes() == dict.fromkeys(range(8), "refused") | {8: "length"}
        assert all("too long" in w.chunks(i)[-1].why for i in range(8))
        assert len(w.server.paths("/generate")) == 9, "none is sent again"


async def test_a_server_that_died_ends_the_engine(autojump_clock: MockClock) -> None:
    async with world(running=False) as w, trio.open_nursery() as nursery:

        async def kill() -> None:
            await w.engine.load(0, WEIGHTS)
            w.engine.submit([ask(1, budget=300), ask(2, budget=300)])
            await trio.sleep(1)
            w.server.die()

        nursery.start_soon(kill)
        with pytest.RaisesGroup(
            pytest.RaisesExc(ServerGone, match="not there or died"),
            allow_unwrapped=False,
            flatten_subgroups=True,
        ):
            await w.engine.run(w.emit)


async def test_a_server_that_somebody_else_paused_is_no_endless_wait(
    autojump_clock: MockClock,
) -> None:
    async with world(running=False) as w, trio.open_nursery() as nursery:

        async def pause() -> None:
            await w.engine.load(0, WEIGHTS)
            w.engine.submit([ask(1, budget=300)])
            await trio.sleep(1)
            w.server.paused = True

        nursery.start_soon(pause)
        begun = trio.current_time()
        await fails(w, ServerGone, "another client paused it")
        assert trio.current_time() - begun < 2 * PATIENCE_S


async def test_a_long_load_or_a_long_rest_is_not_taken_for_a_pause_by_somebody_else(
    autojump_clock: MockClock,
) -> None:
    async with world(load_s=500.0) as w:
        await w.engine.load(0, WEIGHTS)
        w.engine.submit([ask(1, budget=100)])
        await trio.sleep(0.5)
        await w.engine.load(1, WEIGHTS)
        await w.ended(1)
        w.server.paused = True
        await trio.sleep(500)
        w.server.paused = False
        assert w.finishes() == {1: "length"}
        assert w.waits.idle()["requests"] >= 500


@pytest.mark.parametrize(
    "request_",
    [
        ask(1, prompt=97),
        ask(1, prompt=-1),
        ask(1, budget=400),
        Request(1, 0, 0, np.zeros(0, np.int32), 0, 1, 1.0),
    ],
)
async def test_what_the_server_could_not_take_never_reaches_it(
    request_: Request, autojump_clock: MockClock
) -> None:
    async with world() as w:
        await w.engine.load(0, WEIGHTS)
        with pytest.raises(ValueError, match="rollout 1"):
            w.engine.submit([ask(0), request_])
        await trio.sleep(5)
        assert not w.server.asked


async def test_a_load_without_weights_is_refused() -> None:
    async with world() as w:
        with pytest.raises(ValueError, match="needs them"):
            await w.engine.load(0, None)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[float, str, int]]:
    """A plan for an engine: requests, interrupts, loads, and aborts by others, with their times."""
    kinds = st.sampled_from(
        ["submit", "submit", "submit", "interrupt", "load", "abort_all", "break"]
    )
    times = st.floats(0.0, 3.0).map(lambda at: round(at, 3))
    return sorted(draw(st.lists(st.tuples(times, kinds, st.integers(0, 9)), max_size=25)))


@given(lives(), st.sampled_from(["retract", "in_place", "abort"]), st.integers(1, 4))
@settings(max_examples=drawn(60))
def test_whatever_happens_every_request_ends_once_and_every_token_is_the_truth(
    events: list[tuple[float, str, int]], mode: str, slots: int
) -> None:
    async def live() -> None:
        async with (
            world(mode=mode, slots=slots, load_s=0.2) as w,
            SglangClient.open(URL, transport=w.server) as somebody,
        ):
            await w.engine.load(0, WEIGHTS)
            requests: list[Request] = []
            version, begun = 0, trio.current_time()
            for at, kind, choice in events:
                await trio.sleep_until(begun + at)
                match kind:
                    case "submit":
                        requests.append(
                            ask(
                                len(requests),
                                prompt=choice,
                                prefix=choice % 3,
                                budget=10 * choice + 1,
                            )
                        )
                        w.engine.submit([requests[-1]])
                    case "interrupt":
                        w.engine.interrupt([choice])
                    case "load":
                        version += 1
                        await w.engine.load(version, WEIGHTS)
                    case "abort_all" if not w.server.paused:
                        await somebody.abort_all()
            with trio.fail_after(100):
                await w.ended(*(request.rollout for request in requests))
            for request in requests:
                found = w.truth(request)
                versions = [version for version, _, _ in found]
                assert versions == sorted(versions)
                finish = w.finishes()[request.rollout]
                assert finish in ("length", "stop", "interrupted")
                assert (len(found) == request.max_new_tokens) == (
                    finish == "length"
                ) or finish == "interrupted"
            assert w.server.most <= slots and not w.server.running

    trio.run(live, clock=MockClock(autojump_threshold=0))
