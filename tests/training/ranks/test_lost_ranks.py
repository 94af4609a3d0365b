"""A rank of a real trainer is killed, or stops, in the middle of each order: rank 0 ends within its
patience, by the other's name, and two ranks go on from the checkpoint as if nothing had happened.

The trainer's processes are those of a run, and this test is their coordinator and their engine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
import torch
import trio
from numpy.typing import NDArray
from rank_world import FORKS, have_a_server
from train_support import tiny_model
from training_world import micro_batch, rollouts

from asyncrl import config as configuration
from asyncrl.actors import rank_parts, trainer_process
from asyncrl.actors.actor_context import ActorContext
from asyncrl.config import load
from asyncrl.messages import (
    CloseStep,
    Consumed,
    Drain,
    Drained,
    Gather,
    Hello,
    Message,
    MicroBatch,
    Publish,
    Save,
    Saved,
    Stepped,
    TrainerReady,
    Transferred,
)
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import new_key, write_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.run_dir import COORDINATOR, INITIAL, KEY, RANK_STORE, RANKS, RUN_TOML
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model, parameters_for_publication
from asyncrl.weightsync.broadcast import GroupReceiver
from asyncrl.weightsync.buckets import Plan

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STALL_S, MARGIN_S, START_S = 15.0, 15.0, 60.0
"""Seconds of patience, and beyond; a rank that is well needs 6 s for an order at a load of 27."""
STEPS = 5
ORDERS: dict[type[Message], str] = {
    MicroBatch: "micro-batch",
    CloseStep: "optimizer step",
    Gather: "weights",
    Save: "checkpoint",
}
M = TypeVar("M", bound=Message)


class Fault(NamedTuple):
    """The signal that rank 1 gives itself when it has this order of the step that makes
    `version`."""

    order: type[Message]
    version: int
    signal: signal.Signals


def rank(run: Path, index: int, resume: bool, fault: Fault | None) -> None:
    """The life of a rank's process. What it says goes to its log."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    os.dup2(os.open(run / f"{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    config = configuration.read(run / RUN_TOML)
    carry_out, made = rank_parts.CarriedOrder.__call__, (Save, Gather)

    def strikes(self: rank_parts.CarriedOrder, order: Message, buffers: list[memoryview]) -> None:
        # some are of the version that was made, the others of the one that is being made
        of = self.learner.version + (type(order) not in made)
        if fault is not None and (type(order), of) == (fault.order, fault.version):
            os.kill(os.getpid(), fault.signal)
        carry_out(self, order, buffers)

    rank_parts.CarriedOrder.__call__ = strikes  # type: ignore[method-assign]
    context = ActorContext("trainer", index, 0, 1, os.getpid(), run, config, resume)
    trio.run(trainer_process.trainer_process, context, strict_exception_groups=True)


@asynccontextmanager
async def trainer(
    run: Path, key: bytes, resume: bool, fault: Fault | None
) -> AsyncIterator[tuple[Link, list[BaseProcess]]]:
    """Both ranks, and the coordinator's end of the link to rank 0."""
    for name in (COORDINATOR, RANKS, RANK_STORE):
        (run / name).unlink(missing_ok=True)
    links, over = trio.open_memory_channel[Link](1), trio.Event()

    async def keep(link: Link) -> None:
        hello, _ = await link.receive()
        assert isinstance(hello, Hello) and (hello.role, hello.index) == ("trainer", 0)
        await links[0].send(link)
        await over.wait()

    have_a_server()
    processes: list[BaseProcess] = [
        FORKS.Process(target=rank, args=(run, index, resume, fault)) for index in range(2)
    ]
    async with trio.open_nursery() as nursery:
        address = UnixAddress(run / COORDINATOR)

        async def serving(task_status: trio.TaskStatus[object]) -> None:
            await serve(address, key, keep, refused=lambda _: None, task_status=task_status)

        await nursery.start(serving)
        try:
            for process in processes:
                process.start()
            with trio.fail_after(START_S):
                link = await links[1].receive()
            yield link, processes
        finally:
            over.set()
            nursery.cancel_scope.cancel()
            for process in processes:  # a rank that stopped ends by nothing else
                process.kill()
                process.join()


class Lived(NamedTuple):
    """Versions that were saved in a life, what the engine had last, and the seconds from the last
    order to the end of rank 0 where that did not come when it was asked to."""

    saved: list[int]
    weights: dict[str, NDArray[np.float32]]
    lost_s: float | None


async def live(run: Path, key: bytes, plan: Plan, resume: bool, fault: Fault | None) -> Lived:
    """Order steps until there are STEPS, or rank 0 ends."""
    saved, weights, began = list[int](), dict[str, NDArray[np.float32]](), 0.0
    every = rollouts(load_model(run / INITIAL), seed=3, count=6)
    async with (
        trainer(run, key, resume, fault) as (link, processes),
        GroupReceiver.open() as engine,
    ):
        ready = await answer_of(link, TrainerReady)
        for version in range(ready.version, STEPS):
            try:
                began = time.monotonic()
                batch, buffers = micro_batch(every, every, version)
                await link.send(batch, *buffers)
                await answer_of(link, Consumed)
                began = time.monotonic()
                await link.send(CloseStep(version))
                await answer_of(link, Stepped)
                began = time.monotonic()
                await link.send(Publish(version, 0, 2))
                weights = await received(link, engine, ready.store, plan)
                began = time.monotonic()
                await link.send(Save(0))
                saved.append((await answer_of(link, Saved)).version)
            except (EndOfStream, LinkError):
                while processes[0].is_alive():
                    assert time.monotonic() < began + STALL_S + MARGIN_S, "rank 0 hangs"
                    await trio.sleep(0.02)
                return Lived(saved, weights, time.monotonic() - began)
        await link.send(Drain())
        await answer_of(link, Drained)
    return Lived(saved, weights, None)


async def received(
    link: Link, engine: GroupReceiver, store: str, plan: Plan
) -> dict[str, NDArray[np.float32]]:
    """Weights of a publication; the link's error where the trainer ends in it."""
    weights = dict[str, NDArray[np.float32]]()

    async def receive() -> None:
        staged = await engine.receive(store, 0, 1, 2, plan, START_S)
        weights.update({name: tensor.numpy().copy() for name, tensor in staged.weights.items()})

    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        try:
            answer = await answer_of(link, Transferred)
            assert not answer.error
        except (EndOfStream, LinkError) as error:
            failed = error
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return weights


async def answer_of(link: Link, kind: type[M]) -> M:
    """The next message of this kind; reports are passed over."""
    with trio.fail_after(START_S):
        while not isinstance((message := (await link.receive())[0]), kind):
            pass
    return message


def one_rank(run: Path) -> dict[str, NDArray[np.float32]]:
    """Weights of a learner alone that makes the same steps."""
    config = configuration.read(run / RUN_TOML)
    model = load_model(run / INITIAL)
    every = rollouts(model, seed=3, count=6)
    learner = Learner(model, config.train, config.staleness, config.rollout.temperature)
    for version in range(STEPS):
        batch, buffers = micro_batch(every, every, version)
        learner.accumulate(batch, buffers)
        learner.step()
    return {name: tensor.numpy() for name, tensor in parameters_for_publication(model)}


@pytest.mark.explore
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_rank_that_is_lost_in_any_order_ends_the_trainer_and_two_go_on(
    how: signal.Signals, tmp_path: Path
) -> None:
    key = new_key()
    write_key(tmp_path / KEY, key)
    (tmp_path / INITIAL).symlink_to(tiny_model(tmp_path / "model"))
    config = load(
        None,
        [
            f"model.path={tmp_path / 'model'}",
            "train.ranks=2",
            "train.lr=1e-3",
            "train.steps=100",
            f"supervision.stall_s={STALL_S}",
            "task.verdict_s=1.0",
            f"supervision.start_s={START_S}",
        ],
        {},
    )
    configuration.write(config, tmp_path / RUN_TOML)
    plan = Plan.of(
        parameters_for_publication(load_model(tmp_path / "model")), config.publication.bucket_bytes
    )
    lives, version = list[Lived](), 0
    for number, order in enumerate(ORDERS, start=2):
        lived = await live(tmp_path, key, plan, version > 0, Fault(order, number, how))
        lives.append(lived)
        assert lived.lost_s is not None, f"nobody noticed in the {ORDERS[order]}"
        assert lived.lost_s < STALL_S + MARGIN_S
        log = (tmp_path / "0.log").read_text()
        assert f"{ORDERS[order]} of rank 1" in log or f"lost at its {ORDERS[order]}" in log
        assert lived.saved == [number - 1], ORDERS[order]
        version = lived.saved[-1]
    last = await live(tmp_path, key, plan, True, None)
    assert last.saved == [STEPS]
    print(how.name, [round(each.lost_s or 0.0, 1) for each in lives])
    for name, array in one_rank(tmp_path).items():
        assert np.abs(last.weights[name] - array).max() <= 1e-5, name
