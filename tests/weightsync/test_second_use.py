"""Objects that give weights to a server, used again after any failure: the second use is what a
first use is. And the order in which a mapping of weights comes changes nothing that is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from asyncrl.engines.servers.errors import ServerError
from asyncrl.engines.servers.served import ServerClient
from asyncrl.weightsync.servers.meeting import MeetingAnswer, WantedOfServer
from asyncrl.weightsync.servers.server_checksums import (
    Checks,
    WantedHashes,
    WrongWeights,
    expected,
    sources,
)
from asyncrl.weightsync.servers.server_hashes import hash_on, of_host
from asyncrl.weightsync.servers.servers_sender import _hashes
from asyncrl.weightsync.servers.weight_loader import (
    HalfLoaded,
    IntoServer,
    Load,
    Loaded,
    NotLoaded,
    WeightLoader,
)

Weights = dict[str, torch.Tensor]
TEXT = np.arange(4, dtype=np.int32)
REFERENCE = [-1.0, -2.0, -3.0]
BEFORE = ("join", "pause", "begin")
"""Stages at which a load that fails has changed nothing."""
STAGES = (*BEFORE, "send", "resume", "score", "wrong scores", "")
"""The stage that fails; empty: none does."""


class Server:
    """A server that fails at the stage `fails`, and the way of loading into it."""

    url = "http://fake:1"

    def __init__(self) -> None:
        self.fails, self.paused, self.left = "", False, 0

    async def stage(self, name: str) -> None:
        await trio.sleep(1.0)
        if self.fails == name:
            raise ServerError(f"{name} failed")

    async def join(self, load: Load) -> None:
        await self.stage("join")

    async def begin(self, load: Load) -> None:
        await self.stage("begin")

    async def send(self, load: Load) -> None:
        await self.stage("send")

    async def leave(self, load: Load, *, failed: bool) -> None:
        await trio.sleep(1.0)
        self.left += 1

    async def pause(self, mode: str) -> None:
        await self.stage("pause")
        self.paused = True

    async def resume(self) -> None:
        await trio.sleep(1.0)  # a clean-up that is cut short leaves it paused
        self.paused = False
        await self.stage("resume")

    async def score(self, text: object, extra_key: str) -> list[float]:
        await self.stage("score")
        return [-9.0, -9.0, -9.0] if self.fails == "wrong scores" else REFERENCE


def loader(server: Server, deadline_s: float) -> WeightLoader:
    """A loader that need not look at checksums: the server has none."""
    return WeightLoader(
        cast(ServerClient, server),
        cast(IntoServer, server),
        nn.Linear(2, 2),
        TEXT,
        mode="abort",
        tolerance=0.1,
        deadline_s=deadline_s,
    )


async def loaded(
    subject: WeightLoader, server: Server, version: int, fails: str
) -> tuple[Any, ...]:
    """Load once. Returns the end, and whether the server is left paused."""
    server.fails = fails
    weights = dict(nn.Linear(2, 2).named_parameters())
    try:
        end: type = type(await subject.load(version, weights, REFERENCE))
    except (NotLoaded, HalfLoaded) as error:
        end = type(error)
    return end, server.paused


@example(fails=["send", "join", "begin", ""])
@example(fails=["wrong scores", "pause", ""])
@given(fails=st.lists(st.sampled_from(STAGES), min_size=2, max_size=5))
def test_a_loader_that_failed_is_as_good_as_a_new_one(fails: list[str]) -> None:
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("asyncrl.weightsync.servers.weight_loader.acquainted", without_checksums)
            server = Server()
            subject = loader(server, 10.0)
            for version, stage in enumerate(fails):
                server.paused = False
                found = await loaded(subject, server, version, stage)
                new = Server()
                assert found == await loaded(loader(new, 10.0), new, version, stage), stage
                kind = NotLoaded if stage in BEFORE else HalfLoaded if stage else Loaded
                assert found == (kind, stage == "send"), stage
            assert server.left == len(fails), "it is cleared up after each"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def without_checksums(*_: object) -> None:
    await trio.lowlevel.checkpoint()


# --------------------------------------------------------------------------------------- checksums

LAYER = "model.layers.0"


def model(seed: int) -> Weights:
    """Weights of which a server fuses some."""
    torch.manual_seed(seed)
    shapes = {"q": 4, "k": 2, "v": 2}
    return {
        "model.norm.weight": torch.rand(8),
        **{f"{LAYER}.self_attn.{n}_proj.weight": torch.rand(s, 8) for n, s in shapes.items()},
        **{f"{LAYER}.mlp.{n}_proj.weight": torch.rand(4, 8) for n in ("gate", "up", "down")},
    }


def held(weights: Mapping[str, torch.Tensor], *, known: bool) -> dict[str, str]:
    """The hashes of a server that holds these weights, in a layout that is known or not."""
    fused = {
        "model.norm.weight": ("model.norm.weight",),
        f"{LAYER}.self_attn.qkv_proj.weight": tuple(
            f"{LAYER}.self_attn.{n}_proj.weight" for n in "qkv"
        ),
        f"{LAYER}.mlp.gate_up_proj.weight": tuple(
            f"{LAYER}.mlp.{n}_proj.weight" for n in ("gate", "up")
        ),
        f"{LAYER}.mlp.down_proj.weight": (f"{LAYER}.mlp.down_proj.weight",),
    }
    return {
        name: of_host([weights[part] if known else weights[part] * 2 for part in parts])
        for name, parts in fused.items()
    }


def shuffled(mapping: Mapping[str, Any], order: int) -> dict[str, Any]:
    rng = np.random.default_rng(order)
    names = list(mapping)
    return {names[at]: mapping[names[at]] for at in rng.permutation(len(names))}


VERSIONS = st.tuples(st.integers(0, 2), st.sampled_from([0, 1, -1]))
"""A version that is sent, and how far from it what the server then holds is."""


@example(sent=[(0, 0), (1, -1), (1, 0), (0, 0)], known=False, order=1)
@example(sent=[(0, 1), (1, 0), (1, 1)], known=True, order=2)
@given(
    sent=st.lists(VERSIONS, min_size=2, max_size=5),
    known=st.booleans(),
    order=st.integers(0, 10**6),
)
def test_checksums_that_failed_once_are_compared_as_before_in_any_order(
    sent: list[tuple[int, int]], known: bool, order: int
) -> None:
    """A failed comparison teaches nothing; what was right or wrong is, whatever the order in which
    weights and hashes come."""
    theirs = held(model(9), known=known)
    plain = Checks(model(0), [theirs], of_host)
    mixed = Checks(shuffled(model(0), order), [shuffled(theirs, order + 1)], of_host)
    assert sources(model(0), theirs) == sources(shuffled(model(0), order), theirs)
    last: tuple[int, int] | None = None
    exact = False  # its layout was found
    for number, (version, off) in enumerate(sent):
        holds = version + off
        exact = exact or (known and off == 0)
        moved = last is None or (last[0] == version) == (last[1] == holds)
        right = off == 0 if exact else moved
        hashes = held(model(holds), known=known)
        for checks, turn in ((plain, lambda found: found), (mixed, shuffled_by(order + number))):
            due = checks.expect(turn(model(version)))
            if right:
                checks.verify(turn(due), [turn(hashes)])
            else:
                with pytest.raises(WrongWeights):
                    checks.verify(turn(due), [turn(hashes)])
        if right:
            last = version, holds
            assert plain.exact == mixed.exact == (4 if exact else 0)
            assert plain.wanted == mixed.wanted


@given(order=st.permutations(range(4)), split=st.integers(0, 4))
def test_shared_hashes_are_those_of_a_server_alone(order: list[int], split: int) -> None:
    """Equal answers are computed once: whatever makes another hash is in what they are known by."""
    weights = model(1)
    layouts: tuple[str, ...] = ("whole", "rows")
    ours: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        name: ((name,), layouts) for name in weights
    }
    alike = WantedOfServer(2, "cpu", WantedHashes(2, ours))
    servers = [
        alike,
        WantedOfServer(2, "cuda", WantedHashes(2, ours)),
        WantedOfServer(2, "cpu", WantedHashes(1, ours)),
        WantedOfServer(2, "cpu", WantedHashes(2, dict(list(ours.items())[:2]))),
    ]
    asked = [servers[at] for at in order] + [alike]
    answers = [MeetingAnswer(asked[:split]), MeetingAnswer(asked[split:])]
    found = [one for of_actor in _hashes(answers, weights.items()) for one in of_actor]
    for server, hashes in zip(asked, found, strict=True):
        assert server.hashes is not None
        alone = [(server.hashes, hash_on(server.device))]
        assert [hashes] == expected(alone, weights.items())


def shuffled_by(order: int) -> Any:
    return lambda found: shuffled(found, order)
