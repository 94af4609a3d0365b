"""Hazards of the real server, as far as they are known: each is provoked, and the
engine shown to be safe from it.

SGLang 0.5.23, and what is done about it:

1   an id outside the vocabulary kills the server: ids are checked first
2   an abort ends every request whose id has that prefix: ids have 32 hexadecimal digits
3   a request sent during a pause cannot be aborted: none is sent then
4   a flush is refused with 400 after the weights changed, if requests are frozen: no flush then
5   an unknown parameter is accepted; a wrong shape leaves half of the weights changed: both are
    compared first, and after half a load the server is replaced
6   `/update_weights_from_tensor` from another process crashes it: not used
7   `/update_weight_version` aborts everything: the version comes with the last bucket
8   a retracted request may find old weights' prefix cache: flushed at each load, keyed by version
9   an end may lack log-probabilities: the rollout resumes from what was certain
10  an abort may be lost: repeated three times, then the connection is closed
11  a continuation need not equal the uncut run bit by bit: log-probabilities are never recomputed
12  `in_place` may deadlock an update, with several GPUs a server: `retract` is the default
13  a closed connection ends its request: used if an abort is not heeded
14  its daemons inherit standard output: it is a file, and the whole session is killed

4 to 7, 12 and 14 concern weights and processes: `test_sglang_publication`, `test_sglang_servers`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import trio
from collected import Collected
from numpy.typing import NDArray
from real_sglang import SEED, Server, slow

from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, new_model, write_tokenizer
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.servers.errors import RequestRefused, ServerGone
from asyncrl.engines.servers.served import Served
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.servers.server_types import Mode, StreamEvent
from asyncrl.engines.sglang.http_types import ServerLoad
from asyncrl.engines.sglang.routed import Routed
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.runtime.ipc.waits import Pulse

ROUNDING = 2e-5
"""Nats that float32 may lose between one order of adding up and another, in this model."""

PROMPT = np.array([5, 17, 100, 42, 7, 201, 33, 9], np.int32)


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Model directories: version v has the weights of seed `SEED + v`."""
    found = []
    for version in range(3):
        found.append(tmp_path_factory.mktemp(f"policy_{version}"))
        new_model(SEED + version).save_pretrained(found[-1])
        write_tokenizer(found[-1])
    return found


@pytest.fixture
async def client(sglang_server: Server, policies: list[Path]) -> AsyncIterator[SglangClient]:
    """The shared server, idle, with version 0."""
    async with sglang_server.client(deadline_s=30.0, silence_s=60.0) as opened:
        await opened.update_from_disk(str(policies[0]), 0, flush=True)
        yield opened
        await slow(opened, None)
        await holds(opened, 0)


async def holds(client: SglangClient, running: int, queued: int = 0) -> None:
    """Wait until the server holds so many requests; it reports on itself now and then."""
    for _ in range(600):
        if await client.load() == ServerLoad(running, queued):
            return
        await trio.sleep(0.05)
    raise AssertionError(await client.load())


def stream(
    client: SglangClient, rid: str, *, budget: int = 24, temperature: float = 0.0, **more: Any
) -> aclosing[Any]:
    return aclosing(
        client.generate(rid, PROMPT, max_new_tokens=budget, temperature=temperature, **more)
    )


async def read(client: SglangClient, rid: str, **more: Any) -> list[StreamEvent]:
    async with stream(client, rid, **more) as events:
        return [event async for event in events]


def name(number: int) -> str:
    """An id of this test alone: two seconds after a response the server aborts whatever has its id,
    so that a test would lose a request to the one before it."""
    test = os.environ["PYTEST_CURRENT_TEST"].encode()
    return f"{zlib.crc32(test):024x}{number:08x}"


class Response(NamedTuple):
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]


def whole(parts: Sequence[StreamEvent] | Sequence[Chunk]) -> Response:
    """All tokens, which must follow one another."""
    counts = [len(part.ids) for part in parts]
    assert [part.start - parts[0].start for part in parts] == [
        sum(counts[:place]) for place in range(len(parts))
    ]
    return Response(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.behaviour for part in parts]),
    )


def computed(
    version: int, known: NDArray[np.int32], ids: NDArray[np.int32], temperature: float = 1.0
) -> NDArray[np.float32]:
    """The log-probability of each of `ids` after `known`, as transformers has it."""
    both = torch.from_numpy(np.concatenate([known, ids]).astype(np.int64))
    with torch.no_grad():
        logits = new_model(SEED + version)(both[None]).logits[0, len(known) - 1 : -1]
    return (
        torch.log_softmax(logits / temperature, -1)
        .gather(1, both[len(known) :, None])[:, 0]
        .numpy()
    )


class Serving(Collected):
    """An engine over the real server."""

    def __init__(self, engine: ServerEngine) -> None:
        super().__init__()
        self.engine = engine

    def response(self, rollout: int) -> Response:
        return whole(self.chunks(rollout))


@asynccontextmanager
async def serving(
    client: SglangClient,
    policies: list[Path],
    mode: Mode = "retract",
    *,
    flush: bool = False,
    slots: int = 32,
    served: Served | None = None,
) -> AsyncIterator[Serving]:
    """Loads are by disk; the engine asks `served`, which is the client unless given."""

    async def load(
        version: int, weights: Mapping[str, torch.Tensor], _: object, stop: Callable[[], None]
    ) -> float:
        stop()
        await client.pause(mode)
        await client.update_from_disk(str(policies[version]), version, flush=flush)
        await client.resume()
        return 0.0

    async with trio.open_nursery() as nursery:
        stops = frozenset({END_ID})
        engine = ServerEngine(
            served or client,
            load,
            EngineOptions(slots=slots, context_tokens=2040, chunk_tokens=8),
            vocab_size=VOCABULARY,
            stop_ids=stops,
        )
        found = Serving(engine)
        nursery.start_soon(engine.run, found.emit)
        await engine.load(0, {})
        with trio.fail_after(100):
            yield found
        nursery.cancel_scope.cancel()


def ask(
    rollout: int,
    *,
    ids: NDArray[np.int32] = PROMPT,
    prefix: int = 0,
    budget: int = 24,
    temperature: float = 0.0,
) -> Request:
    return Request(rollout, 0, rollout, ids, prefix, budget, temperature)


# ------------------------------------------------------------------------------------ the protocol


async def test_what_a_server_is_can_be_asked(client: SglangClient) -> None:
    assert await client.ready()
    info = await client.server_info()
    assert (
        info.skip_tokenizer_init
        and info.tp_size == 1
        and info.dtype == "float32"
        and info.version.startswith("0.")
    )
    served = await client.model_info()
    assert (served.weight_version, served.architectures) == ("0", ["Qwen3ForCausalLM"])


async def test_log_probabilities_are_those_of_the_distribution_that_was_sampled_from(
    client: SglangClient,
) -> None:
    """Side by side, so that the server has greedy and sampled requests in one batch; greedy ones
    are given unscaled."""
    found: dict[int, Response] = {}
    temperatures = [0.0, 0.5, 1.0, 2.0, 0.0]

    async def one(place: int) -> None:
        found[place] = whole(
            await read(client, name(place), temperature=temperatures[place], stop_ids=[END_ID])
        )

    async with trio.open_nursery() as nursery:
        for place in range(len(temperatures)):
            nursery.start_soon(one, place)
    for place, temperature in enumerate(temperatures):
        ids, behaviour = found[place]
        np.testing.assert_allclose(
            behaviour, computed(0, PROMPT, ids, temperature or 1.0), atol=ROUNDING
        )
    np.testing.assert_array_equal(found[0].ids, found[4].ids)


async def test_a_text_is_scored_as_transformers_scores_it(client: SglangClient) -> None:
    scores = await client.score(PROMPT)
    np.testing.assert_allclose(scores, computed(0, PROMPT[:1], PROMPT[1:]), atol=ROUNDING)


async def test_events_come_at_the_first_token_and_then_at_the_interval(
    client: SglangClient,
) -> None:
    await slow(client, 0.03)  # a server that is behind sends two intervals as one
    events = await read(client, name(1), budget=24, stream_interval=8)
    assert [len(event.ids) for event in events] == [1, 8, 8, 7]
    assert [event.ending and event.ending.type for event in events] == [None, None, None, "length"]
    assert events[-1].spans is not None and [
        (s.version, s.start, s.end) for s in events[-1].spans
    ] == [("0", 0, 24)]


async def test_a_stop_id_is_the_last_token(client: SglangClient) -> None:
    ids = whole(await read(client, name(1))).ids
    stop = int(ids[10])
    events = await read(client, name(2), stop_ids=[stop])
    assert events[-1].ending is not None and events[-1].ending.type == "stop"
    np.testing.assert_array_equal(whole(events).ids, ids[: ids.tolist().index(stop) + 1])


@pytest.mark.parametrize(
    ("more", "said"), [({"budget": 5000}, "context length"), ({"temperature": -1.0}, "temperature")]
)
async def test_what_the_server_does_not_take_is_named(
    client: SglangClient, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestRefused, match=said) as caught:
        await read(client, name(1), **more)
    assert caught.value.status == 400


async def test_an_id_that_is_in_use_is_refused(client: SglangClient) -> None:
    """And the server aborts the request that has it, two seconds later: the engine never uses an id
    twice."""
    await slow(client, 0.05)
    async with stream(client, name(1), budget=1000) as events:
        await anext(events)
        with pytest.raises(RequestRefused, match="Duplicate request ID"):
            await read(client, name(1))
        endings = [event.ending async for event in events]
    assert endings[-1] is not None and endings[-1].type == "abort"


async def test_a_request_without_a_token_is_an_error_before_it_is_sent(
    client: SglangClient, policies: list[Path]
) -> None:
    async with serving(client, policies) as s:
        with pytest.raises(ValueError, match="no prompt"):
            s.engine.submit([ask(1, ids=np.zeros(0, np.int32))])


# ----------------------------------------------------------------------------------------- hazards


async def test_hazard_1_an_id_outside_the_vocabulary_does_not_reach_the_server(
    client: SglangClient, policies: list[Path]
) -> None:
    async with serving(client, policies) as s:
        for bad in (VOCABULARY, -1, 2**31 - 1):
            with pytest.raises(ValueError, match="outside the vocabulary"):
                s.engine.submit([ask(1, ids=np.array([5, bad], np.int32))])
        s.engine.submit([ask(2)])
        await s.ended(2)


@pytest.mark.soak
@pytest.mark.slow
async def test_hazard_1_because_it_kills_the_server(sglang_start: Callable[..., Server]) -> None:
    """On a server of its own, which sends only news in each event: that reads the same."""
    server = sglang_start("--incremental-streaming-output")
    async with server.client(silence_s=60.0) as client:
        assert (await client.server_info()).incremental_streaming_output
        await slow(client, 0.03)
        events = await read(client, name(1), stream_interval=8)
        ids, behaviour = whole(events)
        assert [len(event.ids) for event in events] == [1, 8, 8, 7]
        np.testing.assert_allclose(behaviour, computed(0, PROMPT, ids), atol=ROUNDING)
        async with stream(client, name(2), budget=1000, stream_interval=4) as stopped:
            got = [await anext(stopped), await anext(stopped)]
            await client.abort(name(2))
            got += [event async for event in stopped]
        assert (
            got[-1].ending is not None
            and got[-1].ending.type == "abort"
            and len(whole(got).ids) < 1000
        )
        with pytest.raises(ServerGone):
            async with aclosing(
                client.generate(
                    name(3), np.array([10**6], np.int32), max_new_tokens=4, temperature=1.0
                )
            ) as fatal:
                async for _ in fatal:
                    pass
        assert not await client.ready()


async def test_hazard_2_an_abort_matches_beginnings_and_ours_are_all_of_one_length(
    client: SglangClient, policies: list[Path]
) -> None:
    await slow(client, 0.03)
    async with stream(client, "p1", budget=500) as short, stream(client, "p10", budget=500) as long:
        await anext(short), await anext(long)
        await client.abort("p1")
        endings = [[event async for event in events][-1].ending for events in (short, long)]
        assert [ending.type for ending in endings] == ["abort", "abort"]
    async with serving(client, policies) as s:
        s.engine.submit([ask(rollout, budget=200) for rollout in range(1, 12)])
        await s.until(lambda: len(s.chunks()) > 20)
        s.engine.interrupt([1])
        await s.ended(*range(1, 12))
        assert [rollout for rollout, finish in s.finishes().items() if finish == "interrupted"] == [
            1
        ]


async def test_hazard_3_an_abort_during_a_pause_is_lost(client: SglangClient) -> None:
    """So is each later one of that request: only closing its connection ends it."""
    await client.pause("retract")
    assert not await client.ready()
    ending = []
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            ending.append((await read(client, name(1), budget=60))[-1].ending)

        nursery.start_soon(one)
        await trio.sleep(3)  # long enough for it to have come; a paused server does not say so
        await client.abort(name(1))
        await client.resume()
        await client.abort(name(1))
    assert ending[0] is not None and ending[0].type == "length"


async def test_hazard_3_the_engine_sends_neither_requests_nor_aborts_while_it_has_its_server_paused(
    client: SglangClient, policies: list[Path]
) -> None:
    paused, go = trio.Event(), trio.Event()

    async def load(
        version: int, weights: Mapping[str, torch.Tensor], _: object, stop: Callable[[], None]
    ) -> float:
        stop()
        await client.pause("retract")
        if version:
            paused.set()
            await go.wait()
        await client.update_from_disk(str(policies[version]), version, flush=True)
        await client.resume()
        return 0.0

    await slow(client, 0.03)
    async with trio.open_nursery() as nursery:
        engine = ServerEngine(
            client,
            load,
            EngineOptions(slots=8, context_tokens=2040, chunk_tokens=8),
            vocab_size=VOCABULARY,
            stop_ids=frozenset(),
        )
        s = Serving(engine)
        nursery.start_soon(engine.run, s.emit)
        await engine.load(0, {})
        engine.submit([ask(1, budget=1000), ask(2, budget=100)])
        await s.until(lambda: len(s.chunks(1)) > 2)
        async with trio.open_nursery() as loading:
            loading.start_soon(engine.load, 1, {})
            await paused.wait()
            engine.submit([ask(3, budget=1000), ask(4, budget=20)])
            engine.interrupt([1, 3])
            await trio.sleep(0.5)
            assert not s.finishes()
            go.set()
        with trio.fail_after(100):
            await s.ended(1, 2, 3, 4)
        assert s.finishes() == {1: "interrupted", 2: "length", 3: "interrupted", 4: "length"}
        assert (
            len(s.response(1).ids) < 1000
            and not len(s.response(3).ids)
            and {chunk.version for chunk in s.chunks(4)} == {1}
        )
        await holds(client, 0)
        nursery.cancel_scope.cancel()


class Heard(Routed):
    """The server, and how many tokens it has sent: an engine holds back those of which it does not
    know yet whose they are."""

    def __init__(self, client: SglangClient) -> None:
        super().__init__(client, [client])
        self.tokens = 0
        self._more = Pulse()
        self.generate = self._counted

    async def _counted(
        self, rid: str, ids: NDArray[np.int32], **more: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        async with aclosing(self._router.generate(rid, ids, **more)) as events:
            async for event in events:
                self.tokens += len(event.ids)
                self._more.set()
                yield event

    async def more(self, tokens: int) -> None:
        """Until so many more have come."""
        enough = self.tokens + tokens
        while self.tokens < enough:
            await self._more.wait()


async def decoded_across_loads(
    client: SglangClient, policies: list[Path], mode: Mode, *, flush: bool
) -> tuple[set[int], float]:
    """The versions that sampled six responses, during which weights changed twice, and by how much
    (nats) the log-probabilities that came after a change differ from what those weights give to the
    whole text."""
    heard = Heard(client)
    await slow(client, 0.02)
    async with serving(client, policies, mode, flush=flush, served=heard) as s:
        s.engine.submit([ask(rollout, budget=150, temperature=1.0) for rollout in range(6)])
        for version in (1, 2):
            await heard.more(
                6 * 12
                # more than what old weights sampled and is on its way, and few enough that no six
                # responses end in it
            )
            await s.engine.load(version, {})
        await s.ended(*range(6))
        gap, versions = 0.0, set()
        for rollout in range(6):
            ids, behaviour = s.response(rollout)
            assert len(ids) == len(behaviour) and s.finishes()[rollout] == (
                "stop" if ids[-1] == END_ID else "length"
            )
            assert len(ids) == 150 or ids[-1] == END_ID
            for chunk in s.chunks(rollout):
                versions.add(chunk.version)
                found = computed(
                    chunk.version, np.concatenate([PROMPT, ids[: chunk.start]]), chunk.ids
                )
                if chunk.version:
                    gap = max(gap, float(np.abs(chunk.behaviour - found).max(initial=0.0)))
                else:
                    np.testing.assert_allclose(chunk.behaviour, found, atol=ROUNDING)
        return versions, gap


@pytest.mark.parametrize(
    ("mode", "held"),
    [
        ("retract", 256),
        pytest.param("retract", 16, marks=pytest.mark.explore),
        pytest.param("abort", 256, marks=pytest.mark.explore),
    ],
)
async def test_hazard_9_after_a_load_each_token_has_its_log_probability_under_its_version(
    client: SglangClient,
    policies: list[Path],
    mode: Mode,
    held: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where streams are cut, so that little is held back."""
    monkeypatch.setattr("asyncrl.engines.servers.server_engine.HELD", held)
    versions, gap = await decoded_across_loads(client, policies, mode, flush=True)
    assert versions == {0, 1, 2} and gap < ROUNDING


async def test_a_load_in_place_keeps_what_old_weights_wrote(
    client: SglangClient, policies: list[Path]
) -> None:
    versions, gap = await decoded_across_loads(client, policies, "in_place", flush=False)
    assert versions == {0, 1, 2} and gap > 100 * ROUNDING


async def test_hazard_8_a_retracted_request_finds_its_own_old_keys_and_values_without_a_flush(
    client: SglangClient, policies: list[Path]
) -> None:
    """A key by version is not enough for those: they were sent under the old one."""
    _, gap = await decoded_across_loads(client, policies, "retract", flush=False)
    assert gap > 100 * ROUNDING


async def test_hazard_8_a_prompt_shared_across_versions_never_sees_old_keys_and_values(
    client: SglangClient, policies: list[Path]
) -> None:
    long = np.resize(PROMPT, 200)
    async with serving(client, policies) as s:
        for version in (0, 1, 0, 2):
            if version:
                await s.engine.load(version, {})
            rollout = len(s.finishes())
            s.engine.submit([ask(rollout, ids=long, temperature=1.0)])
            await s.ended(rollout)
            served = s.engine.version
            assert served is not None and {chunk.version for chunk in s.chunks(rollout)} == {served}
            ids, behaviour = s.response(rollout)
            np.testing.assert_allclose(behaviour, computed(served, long, ids), atol=ROUNDING)


async def test_hazard_8_which_a_server_left_alone_shows(
    client: SglangClient, policies: list[Path]
) -> None:
    """Without a key by version and without a flush, new weights read the prompt that old ones
    wrote."""
    await read(client, name(1))
    await client.update_from_disk(str(policies[1]), 1, flush=False)
    ids, behaviour = whole(await read(client, name(2)))
    assert np.abs(behaviour - computed(1, PROMPT, ids)).max() > 100 * ROUNDING
    keyed, behaviour = whole(await read(client, name(3), extra_key="1"))
    np.testing.assert_allclose(behaviour, computed(1, PROMPT, keyed), atol=ROUNDING)


async def test_hazard_10_everything_interrupted_ends_and_the_server_is_idle(
    client: SglangClient, policies: list[Path]
) -> None:
    await slow(client, 0.03)
    async with serving(client, policies, slots=24) as s:
        for rollout in range(40):
            s.engine.submit([ask(rollout, budget=1500)])
            if rollout % 10 == 9:
                await trio.sleep(
                    0.05
                    # some are decoding, some prefilled, some queued on the server, some in the
                    # engine
                )
        s.engine.interrupt(range(40))
        await s.ended(*range(40))
        assert set(s.finishes().values()) == {"interrupted"}
        await holds(client, 0)


async def test_hazard_11_a_continuation_keeps_what_was_sampled_and_goes_on_from_it(
    client: SglangClient, policies: list[Path]
) -> None:
    """Greedy, so that there is an uncut run to compare with: ids are equal, and log-probabilities
    as far as rounding lets them."""
    await slow(client, 0.03)
    async with serving(client, policies) as s:
        s.engine.submit([ask(1, budget=120)])
        await s.ended(1)
        uncut = s.response(1)
        s.engine.submit([ask(2, budget=120)])
        await s.until(lambda: len(s.chunks(2)) > 3)
        s.engine.interrupt([2])
        await s.ended(2)
        cut = s.response(2)
        done = len(cut.ids)
        assert 8 < done < 120 and s.finishes()[2] == "interrupted"
        s.engine.submit(
            [ask(3, ids=np.concatenate([PROMPT, cut.ids]), prefix=done, budget=120 - done)]
        )
        await s.ended(3)
        assert s.chunks(3)[0].start == done
        both = whole([*s.chunks(2), *s.chunks(3)])
        np.testing.assert_array_equal(both.ids, uncut.ids)
        np.testing.assert_allclose(both.behaviour, uncut.behaviour, atol=ROUNDING)


async def test_hazard_13_a_closed_connection_ends_its_request(client: SglangClient) -> None:
    await slow(client, 0.03)
    async with stream(client, name(1), budget=1500) as events:
        await anext(events)
        await holds(client, 1)
    await holds(client, 0)
