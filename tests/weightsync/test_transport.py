"""Transports: which one a run has, and in what order the trainer's end into servers goes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import trio
from families import build

from asyncrl.config import ConfigError, load
from asyncrl.config.engines import Capabilities
from asyncrl.engines.spec import EngineKind
from asyncrl.messages import Prepare, Publish, Quiesce, Resend
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.direct import Direct
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.reception import StagedReception
from asyncrl.weightsync.servers.fp8_checkpoint import checkpoint_of
from asyncrl.weightsync.servers.into_servers import IntoServers, ServersPublisher
from asyncrl.weightsync.servers.server_checksums import WantedHashes, expected
from asyncrl.weightsync.servers.server_group import _packed, cut
from asyncrl.weightsync.servers.server_hashes import of_host
from asyncrl.weightsync.staged import Staged
from asyncrl.weightsync.transport import Gathered, Sent, transport_of

AMPLE = 60.0
SERVED = ['engine.sglang.launch=["python"]', "engine.sglang.transfer=broadcast"]


@pytest.mark.parametrize(
    ("settings", "transport"),
    [
        (["engine.kind=embedded"], Staged),
        (["engine.kind=sglang", *SERVED], Staged),
        (["engine.kind=embedded", "publication.path=direct"], Direct),
        (["engine.kind=scripted", "publication.path=direct"], Direct),
        (["engine.kind=sglang", *SERVED, "publication.path=direct"], IntoServers),
    ],
)
def test_the_kind_of_engine_and_the_path_say_which(settings: list[str], transport: type) -> None:
    assert transport_of(load(None, settings, {})) is transport


def test_an_engine_may_name_a_transport_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Staged):
        pass

    class Kind(EngineKind):
        @classmethod
        def open(cls, context: Any) -> Any: ...

    module: Any = ModuleType("somebodys")
    module.Own, module.Kind, module.none = Own, Kind, 3
    monkeypatch.setitem(sys.modules, "somebodys", module)
    settings = ["engine.kind=somebodys:Kind", "publication.path=direct"]
    with pytest.raises(ConfigError, match="does not support direct publications"):
        load(None, settings, {})
    Kind.capabilities = Capabilities(direct_transport="somebodys:Own")
    assert transport_of(load(None, settings, {})) is Own
    Kind.capabilities = Capabilities(direct_transport="somebodys:none")
    with pytest.raises(ConfigError, match=r"no transport: derive a class from asyncrl\.weights"):
        transport_of(load(None, settings, {}))


class _Servers:
    """A sender to servers, and the trainer's weights: what is asked of them, in order."""

    store, sharded = "file:/nowhere", False

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights
        self.plan = Plan.of(self.weights, 4096)
        self.asked = list[str]()

    async def gather(self, average: bool = False) -> Gathered:
        await trio.lowlevel.checkpoint()
        self.asked.append("gather")
        return Gathered(iter(self.weights.items()), None, [-0.5])

    async def join(self, publication: int, *rest: Any) -> int:
        await trio.lowlevel.checkpoint()
        self.asked.append(f"join {publication}")
        return 77

    async def send(self, weights: dict[str, torch.Tensor], deadline_s: float) -> int:
        await trio.lowlevel.checkpoint()
        assert "model.layers.0.mlp.experts.3.up_proj.weight" in weights
        self.asked.append("send")
        return 16


async def test_all_is_gathered_before_servers_stand_still_and_what_is_joined_is_sent() -> None:
    model = build("qwen3_moe")
    both: Any = _Servers({name: weight.detach() for name, weight in model.named_parameters()})
    end = ServersPublisher(both, both, CheckpointNames(model), 4096, 3.0)
    await end.join(Publish(1, 1, 2, direct=True))
    assert both.asked == ["gather", "join 1"]
    assert await end.send(Publish(1, 1, 2, direct=True)) == Sent([77], 16, [-0.5])
    assert both.asked == ["gather", "join 1", "send"]
    for never_joined in (1, 2):  # the first a second time
        with pytest.raises(TransferError, match=f"publication {never_joined} was not joined"):
            await end.send(Publish(never_joined, 1, 2, direct=True))


class _Shards(_Servers):
    """The same, of several ranks: weights that exist from when they are gathered to their last use;
    `most` of them at once. What servers would hash, and get, is `hashed` and `sent`."""

    sharded = True

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__(weights)
        self.live, self.most = 0, 0
        self.hashed, self.sent = list[Any](), b""

    def _gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.weights.items():
            whole = weight.clone()
            self.live += 1
            self.most = max(self.most, self.live)
            weakref.finalize(whole.untyped_storage(), self._gone)
            yield name, whole
            del whole

    def _gone(self) -> None:
        self.live -= 1

    async def canary(self) -> list[float]:
        await trio.lowlevel.checkpoint()
        return [-0.5]

    async def hand_over(self, handoff: Handoff, *, average: bool, beside: bool) -> None:
        assert not average
        self.asked.append("gather beside" if beside else "gather")
        with handoff.filling():
            await trio.to_thread.run_sync(handoff.put, self._gathered())

    async def join(self, publication: int, *rest: Any) -> int:
        _, _, plan, weights, _ = rest
        wanted = WantedHashes(1, {spec.name: ((spec.name,), ("whole",)) for spec in plan.specs})
        hashes = partial(expected, [(wanted, of_host)], weights)
        self.hashed = await trio.to_thread.run_sync(hashes)
        return await super().join(publication)

    async def send(self, shapes: Any, deadline_s: float, arriving: Any = None) -> int:
        def taken() -> bytes:
            packed = _packed(arriving, cut(shapes, 4096), torch.device("cpu"))
            return b"".join(bucket.numpy().tobytes() for bucket in packed)

        self.sent = await trio.to_thread.run_sync(taken)
        return len(self.sent)


@pytest.mark.parametrize(("sent", "family"), [("float32", "qwen3_moe"), ("fp8", "qwen3")])
async def test_weights_of_several_ranks_are_nowhere_whole_on_their_way_into_servers(
    sent: str, family: str
) -> None:
    model = build(family)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    both: Any = _Shards(weights)
    names = checkpoint_of(model, sent)
    end = ServersPublisher(both, both, names, 4096, AMPLE)
    await end.join(Publish(1, 1, 2, direct=True))
    made = dict(names.tensors(weights))
    wanted = WantedHashes(1, {name: ((name,), ("whole",)) for name in made})
    assert both.hashed == expected([(wanted, of_host)], made.items())
    found = await end.send(Publish(1, 1, 2, direct=True))
    whole = [tensor.contiguous().view(torch.uint8).numpy() for tensor in made.values()]
    assert both.sent == b"".join(each.tobytes() for each in whole)
    assert found == Sent([77], len(both.sent), [-0.5])
    assert both.asked == ["gather beside", "join 1", "gather"]
    assert both.live == 0 and both.most <= 6 < len(weights) / 2


async def test_weights_that_do_not_come_are_an_error() -> None:
    model = build("qwen3")
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    last = list(weights)[-1]
    some: Any = _Shards({name: tensor for name, tensor in weights.items() if name != last})
    some.plan = Plan.of(weights, 4096)
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match=f"{last} did not come")):
        end = ServersPublisher(some, some, CheckpointNames(model), 4096, 3.0)
        await end.join(Publish(1, 1, 2, direct=True))


async def test_a_staged_publication_has_nobody_stand_still() -> None:
    nothing: Any = None
    reception = StagedReception(nothing, nothing, nothing)
    reception.begin(Prepare(1, 1, 1, 1, 2, "file:/nowhere"))
    for message in (Quiesce(1), Resend(1)):
        with pytest.raises(ValueError, match=f"no {type(message).__name__}"):
            reception.hear(message)
