"""A handoff between two threads: everything in order, one tensor at a time, and no end without a
name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.handoff import Handoff

AMPLE = 30.0


def tensors(made: list[int], count: int = 20) -> Iterator[tuple[str, Tensor]]:
    for i in range(count):
        made.append(i)
        yield f"t{i}", torch.full((3,), i)


def fill(handoff: Handoff, made: Iterator[tuple[str, Tensor]]) -> None:
    with handoff.filling():
        handoff.put(made)


def test_all_come_in_order_and_two_are_made_ahead_at_most() -> None:
    handoff, made = Handoff(AMPLE), list[int]()
    thread = threading.Thread(target=fill, args=[handoff, tensors(made)])
    thread.start()
    taken = 0
    for name, tensor in handoff:
        assert name == f"t{taken}" and tensor.tolist() == [taken] * 3
        taken += 1
        assert len(made) <= taken + 2  # one waits here, and one for its place
    thread.join(AMPLE)
    assert taken == 20 and not thread.is_alive()


def test_what_nobody_takes_is_made_to_its_end() -> None:
    handoff, made = Handoff(AMPLE), list[int]()
    thread = threading.Thread(target=fill, args=[handoff, tensors(made)])
    thread.start()
    assert next(iter(handoff))[0] == "t0"
    handoff.leave()
    thread.join(AMPLE)
    assert not thread.is_alive() and len(made) == 20
    with pytest.raises(TransferError, match="not gathered to their end"):
        next(iter(handoff))


def test_a_failure_of_who_makes_them_is_one_of_who_takes_them() -> None:
    def broken() -> Iterator[tuple[str, Tensor]]:
        yield "t0", torch.zeros(1)
        raise ValueError("a rank was lost")

    handoff, errors = Handoff(AMPLE), list[Exception]()

    def try_to() -> None:
        try:
            fill(handoff, broken())
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=try_to)
    thread.start()
    taken = iter(handoff)
    assert next(taken)[0] == "t0"
    with pytest.raises(TransferError, match="not gathered to their end"):
        next(taken)
    thread.join(AMPLE)
    assert len(errors) == 1


def test_neither_side_waits_for_ever() -> None:
    with pytest.raises(TransferError, match="not gathered to their end"):
        next(iter(Handoff(0.1)))
    made, start = list[int](), time.monotonic()
    fill(Handoff(1.0), tensors(made))  # nobody takes them: one patience, and not one for each
    assert len(made) == 20 and time.monotonic() - start < 10.0
