"""An engine whose server gets adapters, over a stand-in for a server: requests keep
the adapter that they began with, and nothing is paused. (Over a real one: `test_sglang_adapters`.)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import trio
from fake_sglang import URL, FakeServer
from safetensors.torch import load_file
from test_sglang_engine import World, ask
from torch import Tensor

from asyncrl.bundled.bundled_model import new_model
from asyncrl.config.schema import LoraConfig
from asyncrl.engines import canary
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.training.adapters import ADAPTERS, adapters, add_adapters, base_digest
from asyncrl.weightsync.servers.served_adapters import ServedAdapters
from asyncrl.weightsync.servers.server_hashes import of_host
from asyncrl.weightsync.servers.weight_loader import NotLoaded

LORA = LoraConfig(rank=2, served="adapters")
TEXT = canary.text(260, {256, 257})
REFERENCE = [-1.0] * (len(TEXT) - 1)
DEADLINE_S = 2.0
"""Of real time, because adapters are written in a thread."""


class AdapterServer(FakeServer):
    """It samples under the version in the name of a request's adapter, and calls its base
    `default`. That it holds as the checkpoint's, each in a module around it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.base = "default"
        self.there = dict[str, Mapping[str, Tensor]]()
        self.score, self.full = -1.0, False
        self.holds = 0  # the seed of its base

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread() or b"null")
        path = request.url.path
        if path == "/generate" and not body.get("stream"):
            assert body.get("lora_path") in {*self.there, None}
            given = zip(body["input_ids"], [0.0, *base_scores(self.holds)], strict=True)
            entries = [
                [self.score if body.get("lora_path") else score, i, None] for i, score in given
            ]
            return answer({"meta_info": {"input_token_logprobs": entries}})
        if path == "/model_info":
            return answer({"model_path": "/m", "weight_version": self.base})
        if path == "/server_info":
            return answer({"version": "0.5.23", "dtype": "float32", "device": "cpu"})
        if path == "/weights_checker":
            rank = {"checksums": hashes(self.holds), "per_gpu_checksum": ""}
            return answer({"ranks": [rank]})
        if path == "/v1/models":
            adapters = [{"id": name, "parent": "/m"} for name in self.there]
            return answer({"data": [{"id": "/m", "parent": None}, *adapters]})
        if path == "/load_lora_adapter" and self.full:
            return answer({"success": False, "error_message": "no room"}, 400)
        if path == "/load_lora_adapter":
            self.there[body["lora_name"]] = load_file(Path(body["lora_path"]) / ADAPTERS)
        if path == "/unload_lora_adapter":
            used = [
                one for one in self.running.values() if one.body["lora_path"] == body["lora_name"]
            ]
            assert not used, "a real one would wait for them"
            del self.there[body["lora_name"]]
        return await super().handle_async_request(request)

    def sampling(self, body: Mapping[str, Any]) -> str:
        assert body["lora_path"] in self.there
        return str(body["lora_path"]).split("-")[1]

    def reported(self, version: str) -> str:
        return self.base


@cache
def base_scores(seed: int) -> list[float]:
    weights = {name: each.detach() for name, each in new_model(seed).named_parameters()}
    return canary.reference(new_model(0), weights, TEXT)


@cache
def hashes(seed: int) -> dict[str, str]:
    return {
        name.replace("_proj.", "_proj.base_layer."): of_host([each.detach()])
        for name, each in new_model(seed).named_parameters()
    }


def answer(body: object, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, content=json.dumps(body).encode())


class AdapterWorld(World):
    server: AdapterServer


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[AdapterWorld, ServedAdapters]]:
    fake, waits = AdapterServer(pace_s=0.001), Waits()
    async with SglangClient.open(URL, transport=fake) as client, trio.open_nursery() as nursery:
        served = served_by(client, folder)
        engine = ServerEngine(
            served,
            served.load,
            EngineOptions(slots=4, context_tokens=400, chunk_tokens=8),
            vocab_size=97,
            stop_ids=frozenset({96}),
            idle=waits.idle_for,
            keeps=served,
        )
        found = AdapterWorld(fake, engine, waits)
        nursery.start_soon(engine.run, found.emit)
        yield found, served
        nursery.cancel_scope.cancel()


def served_by(client: ServerClient, folder: Path, policy: str = "") -> ServedAdapters:
    model = new_model(0)
    add_adapters(model, LORA)
    return ServedAdapters(
        *(client, model, new_model(0), TEXT, folder),
        tolerance=1e-3,
        deadline_s=DEADLINE_S,
        policy=policy,
    )


def sent(seed: int) -> dict[str, Tensor]:
    """The tensors of a publication: the base's digest, and adapters."""
    model = new_model(0)
    add_adapters(model, LORA)
    torch.manual_seed(seed)
    digest = {f"base {base_digest(model)}": torch.empty(0, dtype=torch.uint8)}
    return digest | {name: torch.randn_like(each) for name, each in adapters(model)}


async def load(world: World, version: int) -> float:
    world.engine.expect(version, REFERENCE)
    return await world.engine.load(version, sent(version))


async def test_a_request_keeps_its_adapter_and_the_next_has_the_newest(tmp_path: Path) -> None:
    async with world(tmp_path / "f") as (w, served):
        assert await load(w, 0) == 0.0
        w.engine.submit([ask(0, budget=300)])
        await trio.sleep(0.05)
        assert await load(w, 1) == 0.0 and w.engine.version == 1 and served.loaded == [0, 1]
        w.engine.submit([ask(1, budget=20)])
        await w.ended(1)
        assert not w.finishes().get(0)
        await w.ended(0)
        assert {version for version, *_ in w.truth(ask(0, budget=300))} == {0}
        assert {version for version, *_ in w.truth(ask(1, budget=20))} == {1}
        assert not w.server.paths("/pause_generation") and not w.server.paths("/abort_request")


async def test_what_is_loaded_is_what_was_sent_and_goes_when_none_uses_it(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    async with world(folder) as (w, served):
        for version in range(4):
            await load(w, version)
            (newest,) = (each for name, each in w.server.there.items() if f"-{version}-" in name)
            of = {name: each for name, each in sent(version).items() if "lora" in name}
            assert newest.keys() == of.keys()
            assert all(torch.equal(newest[name], each) for name, each in of.items())
            assert served.loaded == [v for v in (version - 1, version) if v >= 0]
            assert sorted(each.name for each in folder.iterdir()) == sorted(w.server.there)


async def test_adapters_of_an_actor_that_is_gone_are_unloaded(tmp_path: Path) -> None:
    """Others' are left alone."""
    async with world(tmp_path / "f") as (w, _):
        w.server.there |= {"asyncrl-7-old": {}, "theirs": {}}
        (tmp_path / "f" / "asyncrl-7-old").mkdir(parents=True)
        await load(w, 0)
        assert [name.split("-")[0] for name in w.server.there] == ["theirs", "asyncrl"]
        assert "asyncrl-7-old" not in w.server.there and len([*(tmp_path / "f").iterdir()]) == 1


async def test_a_pinned_version_is_kept_beside_later_ones_until_it_is_unpinned(
    tmp_path: Path,
) -> None:
    """So no response has two versions where each ends under its own."""
    async with world(tmp_path / "f") as (w, served):
        for version in range(3):
            w.engine.expect(version, REFERENCE)
            await w.engine.load(version, sent(version), pin=version < 2)
        assert served.loaded == [0, 1, 2]
        asked = [ask(0, budget=20), ask(1, budget=20, version=1), ask(7, version=5)]
        w.engine.submit(asked)
        for request in asked:
            await w.ended(request.rollout)
        assert w.finishes()[7] == "interrupted", "nobody keeps version 5"
        sampled = [{version for version, *_ in w.truth(request)} for request in asked]
        assert sampled == [{2}, {1}, set()]
        w.engine.submit([ask(2, budget=300, version=0)])
        await trio.sleep(0.05)
        w.engine.unpin(0)
        await w.ended(2)
        assert w.finishes()[2] == "interrupted"
        await load(w, 3)
        assert served.loaded == [1, 2, 3] and len(w.server.there) == 3


async def test_policies_of_one_server_leave_each_others_adapters_alone(tmp_path: Path) -> None:
    """Also where one policy's name begins another's, and their versions are equal."""
    async with world(tmp_path / "f") as (w, served):
        policies = ("a", "a-1", "b")
        each = {one: served_by(served._client, tmp_path / one, one) for one in policies}
        for version in range(3):
            for number, one in enumerate(each.values()):
                await one.load(version, sent(10 * version + number), REFERENCE, lambda: None)
        assert [one.loaded for one in each.values()] == [[1, 2]] * 3
        for number, one in enumerate(policies):
            names = sorted(name for name in w.server.there if name.startswith(f"asyncrl.{one}."))
            assert [name.split(".")[2].split("-")[0] for name in names] == ["1", "2"]
            of = {name: tensor for name, tensor in sent(20 + number).items() if "lora" in name}
            assert all(torch.equal(w.server.there[names[1]][name], of[name]) for name in of)
        asked = each["a-1"].generate("r", np.zeros(3, np.int32), max_new_tokens=4, temperature=1.0)
        async with aclosing(asked) as events:
            assert {event.version async for event in events} == {"2"}
        assert w.server.paths("/generate")[-1]["lora_path"].startswith("asyncrl.a-1.2-")


@pytest.mark.parametrize("wrong", ["canary", "refused", "shape", "hangs"])
async def test_an_adapter_that_is_not_right_is_used_by_no_request(
    tmp_path: Path, wrong: str
) -> None:
    """And is gone once another one is loaded."""
    async with world(tmp_path / "f") as (w, served):
        await load(w, 0)
        w.server.score = -1.1 if wrong == "canary" else -1.0
        w.server.full = wrong == "refused"
        weights = sent(1)
        if wrong == "shape":
            weights = {name: each[:1] for name, each in weights.items()}
        if wrong == "hangs":
            loads = served._client.load_adapter

            async def hang(name: str, folder: str) -> None:
                await loads(name, folder)
                await trio.sleep_forever()

            served._client.load_adapter = hang  # type: ignore[method-assign]
        said = {
            "canary": r"differ by 0\.1 from",
            "refused": "no room",
            "shape": "of another model",
            "hangs": "not done within 2 s",
        }
        with pytest.raises(NotLoaded, match=f"continues with those that it had: .*{said[wrong]}"):
            w.engine.expect(1, REFERENCE)
            await w.engine.load(1, weights)
        w.engine.submit([ask(2)])
        await w.ended(2)
        assert {version for version, *_ in w.truth(ask(2))} == {0}
        w.server.score, w.server.full = -1.0, False
        if wrong == "hangs":
            served._client.load_adapter = loads  # type: ignore[method-assign]
        await load(w, 2)
        assert served.loaded == [0, 2] and len(w.server.there) == 2
        assert sorted(w.server.there) == sorted(each.name for each in (tmp_path / "f").iterdir())


async def test_a_base_that_another_client_changed_is_found_by_the_next_event(
    tmp_path: Path,
) -> None:
    async with world(tmp_path / "f") as (w, _):
        await load(w, 0)
        w.server.base = "5"
        w.engine.submit([ask(2)])
        await w.ended(2)
        assert w.finishes()[2] == "interrupted" and not w.truth(ask(2))


@pytest.mark.parametrize(("seed", "said"), [(0, ""), (1, "its base has other weights than")])
async def test_the_base_of_a_server_is_compared_with_the_runs(
    tmp_path: Path, seed: int, said: str
) -> None:
    async with world(tmp_path / "f") as (w, served):
        w.server.holds = seed
        if not said:
            await load(w, 0)
            assert served.exact == len(hashes(0))
            return
        with pytest.raises(NotLoaded, match=said):
            await load(w, 0)
