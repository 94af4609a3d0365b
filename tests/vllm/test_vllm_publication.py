"""Publications into the real vLLM server, and what it decodes with them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest
import torch
import trio
from collected import Collected
from numpy.typing import NDArray
from real_vllm import CONTEXT
from torch import Tensor

from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, new_model
from asyncrl.engines import canary
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.servers.server_types import StreamEvent
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.server_group import BucketStream, ServerGroup
from asyncrl.weightsync.servers.weight_loader import HalfLoaded, Loaded, NotLoaded, WeightLoader

HOST, DEADLINE_S, EXACT = "127.0.0.1", 60.0, 1e-4
TEXT = canary.text(VOCABULARY, [END_ID])
PROMPT = np.arange(40, 60, dtype=np.int32)
Weights = Mapping[str, Tensor]


def weights(seed: int) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in new_model(seed).named_parameters()}


def scores(seed: int, ids: Sequence[int], temperature: float = 1.0) -> NDArray[np.float64]:
    """transformers' log-probability of each id but the first, under the weights of a seed."""
    with torch.no_grad():
        logits = new_model(seed)(torch.tensor([list(ids)])).logits[0, :-1] / temperature
    found = torch.log_softmax(logits.double(), -1)
    return np.asarray(found[torch.arange(len(ids) - 1), torch.tensor(list(ids))[1:]])


class Publisher:
    """Loads the weights of a seed, with the canary's reference of a trainer that has them."""

    def __init__(self, client: VllmClient, group: ServerGroup) -> None:
        self.loader = WeightLoader(
            client,
            ByBroadcast(group, DEADLINE_S),
            new_model(0),
            TEXT,
            mode="abort",
            tolerance=1e-3,
            deadline_s=DEADLINE_S,
        )

    async def load(self, version: int, sent: Weights, reference: Weights | None = None) -> Loaded:
        known = canary.reference(new_model(0), reference or sent, TEXT)
        return await self.loader.load(version, sent, known)


@asynccontextmanager
async def publishing(client: VllmClient) -> AsyncIterator[Publisher]:
    async with ServerGroup.open(HOST, 1, bucket_bytes=300_000) as group:
        yield Publisher(client, group)


async def test_version_after_version_is_served_to_the_bit(vllm: VllmClient) -> None:
    async with publishing(vllm) as publisher:
        for version in (3, 4):
            loaded = await publisher.load(version, weights(version))
            assert (await vllm.model_info()).weight_version == str(version)
            assert await vllm.score(PROMPT) == pytest.approx(scores(version, PROMPT), abs=EXACT)
            assert loaded.exact == len((await vllm.checksums())[0].checksums)
            assert loaded.difference <= EXACT
            assert 0 < loaded.transfer_s <= loaded.transfer_s + loaded.verify_s <= loaded.pause_s


async def test_an_update_that_somebody_who_died_began_is_ended_by_the_next(
    vllm: VllmClient,
) -> None:
    """Its weights cannot be looked at until then: vLLM answers that call with its own failure, and
    closes the connection."""
    async with publishing(vllm) as publisher:
        await publisher.load(6, weights(6))
        await vllm.pause("abort")
        await vllm.begin_update()
    async with publishing(vllm) as publisher:
        await publisher.load(7, weights(7))
        assert await vllm.score(PROMPT) == pytest.approx(scores(7, PROMPT), abs=EXACT)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
async def test_log_probabilities_are_those_of_the_temperature(
    vllm: VllmClient, temperature: float
) -> None:
    """Of the unscaled distribution where greedy."""
    async with publishing(vllm) as publisher:
        await publisher.load(5, weights(5))
        asked = vllm.generate(uuid.uuid4().hex, PROMPT, max_new_tokens=30, temperature=temperature)
        async with aclosing(asked) as stream:
            events = [event async for event in stream]
        ids = [*PROMPT.tolist(), *(int(i) for event in events for i in event.ids)]
        behaviour = np.concatenate([event.behaviour for event in events])
        assert len(behaviour) == 30 and events[-1].ending is not None
        assert events[-1].ending.type == "length"
        expected = scores(5, ids, temperature or 1.0)[len(PROMPT) - 1 :]
        assert np.abs(behaviour - expected).max() <= EXACT


async def test_a_stop_id_ends_a_response_and_is_part_of_it(vllm: VllmClient) -> None:
    async with publishing(vllm) as publisher:
        await publisher.load(5, weights(5))
        asked = vllm.generate(
            uuid.uuid4().hex,
            PROMPT,
            max_new_tokens=400,
            temperature=1.0,
            stop_ids=range(0, VOCABULARY, 4),
        )
        async with aclosing(asked) as stream:
            events = [event async for event in stream]
        ids = [int(i) for event in events for i in event.ids]
        assert ids[-1] % 4 == 0 and all(i % 4 for i in ids[:-1]) and len(ids) < 400
        assert events[-1].ending is not None and events[-1].ending.type == "stop"
        assert len(np.concatenate([event.behaviour for event in events])) == len(ids)


@pytest.mark.parametrize("known", [1, CONTEXT - 1])
async def test_a_response_may_fill_the_whole_context(vllm: VllmClient, known: int) -> None:
    async with publishing(vllm) as publisher:
        await publisher.load(5, weights(5))
        asked = vllm.generate(
            uuid.uuid4().hex,
            np.full(known, 65, np.int32),
            max_new_tokens=CONTEXT - known,
            temperature=1.0,
        )
        async with aclosing(asked) as stream:
            assert sum([len(event.ids) async for event in stream]) == CONTEXT - known


async def test_rollouts_go_on_over_versions_each_token_under_its_own(vllm: VllmClient) -> None:
    """The engine over the server: nothing is lost, and each token is of the version it says."""
    collected = Collected()
    async with publishing(vllm) as publisher, trio.open_nursery() as nursery:
        # before anything decodes, so that no response ends while they are computed
        sent = {version: weights(version) for version in (1, 2, 3)}
        known = {seed: canary.reference(new_model(0), sent[seed], TEXT) for seed in sent}

        async def load(version: int, given: Weights, _: Sequence[float], stop: object) -> float:
            assert callable(stop)
            return (await publisher.loader.load(version, given, known[version], stop)).pause_s

        engine = ServerEngine(
            vllm,
            load,
            EngineOptions(slots=3, context_tokens=400, chunk_tokens=8),
            vocab_size=VOCABULARY,
            stop_ids=frozenset(),
        )
        nursery.start_soon(engine.run, collected.emit)
        await engine.load(1, sent[1])
        asked = list[Request]()
        for version in (2, 3):  # each is loaded while responses decode that its predecessor began
            began = range(len(asked), len(asked) + 3)
            asked += [Request(n, 0, n, PROMPT + n, 0, 300, 1.0) for n in began]
            engine.submit(asked[-3:])
            with trio.fail_after(DEADLINE_S):
                await collected.until(lambda n=began[0]: bool(collected.chunks(n)))  # type: ignore[misc]
            await engine.load(version, sent[version])
        asked.append(Request(len(asked), 0, len(asked), PROMPT, 0, 300, 1.0))
        engine.submit(asked[-1:])
        with trio.fail_after(DEADLINE_S):
            await collected.ended(*range(len(asked)))
        nursery.cancel_scope.cancel()
    versions = set[int]()
    for request in asked:
        ids, behaviour = request.ids.tolist(), list[float]()
        spans = list[tuple[int, int, int]]()
        for chunk in collected.chunks(request.rollout):
            assert chunk.start == len(behaviour)
            ids += chunk.ids.tolist()
            behaviour += chunk.behaviour.tolist()
            spans.append((chunk.version, chunk.start, len(behaviour)))
        assert len(behaviour) == 300 and collected.finishes()[request.rollout] == "length"
        for version, start, end in spans:
            if start < end:
                versions.add(version)
                expected = scores(version, ids[: len(PROMPT) + end])[len(PROMPT) - 1 + start :]
                assert np.abs(np.array(behaviour[start:end]) - expected).max() <= EXACT
    assert versions == {1, 2, 3}


async def test_a_prompt_that_is_shared_over_versions_never_sees_old_keys_and_values(
    vllm: VllmClient,
) -> None:
    prompt = np.resize(PROMPT, 300)  # more than a block of the cache
    async with publishing(vllm) as publisher:
        for version in (6, 7):
            await publisher.load(version, weights(version))
            for _ in range(2):
                asked = vllm.generate(
                    uuid.uuid4().hex, prompt, max_new_tokens=4, temperature=1.0, extra_key="one"
                )
                async with aclosing(asked) as stream:
                    events: list[StreamEvent] = [event async for event in stream]
                ids = [*prompt.tolist(), *(int(i) for event in events for i in event.ids)]
                behaviour = np.concatenate([event.behaviour for event in events])
                expected = scores(version, ids)[len(prompt) - 1 :]
                assert np.abs(behaviour - expected).max() <= EXACT


async def test_an_abort_ends_a_request_and_no_other(vllm: VllmClient) -> None:
    """On a busy machine the first event may bring 200 of 400 tokens, and the abort come when all
    are sampled: then another request is tried."""
    async with publishing(vllm) as publisher:
        await publisher.load(1, weights(1))
        for number in range(10):
            aborted, other = await endings_with_an_abort(vllm, number)
            assert other == "length"
            if aborted == "abort":
                return
        pytest.fail("no abort came in time, or each was lost")


async def endings_with_an_abort(vllm: VllmClient, number: int) -> list[str]:
    """Endings of two requests, of which the first, of 400 tokens, is aborted once it has begun."""
    rids = [f"{2 * number + of:032d}" for of in (1, 2)]
    events: dict[str, list[StreamEvent]] = {rid: [] for rid in rids}
    begun = trio.Event()

    async def read(rid: str, most: int) -> None:
        asked = vllm.generate(rid, PROMPT, max_new_tokens=most, temperature=1.0)
        async with aclosing(asked) as stream:
            async for event in stream:
                events[rid].append(event)
                begun.set()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, rids[0], 400)
            await begun.wait()
            nursery.start_soon(read, rids[1], 40)
            await vllm.abort(rids[0])
    endings = [of[-1].ending for of in events.values()]
    return [ending.type for ending in endings if ending]


# ---------------------------------------------------------------------------------- what is refused


async def test_a_name_that_the_model_lacks_is_refused_before_anything_is_sent(
    vllm: VllmClient,
) -> None:
    async with publishing(vllm) as publisher:
        await publisher.load(1, weights(1))
        before = await vllm.checksums()
        unknown = weights(2) | {"model.norm.weigth": torch.zeros(128)}
        with pytest.raises(
            NotLoaded, match="continues with the weights that it had: the model has no param"
        ):
            await publisher.load(2, unknown, weights(2))
        assert await vllm.checksums() == before
        assert await vllm.score(PROMPT) == pytest.approx(scores(1, PROMPT), abs=EXACT)


async def test_a_wrong_weight_that_checksums_cannot_know_of_is_found_by_the_canary(
    vllm: VllmClient,
) -> None:
    """The trainer computed with other weights than were sent."""
    async with publishing(vllm) as publisher:
        await publisher.load(1, weights(1))
        with pytest.raises(HalfLoaded, match=r"holds weights that may not be version"):
            await publisher.load(2, weights(2), weights(3))
        await publisher.load(3, weights(3))
        assert await vllm.score(PROMPT) == pytest.approx(scores(3, PROMPT), abs=EXACT)


async def test_one_changed_bit_on_the_way_is_found_by_the_checksums(
    vllm: VllmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with publishing(vllm) as publisher:
        await publisher.load(1, weights(1))
        sent, take = weights(2), BucketStream.take

        def flipped(self: BucketStream) -> Tensor:
            flat = take(self).clone()
            flat[5] ^= 1
            return flat

        monkeypatch.setattr(BucketStream, "take", flipped)
        with pytest.raises(HalfLoaded, match="holds bytes that differ from those sent"):
            await publisher.load(2, sent)
