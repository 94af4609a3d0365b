"""Memory that a trainer shares with engines of its machine: who may open it, and what happens where
one cannot."""

from __future__ import annotations

import os

import pytest
import torch
from test_collective import assert_equal, ends, everybody, model, one_thread
from torch import Tensor

from asyncrl.weightsync import broadcast_group
from asyncrl.weightsync.shared_memory import AMPLE, SLOTS, TOGETHER, MemoryGroup, Ring
from asyncrl.weightsync.transport import Sent

assert one_thread


def test_the_same_bytes_are_on_both_sides_until_it_is_closed() -> None:
    own = Ring.offer()
    assert own is not None and len(own.slots) == SLOTS
    other = Ring.at(own.place)
    assert other is not None
    own.slots[2][7] = 5
    assert other.slots[2][7] == 5
    pid, number, token = own.place.split()
    assert Ring.at(f"{pid} {number} {token[::-1]}") is None  # other memory has that number now
    own.close()
    own.close()
    assert Ring.at(own.place) is None
    assert own.slots[2][7] == other.slots[2][7] == 5


def test_another_file_of_that_number_is_not_taken_for_it(tmp_path: os.PathLike[str]) -> None:
    descriptor = os.open(os.fspath(tmp_path) + "/file", os.O_RDWR | os.O_CREAT)
    assert Ring.at(f"{os.getpid()} {descriptor} {'00' * 16}") is None
    os.close(descriptor)


@pytest.mark.parametrize("who", ["all", "one", "none"])
async def test_engines_get_the_same_weights_with_it_and_without(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pieces than slots, several times, to engines of which some cannot open it."""
    opened, groups = list[Ring | None](), list[object]()

    class Some(Ring):
        @staticmethod
        def at(place: str) -> Ring | None:
            may = who == "all" or (who == "one" and not opened)
            opened.append(Ring.at(place) if may else None)
            return opened[-1]

    class Counted(MemoryGroup):
        def broadcast(self, tensor: Tensor, *rest: object) -> object:  # type: ignore[override]
            groups.append(self)
            return super().broadcast(tensor, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(broadcast_group, "Ring", Some)
    monkeypatch.setattr(broadcast_group, "MemoryGroup", Counted)
    async with ends(2) as (sender, receivers):
        for seed in range(3):
            weights = model(seed) | {"embed": torch.randn(300, 64)}
            sent, got = await everybody(sender, receivers, 1, weights)
            assert isinstance(sent, Sent), sent
            assert len(sent.checksums) > SLOTS
            for each in got:
                assert_equal(each, weights)
    assert len(opened) == 2
    assert bool(groups) == (who == "all")


def test_an_engine_may_end_as_soon_as_it_has_the_last_broadcast() -> None:
    """Its connection is closed then, maybe before the trainer's thread goes on."""

    class Work:
        def wait(self, timeout: object) -> bool:
            return True

    class Gone:
        broadcasts = 0

        def broadcast(self, *_: object) -> Work:
            self.broadcasts += 1
            return Work()

        def recv(self, *_: object) -> Work:
            if self.broadcasts == TOGETHER:
                raise RuntimeError("Connection closed by peer")
            return Work()

    ring = Ring.offer()
    assert ring is not None
    group = MemoryGroup(Gone(), ring, 0, 2)  # type: ignore[arg-type]
    for _ in range(TOGETHER):
        group.broadcast(torch.zeros(8, dtype=torch.uint8), 0, AMPLE).wait(AMPLE)
    ring.close()
