"""Weights into a real server: what it serves afterwards, to the bit; what becomes of requests that
decode meanwhile; and every way in which a load can fail. Of the hazards of the protocol 4, 5, 6, 7,
8 and 12 are here."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from numpy.typing import NDArray
from real_sglang import Server, slow
from torch import Tensor
from transformers import Qwen3ForCausalLM

from asyncrl.bundled.bundled_model import model_config, new_model
from asyncrl.config import Config
from asyncrl.config.schema import LoraConfig
from asyncrl.engines import canary
from asyncrl.engines.servers.errors import RequestRefused, ServerGone
from asyncrl.engines.servers.server_types import Mode, StreamEvent
from asyncrl.engines.sglang import sglang_client as client_module
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.training.adapters import adapters, add_adapters, merged, set_adapters
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.from_disk import FromDisk
from asyncrl.weightsync.servers.server_group import BucketStream, ServerGroup
from asyncrl.weightsync.servers.weight_loader import (
    HalfLoaded,
    IntoServer,
    Loaded,
    NotLoaded,
    WeightLoader,
)

HOST = "127.0.0.1"
DEADLINE_S = 60.0
TEXT = canary.text(260, {256, 257})
PROMPT = np.arange(10, 42, dtype=np.int32)
EXACT = 1e-5
"""Nats: what float32 on one machine may differ by, between SGLang and transformers."""

Weights = Mapping[str, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights end a response at random: here each goes on to its length."""
    monkeypatch.setitem(client_module.WHOLE_DISTRIBUTION, "ignore_eos", True)


@pytest.fixture
async def server(sglang_server: Server) -> AsyncIterator[Server]:
    """The one that these tests share, going on afterwards whatever a failed one left."""
    yield sglang_server
    async with sglang_server.client() as client:
        await slow(client, None)
        with suppress(RequestRefused):
            await client.end_update()
        await client.resume()


def weights(seed: int) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in new_model(seed).named_parameters()}


def scores(seed: int, ids: Sequence[int]) -> NDArray[np.float64]:
    """transformers' log-probability of each id but the first, under the weights of a seed."""
    return np.array(canary.reference(new_model(0), weights(seed), np.array(ids, np.int32)))


@asynccontextmanager
async def connected(
    server: Server, ranks: int = 1
) -> AsyncIterator[tuple[SglangClient, ServerGroup]]:
    async with (
        server.client() as client,
        ServerGroup.open(HOST, ranks, bucket_bytes=300_000) as group,
    ):
        yield client, group


class Publisher(WeightLoader):
    """A loader that has the canary's reference of a trainer with the same weights."""

    async def load(  # type: ignore[override]
        self, version: int, weights: Weights
    ) -> Loaded:
        names = dict(self._model.named_parameters())
        known = {name: weight for name, weight in weights.items() if name in names}
        reference = canary.reference(self._model, known, self._text)
        return await super().load(version, weights, reference)


def publisher(
    client: SglangClient,
    way: IntoServer,
    *,
    mode: Mode = "retract",
    tolerance: float = 1e-3,
    model: torch.nn.Module | None = None,
) -> Publisher:
    return Publisher(
        client,
        way,
        model or new_model(0),
        TEXT,
        mode=mode,
        tolerance=tolerance,
        deadline_s=DEADLINE_S,
    )


def by_broadcast(group: ServerGroup) -> ByBroadcast:
    return ByBroadcast(group, DEADLINE_S)


class Decoding:
    """One request, and what has come of it so far."""

    def __init__(
        self, prompt: NDArray[np.int32] = PROMPT, tokens: int = 400, key: str = ""
    ) -> None:
        self.rid, self.prompt, self.tokens, self.key = uuid.uuid4().hex, prompt, tokens, key
        self.events: list[StreamEvent] = []
        self.news = trio.Event()

    @property
    def ids(self) -> list[int]:
        return [int(i) for event in self.events for i in event.ids]

    @property
    def behaviour(self) -> NDArray[np.float32]:
        return np.concatenate([event.behaviour for event in self.events])

    async def run(self, client: SglangClient) -> None:
        asked = client.generate(
            self.rid, self.prompt, max_new_tokens=self.tokens, temperature=1.0, extra_key=self.key
        )
        async with aclosing(asked) as events:
            async for event in events:
                self.events.append(event)
                self.news.set()
                self.news = trio.Event()

    async def has(self, tokens: int) -> None:
        with trio.fail_after(DEADLINE_S):
            while len(self.ids) < tokens:
                await self.news.wait()


def assert_sampled_under(decoding: Decoding, seeds: Mapping[str, int]) -> None:
    """Each token's log-probability is that of the weights whose version its span names, and the
    spans say it of all of them."""
    spans = decoding.events[-1].spans
    assert spans is not None
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])] and spans[
        -1
    ].end == len(decoding.ids)
    whole = [*decoding.prompt.tolist(), *decoding.ids]
    for span in spans:
        expected = scores(seeds[span.version], whole)[len(decoding.prompt) - 1 :][
            span.start : span.end
        ]
        assert np.abs(decoding.behaviour[span.start : span.end] - expected).max() <= EXACT, span


# ---------------------------------------------------------------------------------- what is served


@pytest.mark.parametrize("kind", ["broadcast", "disk"])
async def test_version_after_version_is_served_to_the_bit(
    server: Server, tmp_path: Path, kind: str
) -> None:
    async with connected(server) as (client, group):
        way = by_broadcast(group) if kind == "broadcast" else FromDisk(tmp_path / "weights")
        publish = publisher(client, way)
        for version in (3, 4):
            loaded = await publish.load(version, weights(version))
            assert (await client.model_info()).weight_version == str(version)
            assert await client.score(PROMPT) == pytest.approx(scores(version, PROMPT), abs=EXACT)
            assert loaded.exact == len((await client.checksums())[0].checksums)
            assert (await client.server_info()).device == "cpu"
            assert loaded.difference <= EXACT
            assert 0 < loaded.transfer_s <= loaded.transfer_s + loaded.verify_s <= loaded.pause_s
        assert kind == "broadcast" or list((tmp_path / "weights").iterdir()) == []


async def test_what_adapters_and_their_base_make_is_served(server: Server) -> None:
    """A server knows nothing of adapters: it is given whole weights, under its own names."""
    model = new_model(0)
    add_adapters(model, LoraConfig(rank=4))
    set_adapters(model, {name: torch.randn_like(one) * 0.05 for name, one in adapters(model)})
    whole = dict(merged(model))
    async with connected(server) as (client, group):
        loaded = await publisher(client, by_broadcast(group)).load(7, whole)
        assert loaded.exact == len((await client.checksums())[0].checksums)
        expected = canary.reference(new_model(1), whole, PROMPT)
        assert await client.score(PROMPT) == pytest.approx(expected, abs=EXACT)
        assert expected != pytest.approx(scores(0, PROMPT), abs=EXACT), "adapters change nothing"


async def test_tokens_of_a_version_change_in_mid_stream_are_each_under_their_own_weights(
    server: Server,
) -> None:
    async with connected(server) as (client, group):
        await slow(client, 0.02)  # so that there is time for a publication amid a response
        publish = publisher(client, by_broadcast(group))
        await publish.load(1, weights(1))
        streams = [Decoding(PROMPT + i) for i in range(3)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.run, client)
            for stream in streams:
                await stream.has(10)
            await publish.load(2, weights(2))
        for stream in streams:
            assert len(stream.ids) == stream.tokens
            assert {span.version for span in stream.events[-1].spans or ()} == {"1", "2"}
            assert_sampled_under(stream, {"1": 1, "2": 2})


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_hazard_8_a_shared_prompt_over_two_versions_never_sees_old_keys_and_values(
    server: Server, mode: Mode
) -> None:
    """The engine keys the prefix cache by version; with `retract` it is emptied, too, so that a
    request without a key is right as well."""
    async with connected(server) as (client, group):
        publish = publisher(client, by_broadcast(group), mode=mode)
        for version in (5, 6):
            await publish.load(version, weights(version))
            for key in [f"{mode}-{version}"] + [""] * (mode == "retract"):
                for repeat in range(2):
                    stream = Decoding(tokens=8, key=key)
                    await stream.run(client)
                    assert (stream.events[-1].cached_tokens > 0) == (repeat > 0), (
                        "the prompt is not shared, so this tests nothing"
                    )
                    assert_sampled_under(stream, {str(version): version})


# ------------------------------------------------------------------------------ the server's traps


async def test_hazard_4_a_flush_refused_for_frozen_requests_comes_when_the_weights_have_changed(
    server: Server,
) -> None:
    async with connected(server) as (client, group):
        publish = publisher(client, by_broadcast(group), mode="in_place")
        await publish.load(1, weights(1))
        async with trio.open_nursery() as nursery:
            stream = Decoding(tokens=2000)
            nursery.start_soon(stream.run, client)
            await stream.has(5)
            before = (await client.checksums())[0].per_gpu_checksum
            await client.pause("in_place")
            await client.begin_update()
            sending = ServerGroup.stream(group, {"model.norm.weight": torch.full((128,), 0.5)})
            bucket = sending.buckets[0]
            refusals = []

            async def update() -> None:
                try:
                    await client.update(
                        bucket.names,
                        bucket.dtypes,
                        bucket.shapes,
                        group=group.name,
                        version=2,
                        flush=True,
                    )
                except RequestRefused as refusal:
                    refusals.append(refusal)

            async with trio.open_nursery() as both:
                both.start_soon(update)
                both.start_soon(sending.send, DEADLINE_S)
            await client.end_update()
            await client.resume()
            assert [refusal.status for refusal in refusals] == [
                400
            ] and "cache was not flushed" in str(refusals[0])
            assert (await client.checksums())[0].per_gpu_checksum != before
            await stream.has(len(stream.ids) + 50)
            # Events and the model's information name the newest version without a refusal, and only
            # the spans at the end the true one.
            assert stream.events[-1].version == (await client.model_info()).weight_version == "1"
            loaded = await publish.load(
                3, weights(3)
            )  # which asks for no flush in this mode, and so gets an answer that means something
            assert loaded.difference <= EXACT
            await stream.has(len(stream.ids) + 50)
            assert stream.events[-1].version == "3"
            await client.abort_all()
        assert [span.version for span in stream.events[-1].spans or ()] == ["1", "2", "3"]


async def test_hazard_5_an_unknown_name_is_taken_by_the_server_and_refused_by_us(
    server: Server,
) -> None:
    async with connected(server) as (client, group):
        publish = publisher(client, by_broadcast(group))
        await publish.load(1, weights(1))
        before = (await client.checksums())[0].per_gpu_checksum
        sending = group.stream({"model.norm.weigth": torch.zeros(128)})
        bucket = sending.buckets[0]
        await client.begin_update()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.send, DEADLINE_S)
            await client.update(
                bucket.names, bucket.dtypes, bucket.shapes, group=group.name, version=2, flush=True
            )
        await client.end_update()
        assert (await client.model_info()).weight_version == "2", (
            "the server has learned to refuse: this guard may go"
        )
        assert (await client.checksums())[0].per_gpu_checksum == before

        unknown = weights(3) | {"model.norm.weigth": torch.zeros(128)}
        with pytest.raises(
            NotLoaded,
            match=r"with the weights that it had: the model has no parameter model\.norm\.weigth",
        ):
            await publish.load(3, unknown)
        deeper = Qwen3ForCausalLM(_config(num_hidden_layers=3))
        with pytest.raises(NotLoaded, match=r"its model has no parameter for model\.layers\.2\."):
            await publisher(client, by_broadcast(group), model=deeper).load(
                3, dict(deeper.named_parameters())
            )
        assert await client.ready() and (await client.model_info()).weight_version == "2"


def test_hazards_6_and_7_what_crashes_a_server_or_ends_all_its_requests_is_never_asked_for() -> (
    None
):
    source = "".join(path.read_text() for path in Path(client_module.__file__).parent.glob("*.py"))
    for endpoint in (
        "update_weights_from_tensor",
        "update_weight_version",
        "update_weights_from_ipc",
    ):
        assert endpoint not in source


async def test_hazard_7_naming_a_version_by_itself_would_end_all_requests(server: Server) -> None:
    async with server.client() as client, trio.open_nursery() as nursery:
        stream = Decoding(tokens=2000)
        nursery.start_soon(stream.run, client)
        await stream.has(5)
        await client._connection.tell("/update_weight_version", {"new_version": "9"})
        with trio.fail_after(DEADLINE_S):
            while not stream.events[-1].ending:
                await stream.news.wait()
        assert stream.events[-1].ending.type == "abort"


def test_hazard_12_requests_are_retracted_unless_somebody_asks_for_something_else() -> None:
    assert Config().engine.sglang.interrupt == "retract"


# ---------------------------------------------------------------------------------------- failures


class Meddler:
    """A group that does as it is told, and something else before bucket `at` is sent."""

    def __init__(self, group: ServerGroup, at: int, before: Callable[[], Awaitable[None]]) -> None:
        self._group, self._at, self._before = group, at, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def stream(self, weights: Weights) -> Any:
        return _Meddling(self._group.stream(weights), self._at, self._before)


class _Meddling:
    def __init__(
        self, transfer: BucketStream, at: int, before: Callable[[], Awaitable[None]]
    ) -> None:
        self.buckets = transfer.buckets
        self._transfer, self._left, self._before = transfer, at, before

    async def send(self, deadline_s: float) -> None:
        self._left -= 1
        if self._left < 0:
            await self._before()
        await self._transfer.send(deadline_s)


async def test_a_load_that_fails_half_way_is_named_leaves_a_pause_and_is_mended_by_a_whole_one(
    server: Server,
) -> None:
    narrower = Qwen3ForCausalLM(_config(head_dim=16))
    async with connected(server) as (client, group):
        await publisher(client, by_broadcast(group)).load(1, weights(1))
        with pytest.raises(HalfLoaded, match=r"may not be version 2: .*partially updated"):
            await publisher(client, by_broadcast(group), model=narrower).load(
                2, dict(narrower.named_parameters())
            )
        assert not await client.ready()
        assert (await client.model_info()).weight_version == "1"
    async with connected(server) as (
        client,
        group,
    ):  # who comes next finds it paused, in an open session
        loaded = await publisher(client, by_broadcast(group)).load(3, weights(3))
        assert loaded.difference <= EXACT and await client.ready()
        assert await client.score(PROMPT) == pytest.approx(scores(3, PROMPT), abs=EXACT)


async def test_our_side_failing_in_mid_transfer_is_told_to_the_server_at_once(
    server: Server,
) -> None:
    async def fail() -> None:
        raise OSError("the network is down")

    async with connected(server) as (client, group):
        publish = publisher(client, ByBroadcast(Meddler(group, 2, fail), DEADLINE_S))
        with (
            trio.fail_after(DEADLINE_S / 2),
            pytest.raises(HalfLoaded, match="the network is down"),
        ):
            await publish.load(2, weights(2))
    async with connected(server) as (client, group):
        with trio.fail_after(DEADLINE_S / 2):
            await publisher(client, by_broadcast(group)).load(3, weights(3))


async def test_what_fails_before_the_first_byte_leaves_the_old_version_decoding(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    async with connected(server) as (client, group):
        await publisher(client, by_broadcast(group)).load(1, weights(1))
        stream = Decoding(tokens=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run, client)
            await stream.has(5)
            with pytest.raises(
                NotLoaded, match=r"continues with the weights that it had: .*Not a directory"
            ):
                await publisher(client, FromDisk(tmp_path / "file" / "weights")).load(2, weights(2))

            async def never() -> None:
                raise RequestRefused("no session today", 400)

            async with server.client() as other:
                other.begin_update = never  # type: ignore[method-assign]
                other.end_update = never  # type: ignore[method-assign]
                with pytest.raises(NotLoaded, match="no session today"):
                    await publisher(other, by_broadcast(group)).load(2, weights(2))
            assert await client.ready()
        assert_sampled_under(stream, {"1": 1})


async def test_a_load_cancelled_before_the_first_byte_leaves_nothing_behind(server: Server) -> None:
    async with connected(server) as (client, group):
        publish = publisher(client, by_broadcast(group))
        await publish.load(1, weights(1))
        with trio.CancelScope() as scope:

            async def cancelled() -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            client.begin_update = cancelled  # type: ignore[method-assign]
            await publish.load(2, weights(2))
        assert scope.cancelled_caught
        del client.begin_update
        assert await client.ready()
        await publish.load(3, weights(3))
        assert await client.score(PROMPT) == pytest.approx(scores(3, PROMPT), abs=EXACT)


async def test_one_changed_bit_is_found_by_the_checksums_though_no_canary_would_notice(
    server: Server,
) -> None:
    """The bit is changed on the way: in what is sent, not in what was to be sent."""
    async with connected(server) as (client, group):
        publish = publisher(client, by_broadcast(group))
        await publish.load(1, weights(1))
        for name in ("model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"):
            with pytest.raises(HalfLoaded, match="holds bytes that differ from those sent"):
                await publisher_sending(publish, group, _flipped(weights(2), name)).load(
                    2, weights(2)
                )
            await client.resume()
            await publish.load(3, weights(3))


async def test_pain_19_a_wrong_weight_that_nothing_else_notices_is_found_by_the_canary(
    server: Server,
) -> None:
    """A server without checksums takes a weight that is not the trainer's."""

    async def none_offered() -> Any:
        raise RequestRefused("there is no such endpoint", 404)

    async with connected(server) as (client, group):
        client.checksums = none_offered  # type: ignore[method-assign]
        publish = publisher(client, by_broadcast(group))
        assert (await publish.load(1, weights(1))).exact == 0
        wrong = weights(2)
        wrong["model.layers.0.mlp.down_proj.weight"] = (
            wrong["model.layers.0.mlp.down_proj.weight"] * 1.5
        )
        with pytest.raises(
            HalfLoaded,
            match=r"version 2: the server's log-probabilities differ by 0\.\d+ from those of "
            "the weights",
        ):
            await publisher_sending(publish, group, wrong).load(2, weights(2))
        await publish.load(3, weights(3))


def publisher_sending(publish: WeightLoader, group: ServerGroup, instead: Weights) -> Publisher:
    """The same publisher, which now sends other weights than it is given, and does not know."""

    class Swapped(Meddler):
        def stream(self, weights: Weights) -> Any:
            return group.stream(instead)

    async def nothing() -> None:
        pass

    swapped = publisher(publish._client, ByBroadcast(Swapped(group, 0, nothing), DEADLINE_S))
    swapped._checks = publish._checks
    return swapped


def _flipped(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    weights[name] = weights[name].clone()
    weights[name].view(-1).view(torch.uint8)[1000] ^= 1
    return weights


def _config(**changes: Any) -> Any:
    config = model_config()
    for name, value in changes.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    return config


# ------------------------------------------------------------------------ ranks, and a server's end


async def test_a_group_for_another_number_of_ranks_is_refused_before_the_server_waits_for_it(
    server: Server,
) -> None:
    async with connected(server, ranks=2) as (client, group):
        with pytest.raises(
            NotLoaded,
            match=r"it has 1 tensor-parallel and 1 data-parallel ranks, and "
            "the run's tensor_parallel is 2",
        ):
            await publisher(client, by_broadcast(group)).load(1, weights(1))
        assert await client.ready()


async def test_a_server_that_dies_during_a_load_is_named_at_once(
    sglang_last: Server,
) -> None:
    async def kill() -> None:
        os.killpg(sglang_last.group, signal.SIGKILL)

    async with connected(sglang_last) as (client, group):
        with trio.fail_after(DEADLINE_S / 2), pytest.raises(HalfLoaded) as failure:
            await publisher(client, ByBroadcast(Meddler(group, 1, kill), DEADLINE_S)).load(
                1, weights(1)
            )
        with pytest.raises((NotLoaded, ServerGone)):
            await publisher(client, by_broadcast(group)).load(2, weights(2))
    assert "version 1" in str(failure.value)
