"""The client over a server that says whatever a test has it say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from asyncrl.engines.servers.errors import Misread, RequestRefused, ServerError, ServerGone
from asyncrl.engines.servers.other_model import Incompatible, Needs
from asyncrl.engines.servers.server_types import StreamEvent
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.engines.vllm.vllm_fit import check_vllm, refuse_other_adapters
from asyncrl.engines.vllm.vllm_types import VllmLora

URL = "http://vllm"
IDS = np.array([5, 6, 7], np.int32)
GENERATE = "/inference/v1/generate"
NEEDS = Needs("Qwen3ForCausalLM", "float32", 100, 4)


class Fake(httpx2.AsyncBaseTransport):
    """A server that answers each path by what `answers` has for it."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Callable[[Any], httpx2.Response]] = {}

    def on(self, path: str, answer: Callable[[Any], httpx2.Response] | Any) -> Fake:
        given = answer if callable(answer) else lambda _: httpx2.Response(200, json=answer)
        self.answers[path] = given
        return self

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        body = json.loads(await request.aread() or b"null")
        self.asked.append((request.url.path, body))
        if request.url.path not in self.answers:
            return httpx2.Response(404, json={"detail": "Not Found"})
        return self.answers[request.url.path](body)


class Bytes(httpx2.AsyncByteStream):
    """A body that comes in pieces, each when its turn does."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece


def event(
    ids: list[int],
    *,
    finish: str | None = None,
    behaviour: list[float | None] | None = None,
    spans: list[dict[str, Any]] | None = None,
) -> bytes:
    given = [-1.0] * len(ids) if behaviour is None else behaviour
    content = [{"token_id": id, "logprob": value} for id, value in zip(ids, given, strict=True)]
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": finish,
        "weight_versions": spans,
        "logprobs": {"content": content},
    }
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def said(*pieces: bytes) -> Callable[[Any], httpx2.Response]:
    async def each() -> AsyncIterator[bytes]:
        for piece in pieces:
            await trio.lowlevel.checkpoint()
            yield piece

    return lambda _: httpx2.Response(200, stream=Bytes(each()))


async def streamed(fake: Fake, tokens: int = 8) -> list[StreamEvent]:
    async with VllmClient.open(URL, transport=fake) as client:
        asked = client.generate("1" * 32, IDS, max_new_tokens=tokens, temperature=0.5)
        async with aclosing(asked) as events:
            return [event async for event in events]


def versioned() -> Fake:
    return Fake().on("/weight_info", {"weight_version": "4"}).on("/server_info", start())


def start(**changes: Any) -> dict[str, Any]:
    """The word of a server that fits a run in float32, with 100 tokens and 4 slots."""
    config = {
        "model_config": {
            "model": "/model",
            "dtype": "torch.float32",
            "max_model_len": 100,
            "logprobs_mode": "processed_logprobs",
            "skip_tokenizer_init": True,
        },
        "parallel_config": {"tensor_parallel_size": 1, "worker_extension_cls": "x"},
        "scheduler_config": {"max_num_seqs": 5},
        "weight_transfer_config": {"backend": "asyncrl"},
    }
    for section, change in changes.items():
        config[section] = None if change is None else config.get(section, {}) | change
    return {"vllm_config": config}


async def test_a_stream_comes_as_increments_under_the_version_that_is_served() -> None:
    spans = [{"version": "4", "start": 0, "end": 3}]
    last = event([3], finish="stop", spans=spans)
    fake = versioned().on(GENERATE, said(event([1, 2])[:30], event([1, 2])[30:] + last))
    events = await streamed(fake)
    assert [(e.start, e.ids.tolist(), e.version) for e in events] == [
        (0, [1, 2], "4"),
        (2, [3], "4"),
    ]
    assert events[0].ending is None and events[1].ending is not None
    assert events[1].ending.type == "stop" and events[1].spans is not None
    body = next(body for path, body in fake.asked if path == GENERATE)
    assert body["token_ids"] == [5, 6, 7] and body["sampling_params"]["ignore_eos"]
    whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert whole.items() <= body["sampling_params"].items()


@pytest.mark.parametrize(
    ("said_by_server", "error"),
    [
        (b"data: {}\n\n", "0 choices"),
        (b"data: not json\n\n", "cannot be read"),
        (b'data: {"choices": [{"token_ids": [1]}]}\n\n', "other tokens"),
        (event([2**40], behaviour=[-1.0]), "no vocabulary has"),
        (b"garbage\n\n", "no event of a stream"),
    ],
)
async def test_what_cannot_be_read_is_named(said_by_server: bytes, error: str) -> None:
    with pytest.raises(Misread, match=error):
        await streamed(versioned().on(GENERATE, said(said_by_server)))


async def test_a_stream_that_breaks_off_or_fails_amid_is_named() -> None:
    with pytest.raises(ServerGone, match="broke off the stream"):
        await streamed(versioned().on(GENERATE, said(event([1]))))
    failure = b'data: {"error": {"message": "out of \x1b memory", "code": 500}}\n\n'.replace(
        b"\x1b", b"\\u001b"
    )
    with pytest.raises(RequestRefused, match=r"out of \\x1b memory") as caught:
        await streamed(versioned().on(GENERATE, said(event([1]), failure)))
    assert caught.value.status == 500


async def test_a_missing_log_probability_becomes_nan() -> None:
    events = await streamed(
        versioned().on(GENERATE, said(event([1], finish="length", behaviour=[None])))
    )
    assert np.isnan(events[0].behaviour).all()


async def test_a_pause_waits_until_each_request_has_begun_and_then_until_each_has_ended(
    autojump_clock: MockClock,
) -> None:
    """A request that arrived behind the pause would be sampled by the next version."""
    log, paused = list[str](), trio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await trio.sleep(5)
        log.append("begun")
        yield event([1])
        await paused.wait()
        await trio.sleep(5)
        log.append("ended")
        yield event([], finish="abort")

    def pause(_: Any) -> httpx2.Response:
        log.append("paused")
        paused.set()
        return httpx2.Response(200, json={"status": "paused"})

    fake = versioned().on(GENERATE, lambda _: httpx2.Response(200, stream=Bytes(slow())))
    fake.on("/pause", pause)
    async with VllmClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:

        async def read() -> None:
            asked = client.generate("1" * 32, IDS, max_new_tokens=8, temperature=1.0)
            async with aclosing(asked) as events:
                async for _ in events:
                    pass

        nursery.start_soon(read)
        await trio.sleep(1)
        await client.pause("abort")
        log.append("returned")
    assert log == ["begun", "paused", "ended", "returned"]


async def test_what_is_asked_for_in_a_pause_is_sent_after_it_and_is_of_the_next_version() -> None:
    spans = [{"version": "5", "start": 0, "end": 1}]
    last = event([1], finish="length", spans=spans)
    fake = versioned().on(GENERATE, said(last)).on("/pause", {}).on("/resume", {})
    fake.on("/update_weights", {}).on("/update_weight_version", {})
    events: list[StreamEvent] = []
    async with VllmClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:

        async def read() -> None:
            asked = client.generate("1" * 32, IDS, max_new_tokens=8, temperature=1.0)
            async with aclosing(asked) as stream:
                events.extend([event async for event in stream])

        await client.pause("abort")
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert GENERATE not in [path for path, _ in fake.asked]
        await client.update([], [], [], group="", version=5, flush=True)
        await client.resume()
    assert [event.version for event in events] == ["5"]


def paused_until(tries: int) -> Callable[[Any], httpx2.Response]:
    """The answer of vLLM 0.33 to requests that come in a pause: `tries` are refused."""
    left = iter(range(tries))
    body = {"error": {"message": "Generation is paused.", "type": "ServiceUnavailableError"}}

    def answer(given: Any) -> httpx2.Response:
        if next(left, None) is None:
            return said(event([1], finish="length"))(given)
        return httpx2.Response(503, json=body)

    return answer


def paused_at(*looks: bool) -> Callable[[Any], httpx2.Response]:
    """The answer to each look for a pause; the last one stays."""
    said_next = iter(looks)
    return lambda _: httpx2.Response(200, json={"is_paused": next(said_next, looks[-1])})


@pytest.mark.parametrize("looks", [(True, True, False), (False,)])
async def test_a_request_that_another_pause_refuses_is_asked_again_after_it(
    looks: tuple[bool, ...], autojump_clock: MockClock
) -> None:
    """Also where the pause ended before it was looked for."""
    fake = versioned().on(GENERATE, paused_until(1)).on("/is_paused", paused_at(*looks))
    events = await streamed(fake)
    assert [event.ids.tolist() for event in events] == [[1]]
    assert [path for path, _ in fake.asked].count(GENERATE) == 2


async def test_a_server_that_is_busy_without_a_pause_says_so() -> None:
    fake = versioned().on(GENERATE, paused_until(9)).on("/is_paused", paused_at(False))
    with pytest.raises(RequestRefused) as caught:
        await streamed(fake)
    assert caught.value.later and not caught.value.lasting
    assert [path for path, _ in fake.asked].count(GENERATE) == 2


async def test_a_pause_that_another_does_not_end_is_named(autojump_clock: MockClock) -> None:
    fake = versioned().on(GENERATE, paused_until(1)).on("/is_paused", paused_at(True))
    with pytest.raises(ServerGone, match="is paused by another client, and was not resumed"):
        await streamed(fake)


async def test_a_paused_server_is_not_taken_for_one_that_takes_no_ids() -> None:
    fake = versioned().on("/server_info", start()).on("/version", {"version": "0.33.0"})
    fake.on(GENERATE, paused_until(9))
    async with VllmClient.open(URL, transport=fake) as client:
        await check_vllm(client, NEEDS)


async def test_what_is_refused_in_a_pause_of_another_does_not_hold_up_our_own(
    autojump_clock: MockClock,
) -> None:
    """Our pause waits for requests that were sent, and for none that waits to be sent again."""
    fake = versioned().on(GENERATE, paused_until(1)).on("/pause", {}).on("/resume", {})
    fake.on("/is_paused", paused_at(True, True, True, True, False))
    async with VllmClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:
        events: list[StreamEvent] = []

        async def read() -> None:
            asked = client.generate("1" * 32, IDS, max_new_tokens=8, temperature=1.0)
            async with aclosing(asked) as stream:
                events.extend([event async for event in stream])

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await client.pause("abort")
        await trio.sleep(100)
        assert not events, "nothing is sent in our own pause"
        await client.resume()
    assert len(events) == 1


async def test_a_server_that_begins_nothing_is_named_and_not_waited_for_forever(
    autojump_clock: MockClock,
) -> None:
    async def silent() -> AsyncIterator[bytes]:
        await trio.sleep_forever()
        yield b""

    fake = versioned().on(GENERATE, lambda _: httpx2.Response(200, stream=Bytes(silent())))
    async with (
        VllmClient.open(URL, transport=fake, silence_s=30.0) as client,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            asked = client.generate("1" * 32, IDS, max_new_tokens=8, temperature=1.0)
            async with aclosing(asked) as events:
                async for _ in events:
                    pass

        nursery.start_soon(read)
        await trio.sleep(1)
        with pytest.raises(ServerGone, match="did not begin 1 of its requests"):
            await client.pause("abort")
        nursery.cancel_scope.cancel()


async def test_scores_are_those_of_the_ids_that_were_asked_for() -> None:
    entries = [None, {"6": {"logprob": -0.5}, "9": {"logprob": -0.1}}, {"7": {"logprob": None}}]
    fake = versioned().on(GENERATE, {"prompt_logprobs": entries})
    async with VllmClient.open(URL, transport=fake) as client:
        first, second = await client.score(IDS)
        assert first == -0.5 and np.isnan(second)
        fake.on(GENERATE, {"prompt_logprobs": [None, {"9": {"logprob": -0.1}}, None]})
        with pytest.raises(Misread, match="scored other ids"):
            await client.score(IDS)


async def test_a_request_names_its_adapter_and_no_other_model() -> None:
    fake = versioned().on(GENERATE, said(event([1], finish="stop")))
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        fake.on(path, lambda _: httpx2.Response(200, content=b"Success: it is done."))
    served = [{"id": "/model", "parent": None}, {"id": "asyncrl-3-a", "parent": "/model"}]
    fake.on("/v1/models", {"data": served})
    async with VllmClient.open(URL, transport=fake) as client:
        await client.load_adapter("asyncrl-3-a", "/run/weights/asyncrl-3-a")
        assert await client.adapters() == ["asyncrl-3-a"]
        for adapter in ("", "asyncrl-3-a"):
            asked = client.generate("1" * 32, IDS, max_new_tokens=1, temperature=1, adapter=adapter)
            async with aclosing(asked) as events:
                assert [event.ids.tolist() async for event in events] == [[1]]
        await client.unload_adapter("asyncrl-3-a")
    bodies = dict(fake.asked)
    assert bodies["/v1/load_lora_adapter"] == {
        "lora_name": "asyncrl-3-a",
        "lora_path": "/run/weights/asyncrl-3-a",
    }
    assert bodies["/v1/unload_lora_adapter"] == {"lora_name": "asyncrl-3-a"}
    named = [body.get("model") for path, body in fake.asked if path == GENERATE]
    assert named == [None, "asyncrl-3-a"]


async def test_checksums_come_by_rank_in_their_order() -> None:
    digests = {f"dp0:pp0:pcp0:tp{rank}:a.weight": f"{rank:02}" * 32 for rank in (10, 2, 0)}
    fake = versioned().on("/weight_checker", {"checksums": digests})
    async with VllmClient.open(URL, transport=fake) as client:
        ranks = await client.checksums()
    assert [rank.checksums["a.weight"] for rank in ranks] == ["00" * 8, "02" * 8, "10" * 8]


@pytest.mark.parametrize(
    ("change", "said_in_error"),
    [
        ({}, ""),
        ({"model_config": {"dtype": "torch.bfloat16"}}, "start it with --dtype float32"),
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, "--logprobs-mode processed_logprobs"),
        ({"model_config": {"max_model_len": 99}}, "--max-model-len 100"),
        ({"scheduler_config": {"max_num_seqs": 4}}, "--max-num-seqs 5"),
        ({"parallel_config": {"data_parallel_size": 2}}, "pipeline or data parallel"),
        ({"weight_transfer_config": {"backend": "nccl"}}, "--worker-extension-cls"),
        ({"weight_transfer_config": None}, "--worker-extension-cls"),
        ({"speculative_config": None, "kv_transfer_config": None}, ""),
        ({"aux_output_config": {"enable_return_routed_experts": True}}, ""),
        ({"speculative_config": {"method": "ngram"}}, "without --speculative-config"),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "without --kv-transfer-config"),
        ({"lora_config": {"max_lora_rank": 8}}, "start it without --enable-lora"),
    ],
)
async def test_a_server_that_was_started_otherwise_is_refused_with_the_option(
    change: dict[str, Any], said_in_error: str
) -> None:
    scored = {"prompt_logprobs": [None, {"1": {"logprob": -1.0}}]}
    fake = versioned().on("/server_info", start(**change)).on("/version", {"version": "0.32.0"})
    fake.on(GENERATE, scored)
    async with VllmClient.open(URL, transport=fake) as client:
        if not said_in_error:
            await check_vllm(client, NEEDS)
            if "aux_output_config" in change:
                await check_vllm(client, NEEDS._replace(routing=True))
                return
            with pytest.raises(Incompatible, match="--enable-return-routed-experts"):
                await check_vllm(client, NEEDS._replace(routing=True))
            return
        with pytest.raises(Incompatible, match=said_in_error):
            await check_vllm(client, NEEDS)


@pytest.mark.parametrize(
    ("lora", "rank", "said"),
    [
        (None, 4, "takes none, and the run's have rank 4: start it with VLLM_ALLOW_RUNTIME_LORA_U"),
        (VllmLora(8, ["q_proj"]), 9, "takes adapters up to rank 8, .* --max-lora-rank 16"),
        (VllmLora(8), 8, "its output layer takes adapters, .* --lora-target-modules"),
        (VllmLora(8, ["q_proj", "lm_head"]), 8, "its output layer takes adapters"),
        (VllmLora(8, ["q_proj"]), 8, ""),
    ],
)
def test_a_server_needs_room_for_the_runs_adapters(
    lora: VllmLora | None, rank: int, said: str
) -> None:
    if not said:
        refuse_other_adapters(lora, rank)
        return
    with pytest.raises(ValueError, match=said):
        refuse_other_adapters(lora, rank)


async def test_servers_of_other_versions_or_without_their_rooms_or_without_ids_are_refused() -> (
    None
):
    async def refusal(fake: Fake) -> str:
        async with VllmClient.open(URL, transport=fake) as client:
            with pytest.raises(ServerError) as caught:
                await check_vllm(client, NEEDS)
            return str(caught.value)

    old = versioned().on("/version", {"version": "0.31.9+cu13"})
    assert "it is vLLM 0.31.9+cu13; 0.32.0 is the oldest" in await refusal(old)
    assert "VLLM_SERVER_DEV_MODE=1" in await refusal(Fake())
    new = versioned().on("/server_info", start()).on("/version", {"version": "0.34.0rc1"})
    assert "0.34 and later are not supported: install vLLM 0.33.0" in await refusal(new)
    disabled = {"error": {"message": "Scale-out endpoints are disabled", "code": 403}}
    closed = versioned().on("/version", {"version": "0.32.0"})
    closed.on(GENERATE, lambda _: httpx2.Response(403, json=disabled))
    assert "start it with --enable-scale-out" in await refusal(closed)
