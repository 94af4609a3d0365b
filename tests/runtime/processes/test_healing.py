"""Ends of a run's life: those which another life follows, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.errors import DISK_NOT_READY
from asyncrl.messages import Exited, RunFinished
from asyncrl.runtime.processes.healing import Healing, healed, lost_head
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd
from asyncrl.runtime.processes.supervisor import ActorFailed

KILLED = SupervisedEnd(None, ActorFailed("coordinator-0", -9, ""))
STALLED = SupervisedEnd(RunFinished(False, "no token and no step for 300 s", "stalled"))
RAISED = SupervisedEnd(RunFinished(False, "", "lost"), ActorFailed("trainer-1", 1, "ValueError"))


@pytest.mark.parametrize(
    ("end", "lost"),
    [
        (KILLED, Exited("coordinator", 0, -9, True)),
        (SupervisedEnd(None, ActorFailed("coordinator-0", 0, "silent")), ("coordinator", 0, -9)),
        (RAISED, ("trainer", 1, 1)),
        (
            SupervisedEnd(RunFinished(False, "it is at one step for 900 s", "stalled")),
            ("trainer", 0, 0),
        ),
        # The trainer's end was seen before the coordinator's.
        (SupervisedEnd(None, ActorFailed("trainer-0", -11, "")), ("trainer", 0, -11)),
        (
            SupervisedEnd(
                RunFinished(False, "the trainer was lost", "lost"), ActorFailed("trainer-0", 2, "")
            ),
            None,
        ),
        (
            SupervisedEnd(
                RunFinished(True, "all steps are done"), ActorFailed("trainer-0", -9, "")
            ),
            None,
        ),
        (SupervisedEnd(RunFinished(False, "nothing can be learned")), None),
        (SupervisedEnd(None, ActorFailed("reward-0", 1, "")), None),
        (SupervisedEnd(None, ActorFailed("the preparation", 1, "")), None),
        (SupervisedEnd(None), None),  # it was ended from outside
        # A disk took nothing: it has said so, or nothing could be said any more.
        (SupervisedEnd(RunFinished(False, "no space: make room, and resume the run")), None),
        (SupervisedEnd(None, ActorFailed("coordinator-0", DISK_NOT_READY, "")), None),
        (
            SupervisedEnd(
                RunFinished(False, "the trainer was lost", "lost"),
                unrestarted=(Exited("trainer", 0, DISK_NOT_READY, False),),
            ),
            None,
        ),
        # The first of those that ended is at fault, and the supervisor has put them in order.
        (
            SupervisedEnd(
                None,
                ActorFailed("coordinator-0", 1, "RuntimeError"),
                (Exited("coordinator", 0, 1, False), Exited("trainer", 0, 1, False)),
            ),
            ("coordinator", 0, 1),
        ),
    ],
)
def test_whose_loss_is_healed(
    end: SupervisedEnd, lost: Exited | tuple[str, int, int] | None
) -> None:
    found = lost_head(end)
    if isinstance(lost, tuple):
        assert found is not None and (found.role, found.index, found.code) == lost
        assert found.restarting
    else:
        assert found == lost


def test_a_stall_is_told_with_its_cause_and_blames_no_trainer() -> None:
    for end, words in ((STALLED, "no token and no step"), (KILLED, "coordinator-0 was lost")):
        lost = lost_head(end)
        assert lost is not None
        said = healed(end, lost)
        assert words in said and "continues from its last checkpoint" in said
        assert "trainer" not in said and said.endswith(".") and not said.endswith("..")


def lives(heals: int, steps: list[int], end: SupervisedEnd = KILLED) -> list[bool]:
    """True for each life, which came to this step, that another one follows."""
    healing = Healing(heals)
    healing.stepped(0)
    found = []
    for step in steps:
        healing.stepped(step)
        found.append(healing.again(end))
    assert len(healing.lost) == sum(found)
    return found


def test_lives_in_vain_are_counted_in_a_row() -> None:
    assert lives(1, [5, 9, 9, 9]) == [True, True, True, False]
    assert lives(1, [5, 5, 6, 6, 7]) == [True] * 5
    assert lives(0, [5, 9]) == [False, False]
    # Steps that are taken again are no new ones.
    assert lives(1, [15, 11, 14, 13]) == [True, True, False, False]


def test_what_fails_before_its_first_step_is_at_fault_itself() -> None:
    assert lives(3, [0], RAISED) == [False]
    assert lives(3, [0], STALLED) == [False]
    assert lives(3, [0, 0, 0, 0], KILLED) == [True, True, True, False]
    assert lives(1, [2, 2, 2], STALLED) == [True, True, False]
    assert lives(3, [2, 2, 2, 2, 2], RAISED) == [True, True, True, True, False]


def failed(words: str, code: int = 1) -> SupervisedEnd:
    return SupervisedEnd(RunFinished(False, "", "lost"), ActorFailed("trainer-0", code, words))


def test_a_life_that_ends_by_the_same_error_as_the_one_before_is_the_last() -> None:
    def ends(*given: tuple[int, SupervisedEnd]) -> list[bool]:
        healing = Healing(3)
        healing.stepped(0)
        found = []
        for step, end in given:
            healing.stepped(step)
            found.append(healing.again(end))
        return found

    shape, other = failed("ValueError: shape 3"), failed("ValueError: other")
    assert ends((2, shape), (2, failed("ValueError: shape 4"))) == [True, False]
    assert ends((2, shape), (1, shape)) == [True, False], "steps made again are no new ones"
    assert ends((2, shape), (3, shape), (4, shape)) == [True] * 3
    assert ends((2, shape), (2, other), (2, shape)) == [True] * 3
    assert ends((2, failed("OSError: x")), (2, failed("OSError: x"))) == [True] * 2
    assert ends((2, failed("ValueError: x", -9)), (2, failed("ValueError: x", -9))) == [True] * 2
    assert ends((2, shape), (2, failed("x", -9)), (2, shape)) == [True] * 3


@given(st.integers(1, 4), st.lists(st.integers(0, 6), max_size=12))
def test_a_run_ends_exactly_when_more_lives_than_allowed_brought_nothing(
    heals: int, steps: list[int]
) -> None:
    found = lives(heals, steps)
    for number, again in enumerate(found):
        if all(found[:number]):  # nobody looks at what comes behind an end
            vain = 0
            for k in reversed(range(number + 1)):
                if steps[k] > max([0, *steps[:k]]):
                    break
                vain += 1
            assert again == (vain <= heals)


def lost_rank(index: int, words: str = "", code: int = -9) -> SupervisedEnd:
    return SupervisedEnd(
        RunFinished(False, "", "lost"),
        unrestarted=(
            Exited("trainer", index, code, False, words),
            Exited("trainer", 1 - min(index, 1), -9, False),
        ),
    )


CUDA = "RuntimeError: bad rank"
LATE = "x.WaitExpired: trainer waited 9 s for weights of rank 2 on node-7 (it computes), which is …"


@pytest.mark.parametrize(
    ("ends", "faulty"),
    [
        # three lives in a row, whatever they made
        ([(3, lost_rank(2)), (5, lost_rank(2)), (5, lost_rank(2))], [None, None, 2]),
        ([(3, lost_rank(2)), (5, lost_rank(1)), (7, lost_rank(2))], [None, None, None]),
        ([(3, lost_rank(2)), (4, KILLED), (5, lost_rank(2)), (6, lost_rank(2))], [None] * 4),
        # the same error twice, with no step in between
        ([(3, lost_rank(1, CUDA, 1)), (3, lost_rank(1, CUDA, 1))], [None, 1]),
        # all have it, so no rank is at fault, and the run ends
        ([(3, lost_rank(1, CUDA, 1)), (3, lost_rank(0, CUDA, 1))], [None, "ends"]),
        ([(3, lost_rank(1, CUDA, 1))] * 2 + [(3, lost_rank(0, CUDA, 1))], [None, 1, "ends"]),
        # rank 0 says which one hangs
        ([(n, lost_rank(0, LATE, 1)) for n in (2, 3, 4)], [None, None, 2]),
    ],
)
def test_a_rank_that_fails_again_and_again_is_left_out(
    ends: list[tuple[int, SupervisedEnd]], faulty: list[int | str | None]
) -> None:
    for leaves_out in (True, False):
        healing, found = Healing(3, leaves_out=leaves_out), list[int | str | None]()
        healing.stepped(0)
        for step, end in ends:
            healing.stepped(step)
            found.append(healing.faulty if healing.again(end) else "ends")
        assert found == faulty or not leaves_out
        assert not {1, 2} & set(found) or leaves_out


def test_a_rank_whose_machine_is_lost_is_not_at_fault() -> None:
    healing = Healing(3, leaves_out=True)
    for step in (1, 2, 3, 4):
        healing.stepped(step)
        assert healing.again(lost_rank(1), displaced=True) and healing.faulty is None
