"""The wire: equal bytes, and every way it can break. Most of it with all ranks in one process, the
deaths with real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch
import trio
import warm_process
from torch import Tensor

from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.broadcast_group import EpochGroup
from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Job, Worker
from asyncrl.weightsync.transport import Received, Sent

HOST = "127.0.0.1"
AMPLE = 30.0
"""Seconds that none of these transfers needs."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(300, 64, generator=generator),
        "half": torch.randn(1000, generator=generator).bfloat16(),
        "transposed": torch.randn(64, 50, generator=generator).t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "steps": torch.arange(10),
    }


PLAN = Plan.of(model(), 8192)
Outcome = Received | Exception


async def everybody(
    sender: GroupSender,
    receivers: list[GroupReceiver],
    epoch: int,
    weights: dict[str, Tensor],
    plans: list[Plan] | None = None,
    deadline_s: float = AMPLE,
    average: dict[str, Tensor] | None = None,
    plan: Plan | None = None,
) -> tuple[Sent | Exception, list[Outcome]]:
    """One publication among all of them; what each of them got."""
    world = len(receivers) + 1
    got: dict[int, Outcome | Sent] = {}

    async def send() -> None:
        try:
            second = None if average is None else average.items()
            got[0] = await sender.send(
                epoch, world, plan or PLAN, weights.items(), deadline_s, second
            )
        except (TransferError, PlanMismatch) as error:
            got[0] = error

    async def receive(rank: int) -> None:
        own = plans[rank - 1] if plans else plan or PLAN
        try:
            got[rank] = await receivers[rank - 1].receive(
                sender.store, epoch, rank, world, own, deadline_s, average=average is not None
            )
        except (TransferError, PlanMismatch) as error:
            got[rank] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for rank in range(1, world):
            nursery.start_soon(receive, rank)
    sent = got.pop(0)
    assert isinstance(sent, Sent | Exception)
    return sent, [got[rank] for rank in range(1, world)]  # type: ignore[misc]


def assert_equal(staged: Outcome, weights: dict[str, Tensor]) -> None:
    assert isinstance(staged, Received), staged
    assert list(staged.weights) == list(weights)
    for name, w in weights.items():
        assert staged.weights[name].dtype == w.dtype and torch.equal(staged.weights[name], w), name


@asynccontextmanager
async def ends(
    count: int, host: str = HOST, full_every: int = 1
) -> AsyncIterator[tuple[GroupSender, list[GroupReceiver]]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        opened = GroupSender.open(host, folder / "weights.store", full_every=full_every)
        sender = await stack.enter_async_context(opened)
        receivers = [GroupReceiver.open(full_every=full_every) for _ in range(count)]
        yield sender, [await stack.enter_async_context(receiver) for receiver in receivers]


async def test_equal_bytes_and_checksums_over_publications_and_epochs() -> None:
    async with ends(2) as (sender, receivers):
        for epoch, members in [
            (1, receivers[:1]),
            (2, receivers),
            (5, receivers[1:]),
        ]:  # the second joins late, the first leaves
            for seed in range(2):
                weights = model(seed)
                sent, got = await everybody(sender, members, epoch, weights)
                assert isinstance(sent, Sent), sent
                assert len(sent.checksums) == PLAN.bucket_count > 5
                for staged in got:
                    assert_equal(staged, weights)
                    assert isinstance(staged, Received) and staged.checksums == sent.checksums
                assert sent.sent_bytes == PLAN.total_bytes


@pytest.mark.parametrize("full_every", [1, 3])
async def test_what_never_changes_is_sent_once_an_epoch_and_checked_each_time(
    full_every: int,
) -> None:
    plan = Plan.of(model(), 8192, still="embed")
    assert plan.stays() == [True] * 9 + [False] * (plan.bucket_count - 9)
    first, second = model(0), model(1) | {"embed": model(0)["embed"]}
    async with ends(2, full_every=full_every) as (sender, receivers):
        for epoch in (1, 2):
            bytes_of = []
            for weights, average in ((first, None), (second, first), (first, None)):
                sent, got = await everybody(
                    sender, receivers, epoch, weights, average=average, plan=plan
                )
                assert isinstance(sent, Sent), sent
                bytes_of.append(sent.sent_bytes)
                for staged in got:
                    assert_equal(staged, weights)
                    assert isinstance(staged, Received) and staged.checksums == sent.checksums
            assert bytes_of[0] >= plan.total_bytes
            assert bytes_of[2] <= bytes_of[0] - 9 * 8192
        changed = first | {"embed": first["embed"] + 1}
        sent, got = await everybody(sender, receivers, 2, changed, plan=plan)
        assert isinstance(sent, Sent) and isinstance(got[0], Received)
        assert sent.checksums[:9] != got[0].checksums[:9]  # nobody would commit it
        _, got = await everybody(sender, receivers, 3, first, plans=[PLAN, plan], plan=plan)
        assert isinstance(got[0], PlanMismatch) and "never change" in str(got[0])


def changed_a_little(weights: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Three hundredths of the numbers, and one bit of another."""
    generator = torch.Generator().manual_seed(seed)
    changed = {name: w.clone() for name, w in weights.items()}
    for name in ("embed", "half"):
        at = torch.rand(changed[name].shape, generator=generator) < 0.03
        changed[name][at] *= -1.25
    changed["steps"][seed % 10] += 1
    return changed


async def test_deltas_are_exact_and_the_first_of_an_epoch_and_each_fourth_is_whole() -> None:
    weights = model()
    async with ends(2, full_every=4) as (sender, receivers):
        for epoch, members in [(1, receivers), (2, receivers[:1]), (3, receivers)]:
            sent_bytes = []
            for seed in range(9):
                sent, got = await everybody(sender, members, epoch, weights)
                assert isinstance(sent, Sent), sent
                for staged in got:
                    assert_equal(staged, weights)
                    assert isinstance(staged, Received) and staged.checksums == sent.checksums
                sent_bytes.append(sent.sent_bytes)
                weights = changed_a_little(weights, seed)
            heads = 4 * PLAN.bucket_count
            for i, size in enumerate(sent_bytes):
                assert (
                    size == PLAN.total_bytes + heads if i % 4 == 0 else size < 0.2 * sent_bytes[0]
                )


async def test_deltas_go_on_after_an_average() -> None:
    weights = model()
    async with ends(1, full_every=99) as (sender, [receiver]):
        for seed in range(5):
            average = model(9) if seed == 2 else None
            sent, [got] = await everybody(sender, [receiver], 1, weights, average=average)
            assert_equal(got, weights)
            assert isinstance(got, Received) and isinstance(sent, Sent)
            assert got.checksums == sent.checksums
            if average is not None:
                kept = got.average
            weights = changed_a_little(weights, seed)
        assert kept is not None and all(torch.equal(kept[name], w) for name, w in model(9).items())
        assert sent.sent_bytes < 0.2 * PLAN.total_bytes


async def test_weights_that_did_not_change_cost_their_heads() -> None:
    async with ends(1, full_every=99) as (sender, receivers):
        for _ in range(2):
            sent, [got] = await everybody(sender, receivers, 1, model())
            assert_equal(got, model())
        assert isinstance(sent, Sent) and sent.sent_bytes == 4 * PLAN.bucket_count


async def test_what_a_delta_is_made_from_shows_in_the_checksums_where_it_changed() -> None:
    """An engine's memory is not what it was: its checksums say so, so that it is fenced."""
    weights = model()
    async with ends(2, full_every=99) as (sender, receivers):
        _, [_, spoiled] = await everybody(sender, receivers, 1, weights)
        assert isinstance(spoiled, Received) and spoiled.weights is not None
        spoiled.weights["embed"].view(torch.uint8).view(-1)[100] ^= 4
        weights = changed_a_little(weights, 1)
        sent, [whole, other] = await everybody(sender, receivers, 1, weights)
        assert_equal(whole, weights)
        assert isinstance(sent, Sent) and isinstance(other, Received)
        differ = [a != b for a, b in zip(sent.checksums, other.checksums, strict=True)]
        assert differ == [i == 0 for i in range(PLAN.bucket_count)]
        sent, got = await everybody(sender, receivers, 2, weights)  # a new epoch begins anew
        for staged in got:
            assert_equal(staged, weights)


async def test_an_average_follows_the_weights_with_checksums_of_its_own() -> None:
    """In an epoch in which others have none; it lies where no later transfer writes."""
    async with ends(2) as (sender, receivers):
        plain, _ = await everybody(sender, receivers, 1, model(0))
        both, got = await everybody(sender, receivers, 1, model(1), average=model(2))
        alone, later = await everybody(sender, receivers, 1, model(2))
        assert isinstance(plain, Sent) and isinstance(alone, Sent)
        assert isinstance(both, Sent) and len(both.checksums) == 2 * len(plain.checksums)
        assert both.checksums[len(plain.checksums) :] == alone.checksums
        for staged, after in zip(got, later, strict=True):
            assert isinstance(staged, Received) and staged.checksums == both.checksums
            assert staged.average is not None and staged.average.keys() == model(2).keys()
            for name, tensor in model(2).items():
                assert torch.equal(staged.average[name], tensor), name
            assert isinstance(after, Received) and after.average is None


async def test_pain_19_a_bit_flipped_on_the_way_shows_in_the_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = EpochGroup._broadcast

    def flip(self: EpochGroup, job: Job, bucket: Tensor, doing: str) -> object:
        if doing.startswith("sending bucket 3 "):
            bucket = bucket.clone()
            bucket[100] ^= 4
        return honest(self, job, bucket, doing)

    monkeypatch.setattr(EpochGroup, "_broadcast", flip)
    async with ends(1) as (sender, receivers):
        sent, [got] = await everybody(sender, receivers, 1, model())
        assert isinstance(sent, Sent) and isinstance(got, Received)
        assert [a == b for a, b in zip(sent.checksums, got.checksums, strict=True)] == [
            i != 2 for i in range(PLAN.bucket_count)
        ]


async def test_another_model_is_refused_before_anything_is_sent() -> None:
    other = Plan.of({**model(), "half": torch.empty(1000)}, 8192)
    async with ends(2) as (sender, receivers):
        sent, [innocent, guilty] = await everybody(sender, receivers, 1, model(), [PLAN, other])
        difference = (
            "tensor 1 is half (float32 [1000]) in this engine's model, but half (bfloat16 "
            "[1000]) in the trainer's"
        )
        assert isinstance(guilty, PlanMismatch) and str(guilty) == difference
        assert (
            isinstance(sent, TransferError)
            and str(sent) == f"the engine of rank 2 refused: {difference}"
        )
        assert isinstance(innocent, TransferError) and difference in str(innocent)
        sent, [innocent] = await everybody(sender, receivers[:1], 2, model())
        assert_equal(innocent, model())


async def test_tensors_that_are_not_the_plans_end_the_transfer_for_all_at_once() -> None:
    async with ends(1) as (sender, receivers):
        with trio.fail_after(AMPLE / 2):
            sent, [got] = await everybody(
                sender, receivers, 1, {**model(), "scalar": torch.zeros(2)}
            )
        assert isinstance(sent, PlanMismatch)
        assert isinstance(got, TransferError) and "failed while receiving bucket" in str(got)


async def test_deadlines_hold_and_say_who_is_missing() -> None:
    async with ends(1) as (sender, [receiver]):
        with (
            trio.fail_after(30),
            pytest.raises(TransferError, match="waiting for the engine of rank 1 to join epoch 1"),
        ):
            await sender.send(1, 2, PLAN, model().items(), 3.0)
        with (
            trio.fail_after(30),
            pytest.raises(TransferError, match="waiting for the trainer to open epoch 3"),
        ):
            await receiver.receive(sender.store, 3, 1, 2, PLAN, 3.0)
        store = sender.store
    async with GroupReceiver.open() as receiver:
        with (
            trio.fail_after(30),
            pytest.raises(
                TransferError,
                match=r"the trainer's store at .*weights.store: there is no such file",
            ),
        ):
            await receiver.receive(store, 1, 1, 2, PLAN, 3.0)


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"cannot listen on 192.0.2.1 .*set publication.host"):
        async with GroupSender.open("192.0.2.1", tmp_path / "s"):
            pass


async def test_an_epoch_does_not_come_back() -> None:
    async with ends(1) as (sender, receivers):
        await everybody(sender, receivers, 3, model())
        sent, [got] = await everybody(sender, receivers, 2, model())
        assert (
            isinstance(sent, TransferError) and str(sent) == "epoch 2 is over: publish in a new one"
        )
        assert isinstance(got, TransferError)


async def test_after_a_cancelled_transfer_the_next_epoch_starts_at_once() -> None:
    """The cancelled threads are still in their calls, with half a minute to go, when the next epoch
    begins."""
    gate = threading.Event()
    async with ends(2) as (sender, receivers):
        with trio.fail_after(AMPLE / 2):
            async with trio.open_nursery() as nursery:
                hold = trio.Event()
                token = trio.lowlevel.current_trio_token()

                def slow() -> Iterator[tuple[str, Tensor]]:
                    for i, item in enumerate(model().items()):
                        if i == 2:  # some buckets are sent, and the receiver waits for the next
                            trio.from_thread.run_sync(hold.set, trio_token=token)
                            gate.wait()
                        yield item

                nursery.start_soon(sender.send, 1, 2, PLAN, slow(), AMPLE)
                nursery.start_soon(receivers[0].receive, sender.store, 1, 1, 2, PLAN, AMPLE)
                await hold.wait()
                nursery.cancel_scope.cancel()
            sent, got = await everybody(sender, receivers, 2, model(1))
            assert isinstance(sent, Sent)
            for staged in got:
                assert_equal(staged, model(1))
            gate.set()


async def test_no_more_than_one_thread_is_left_behind() -> None:
    worker = Worker()
    token = trio.lowlevel.current_trio_token()

    async def do(gate: threading.Event, begun: trio.Event) -> None:
        def work() -> None:
            trio.from_thread.run_sync(begun.set, trio_token=token)
            gate.wait()

        async with worker.turn(AMPLE):
            await worker.run(work, gate.set)

    left_behind = [threading.Event(), threading.Event()]
    try:
        with trio.fail_after(AMPLE):
            for gate in left_behind:
                async with trio.open_nursery() as nursery:
                    begun = trio.Event()
                    nursery.start_soon(do, gate, begun)
                    await begun.wait()
                    nursery.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                open_gate, begun = threading.Event(), trio.Event()
                open_gate.set()
                nursery.start_soon(do, open_gate, begun)
                with trio.move_on_after(0.3):
                    await begun.wait()
                assert not begun.is_set(), "a third thread was begun"
                left_behind[0].set()
            assert begun.is_set()
    finally:
        for gate in left_behind:
            gate.set()


# ---------------------------------------------------------------------------------- real processes


class Engine:
    """The engine process, driven line by line."""

    def __init__(self) -> None:
        self.process = warm_process.Popen(
            [sys.executable, "-m", "engine_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).parent),
            },
        )

    def order(
        self,
        store: str,
        epoch: int,
        rank: int,
        world: int,
        plan: Plan,
        seconds: float,
        direct: bool = False,
    ) -> None:
        assert self.process.stdin is not None
        line = {
            "store": store,
            "epoch": epoch,
            "rank": rank,
            "world": world,
            "plan": msgspec.to_builtins(plan),
            "s": seconds,
            "direct": direct,
        }
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    async def answer(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
async def test_engines_that_die_and_hang_in_mid_transfer(tmp_path: Path, direct: bool) -> None:
    """The transfer fails for the sender, at the deadline at the latest; the next epoch goes without
    that engine. Where one died it mostly fails at once, but gloo tells nobody of a send that was
    half written: the launcher tells the coordinator, which gives the transfer up."""
    big = {
        f"layer{i}": torch.randn(1 << 20, generator=torch.Generator().manual_seed(i))
        for i in range(8)
    }  # 32 MB: more than sockets hold
    plan = Plan.of(big, 1 << 20)

    def gather(victim: Engine, how: signal.Signals) -> Iterator[tuple[str, Tensor]]:
        for name, w in big.items():
            if name == "layer2":
                victim.process.send_signal(how)
                if how is signal.SIGKILL:
                    victim.process.wait()
            yield name, w

    engines = [Engine() for _ in range(3)]
    try:
        async with GroupSender.open(HOST, tmp_path / "s") as sender:
            for engine in engines:
                assert await engine.answer() == {"ready": True}
            for epoch, how, deadline_s, within in [
                (1, signal.SIGKILL, 15.0, 30.0),
                (2, signal.SIGSTOP, 15.0, 30.0),
            ]:
                victim, *others = engines[epoch - 1 :]
                world = 2 + len(others)
                for rank, engine in enumerate([victim, *others], 1):
                    engine.order(sender.store, epoch, rank, world, plan, deadline_s, direct)
                if direct:
                    await sender.join(epoch, world, plan, deadline_s)
                start = trio.current_time()
                with pytest.raises(TransferError, match=r"sending bucket \d+ of 32"):
                    await sender.send(epoch, world, plan, gather(victim, how), deadline_s)
                assert trio.current_time() - start < within
                for engine in others:
                    assert "receiving bucket" in str((await engine.answer())["error"])

            if direct:  # one that is stopped before it has joined
                engines[2].process.send_signal(signal.SIGSTOP)
                engines[2].order(sender.store, 3, 1, 2, plan, 3.0, direct)
                with pytest.raises(TransferError, match="waiting for the engine of rank 1 to join"):
                    await sender.join(3, 2, plan, 3.0)
                engines[2].process.send_signal(signal.SIGCONT)
                assert "error" in await engines[2].answer()
            engines[2].order(sender.store, 4, 1, 2, plan, AMPLE, direct)
            sent = await sender.send(4, 2, plan, big.items(), AMPLE)
            answer = await engines[2].answer()
            assert answer["checksums"] == sent.checksums
            assert answer["sums"] == {name: float(w.double().sum()) for name, w in big.items()}
    finally:
        for engine in engines:
            engine.end()
