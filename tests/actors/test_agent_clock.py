"""The clock of an agent, with calls that begin and end in any order: it shows the seconds in which
it ran and no call was under way, and ends the agent at its limit."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.actors.agent_pool import AgentClock

LIMIT_S = 10.0


@example(steps=[("begin", 0, 1.0), ("begin", 1, 2.0), ("end", 0, 4.0), ("end", 1, 8.0)])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["begin", "end"]),
            st.integers(0, 2),
            st.sampled_from([1.0, 0.5, 2.0]),
        ),
        max_size=14,
    )
)
def test_it_stands_while_any_call_is_answered(steps: list[tuple[str, int, float]]) -> None:
    async def main() -> None:
        clock, calls = AgentClock(LIMIT_S), dict[int, AbstractContextManager[None]]()
        spent = 0.0
        with clock.running() as scope:
            for what, which, seconds in steps:
                if what == "begin" and which not in calls:
                    calls[which] = clock.paused()
                    calls[which].__enter__()
                elif what == "end" and which in calls:
                    calls.pop(which).__exit__(None, None, None)
                if not calls:
                    if spent + seconds >= LIMIT_S:
                        spent = LIMIT_S
                        await trio.sleep(seconds)
                        break
                    spent += seconds
                await trio.sleep(seconds)
                assert clock.spent_s == pytest.approx(spent)
        assert scope.cancelled_caught == (spent == LIMIT_S)
        assert clock.spent_s == pytest.approx(spent)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
