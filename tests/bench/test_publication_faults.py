"""Tests of what the bench of publication's faults judges, by frames that are made up."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from frame_tap import TappedLink, _shown
from publication_faults import MOMENTS, Fault, Watch, faults

from asyncrl.messages import ChunkHead, Chunks, Commit, Hello, Message, Prepared, Transferred
from asyncrl.runtime.ipc.framing import encode_frame

SUMS = [5, 6]


def watched(*messages: Message, armed: Fault | None = None) -> tuple[Watch, list[Message]]:
    """A watch of an engine and a trainer that say all of this, and what was passed on."""
    watch, passed = Watch(random.Random(0)), list[Message]()
    engine, trainer = TappedLink(), TappedLink()
    engine.hello, trainer.hello = Hello("rollout", 0, 0, 1), Hello("trainer", 0, 0, 2)
    if armed is not None:
        watch.arm(armed, None)
    for message in messages:
        link = trainer if isinstance(message, Transferred) else engine
        passed.append(watch.heard(link, True, message))
    return watch, passed


def sent(checksums: list[int] = SUMS) -> Transferred:
    return Transferred(1, 7, checksums, 100, 0.1, "")


def tokens(version: int, count: int = 3) -> Chunks:
    return Chunks([ChunkHead(1, 1, version, 0, count, "")])


@pytest.mark.parametrize(
    ("messages", "violations"),
    [
        ([sent(), Prepared(1, SUMS, ""), Commit(1, 7, False), tokens(7)], 0),
        ([sent(), Prepared(1, SUMS, ""), Commit(1, 7, False), tokens(7), tokens(6, 0)], 0),
        ([sent(), Prepared(1, [5, 7], ""), Commit(1, 7, False), tokens(7)], 1),
        ([sent(), Commit(1, 7, False)], 1),
        ([Prepared(1, SUMS, ""), Commit(1, 7, False)], 1),
        ([sent(), Prepared(1, SUMS, ""), Commit(1, 7, False), tokens(8)], 1),
        ([tokens(7)], 1),
    ],
)
def test_what_leaves_an_engine_is_compared_with_what_it_was_given(
    messages: list[Message], violations: int
) -> None:
    watch, passed = watched(*messages)
    assert len(watch.violations) == violations and passed == messages


def test_a_flip_changes_one_bit_of_what_a_side_says_once() -> None:
    """An engine that says that it failed has none to change."""
    armed = Fault(Prepared, "flip", "engine")
    failed, whole = Prepared(1, [], "it is gone"), Prepared(1, SUMS, "")
    watch, passed = watched(failed, whole, whole, armed=armed)
    assert watch.struck.is_set() and [passed[0], passed[2]] == [failed, whole]
    changed = passed[1]
    assert isinstance(changed, Prepared) and changed.checksums[1:] == SUMS[1:]
    assert (changed.checksums[0] ^ SUMS[0]).bit_count() == 1


@pytest.mark.parametrize(("path", "ranks", "count"), [("staged", 1, 34), ("direct", 2, 68)])
def test_every_victim_is_struck_in_every_way_at_every_message(
    path: str, ranks: int, count: int
) -> None:
    every = faults(path, ranks)
    assert len(every) == len(set(map(str, every))) == count
    by_moment = Counter(fault.moment for fault in every if fault.action != "flip")
    assert by_moment.keys() == set(MOMENTS[path]) and len(set(by_moment.values())) == 1


def test_a_frame_is_passed_on_as_it_is_and_another_in_its_place() -> None:
    said: list[Any] = []

    def heard(_link: TappedLink, _up: bool, message: Message) -> Message:
        said.append(message)
        return Prepared(1, [4], "") if isinstance(message, Prepared) else message

    for message, buffers in ((Prepared(1, SUMS, ""), ()), (tokens(7), (b"x" * 12, b"y" * 12))):
        parts, size = encode_frame(message, buffers, 2**20)
        frame = b"".join(bytes(part) for part in parts)
        assert len(frame) == size
        passed = _shown(TappedLink(), True, frame, heard)
        assert (passed == frame) == isinstance(message, Chunks) and said[-1] == message
