"""An actor that would end as before is not started again; one that something killed is."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from test_supervisor import Log, Scripted

from asyncrl.config.errors import BAD_INPUT, ConfigError, input_error
from asyncrl.runtime.processes.repeated_ends import RepeatedEnds
from asyncrl.runtime.processes.supervisor import ActorFailed, RestartBudget, supervise
from asyncrl.tasks import TaskError
from asyncrl.training.models import ModelError
from asyncrl.weightsync.buckets import PlanMismatch


def output(words: str) -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 1\n{words}'


VALUE = "ValueError: rollout 22 has no such thing"
LOST = "asyncrl.actors.errors.CoordinatorLost: a rollout actor lost its coordinator"
ENDS = st.sampled_from(
    [
        (1, VALUE),
        (1, VALUE.replace("22", "7")),
        (1, "IndexError: no"),
        (1, LOST),
        (1, "torch.OutOfMemoryError: CUDA out of memory"),
        (1, "it said something"),
        (-9, VALUE),
        (-11, ""),
        (BAD_INPUT, "no GPU is here"),
    ]
)


@given(st.lists(st.tuples(ENDS, st.booleans()), max_size=20))
def test_final_is_bad_input_and_an_equal_error_without_progress(
    said: list[tuple[tuple[int, str], bool]],
) -> None:
    """True: the role did something after this end."""
    ends, done, last = RepeatedEnds(), 0, ""
    for (code, words), progresses in said:
        found = ends.final(code, output(words))
        own = code == 1 and words.startswith(("ValueError", "IndexError"))
        reason = words.replace("22", "7") if own else ""
        assert found is (code == BAD_INPUT or bool(reason and reason == last))
        ends.progressed(done)
        done += progresses
        ends.progressed(done)
        last = "" if progresses else reason


def test_what_was_done_before_an_end_and_is_reported_after_it_is_no_progress() -> None:
    ends = RepeatedEnds()
    ends.progressed(5)
    assert not ends.final(1, output(VALUE))
    ends.progressed(9)
    ends.progressed(9)
    assert ends.final(1, output(VALUE))


async def ended(*script: Scripted) -> tuple[ActorFailed, int]:
    """The failure of a child, and how often it was started again."""
    log, ends = Log(*script), RepeatedEnds()
    budget = RestartBudget(5, 1e9)
    with pytest.raises(ActorFailed) as caught:
        await supervise(
            "rollout-0", log.start, budget=budget, on_exit=log.on_exit, final=ends.final
        )
    return caught.value, sum(isinstance(event, int) for event in log.events) - 1


async def test_the_second_equal_error_is_the_last_and_its_sentence_is_the_failure(autojump_clock):
    failure, again = await ended(*[Scripted(5, 1, output(VALUE)) for _ in range(6)])
    assert again == 1 and trio.current_time() < 15
    assert str(failure) == f"{VALUE} (this ended rollout-0, which is not started again)"


@pytest.mark.parametrize("code", [-9, -11])
async def test_kills_are_healed_as_often_as_allowed(code: int, autojump_clock):
    """The kernel's for memory, or a crash of native code, whatever the log says."""
    _, again = await ended(*[Scripted(5, code, output(VALUE)) for _ in range(6)])
    assert again == 5


async def test_so_are_lost_links_and_machines(autojump_clock):
    _, again = await ended(*[Scripted(5, 1, output(LOST)) for _ in range(6)])
    assert again == 5
    displaced = [Scripted(5, 1, output(VALUE), displaced=True) for _ in range(8)]
    _, again = await ended(*displaced, *[Scripted(5, 1, output(VALUE)) for _ in range(2)])
    assert again == 9


async def test_what_an_actor_says_of_its_input_is_not_tried_again(autojump_clock):
    failure, again = await ended(Scripted(5, BAD_INPUT, "ConfigError: there is no such GPU"))
    assert again == 0 and failure.code == BAD_INPUT


@pytest.mark.parametrize("kind", [ConfigError, ModelError, PlanMismatch, TaskError])
def test_such_an_error_is_found_in_whatever_group_it_ends_an_actor(kind: type[Exception]) -> None:
    error = kind("no")
    assert input_error(error) is error
    group = ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [error])])
    assert input_error(group) is error
    assert input_error(ExceptionGroup("", [ValueError()])) is None
