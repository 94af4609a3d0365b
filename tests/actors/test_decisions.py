"""Decisions of the coordinator's parts, without the loop that carries them out."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from memory_link import memory_links
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.decisions import (
    EndRun,
    Evaluated,
    EvaluationDropped,
    LeaseAnswers,
    ReplaceActor,
    VersionServed,
)
from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.evaluation import Evaluation, EvaluationPlan
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.publishing import FAILURES, Publishing
from asyncrl.config.schema import EvaluationConfig
from asyncrl.experience.experience import Experience
from asyncrl.messages import Committed, Hello, Message, Prepared, Transferred
from asyncrl.runtime.processes.standstill import RunClock


class Deaf(Peer):
    """An actor that keeps nothing of what it is told."""

    def send(self, message: Message, *buffers: object) -> None:
        return


def publishing(engines: int = 1) -> tuple[Publishing, EnginePool]:
    pool = EnginePool()
    made = Publishing(EventStore(Experience(), MemoryLog()), pool, configured(), RunClock())
    made.trainer(Deaf(Hello("trainer", 0, 0, 1), memory_links()[0]), "store")
    for index in range(engines):
        pool.add(EngineHandle(Deaf(Hello("rollout", index, 0, 1), memory_links()[0]), 4))
        made.join(index)
    return made, pool


def fail(made: Publishing, number: int) -> list[Any]:
    """The trainer cannot send, and everybody lets go."""
    decisions = made.pump(0, False)
    decisions += made.on_transferred(Transferred(number, 0, [], 0, 0.0, "it broke"))
    return decisions + made.on_prepared(0, Prepared(number, [], "aborted"))


async def test_publications_that_fail_in_a_row_end_the_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made, _ = publishing()
    for number in range(1, FAILURES):
        assert fail(made, number) == []
    (end,) = fail(made, FAILURES)
    assert isinstance(end, EndRun) and end.heals is None
    assert end.reason.startswith(f"{FAILURES} publications failed in a row") and "broke" in (
        end.reason
    )


@example(ends=["fails"] * (FAILURES - 1) + ["loses one", "fails"])
@example(ends=["fails"] * (FAILURES - 1) + ["is done"] + ["fails"] * FAILURES)
@given(
    ends=st.lists(st.sampled_from(["fails", "fails", "fails", "loses one", "is done"]), max_size=12)
)
def test_failures_in_a_row_are_those_since_one_was_done_with_every_engine_alive(
    ends: list[str],
) -> None:
    """Against a second count of them."""

    async def main() -> None:
        made, _ = publishing(1 + ends.count("loses one"))
        live, row = list(range(1 + ends.count("loses one"))), 0
        for number, end in enumerate(ends, 1):
            decisions = made.pump(number, True)
            if end == "loses one":
                decisions += made.lose(live.pop(), "it died")
            done = end == "is done"
            sent = Transferred(number, number, [7], 4, 0.1, "" if done else "it broke")
            decisions += made.on_transferred(sent)
            for member in live:
                answer = Prepared(number, [7] if done else [], "" if done else "aborted")
                decisions += made.on_prepared(member, answer)
            for member in live if done else []:
                committed = Committed(number, number, 0.1)
                decisions += made.on_committed(member, f"rollout-{member}", committed)
            row = 0 if done else row + (end == "fails")
            assert [one for one in decisions if isinstance(one, VersionServed)] == (
                [VersionServed(number, True)] if done else []
            )
            over = any(isinstance(one, EndRun) for one in decisions)
            assert over == (end == "fails" and row >= FAILURES) and not made.busy
            if over:
                return

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_an_engine_that_is_late_is_replaced_and_the_rest_serve(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made, pool = publishing(2)
    assert made.pump(0, True) == []
    assert made.on_transferred(Transferred(1, 0, [7], 4, 0.1, "")) == []
    assert made.on_prepared(0, Prepared(1, [7], "")) == []
    await trio.sleep(configured().publication.deadline_s + 1.0)
    decided = made.late(trio.current_time())
    assert [type(one) for one in decided] == [ReplaceActor]
    assert decided[0].name == "rollout-1"  # type: ignore[union-attr]
    committed = Committed(1, 0, 0.1)
    assert made.on_committed(0, "rollout-0", committed) == [VersionServed(0, True)]
    assert made.served == 0 and pool.serves("evaluation", 0)


async def test_an_engine_serves_only_what_it_was_told_to_commit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Engine 0 is restarted, and its link repeats its last answer while engine 1 still owes its
    own; engine 1 says its answer before it is told, and then another version."""
    made, pool = publishing(2)
    committed = Committed(1, 0, 0.1)
    assert made.pump(0, False) == []
    assert made.on_transferred(Transferred(1, 0, [7], 4, 0.1, "")) == []
    assert made.on_prepared(0, Prepared(1, [7], "")) == []
    assert made.on_committed(1, "rollout-1", committed) == [] and pool.current == set()
    assert made.on_prepared(1, Prepared(1, [7], "")) == []
    assert made.on_committed(0, "rollout-0", committed) == [] and pool.current == {0}
    pool.add(EngineHandle(Deaf(Hello("rollout", 0, 1, 1), memory_links()[0]), 4))
    assert made.lose(0, "it died") == []
    made.join(0)
    assert made.on_committed(0, "rollout-0", committed) == [] and pool.current == set()
    other = made.on_committed(1, "rollout-1", Committed(1, 5, 0.1))
    assert [type(one) for one in other] == [ReplaceActor, VersionServed]
    assert pool.current == set()


async def test_an_evaluation_says_what_is_due_and_gives_up_what_no_engine_has(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Starts:
        def start(self, *args: object, **settings: object) -> bool:
            return True

    pool = EnginePool()
    pool.add(EngineHandle(Deaf(Hello("rollout", 0, 0, 1), memory_links()[0]), 4))
    plan = EvaluationPlan(range(2), ["", ""], 2, EvaluationConfig(hold_s=60.0))
    store = EventStore(Experience(), MemoryLog())
    evaluation = Evaluation(store, pool, Starts(), RunClock(), plan, {})  # type: ignore[arg-type]
    assert evaluation.due(0, False) and evaluation.pump() == []
    pool.serve("rollout-0", 0, pin=True)
    evaluation.start(0)
    assert evaluation.pump() == [LeaseAnswers(0)] and evaluation.answered == (0, 2)
    pool.remove("rollout-0")
    assert evaluation.pump() == [EvaluationDropped()] and evaluation.running is None
    assert evaluation.due(1, False), "the next version is evaluated in its place"
    assert not any(isinstance(one, Evaluated) for one in evaluation.pump())
