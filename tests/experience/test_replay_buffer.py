"""The replay buffer: as it was sampled, once, and not too long."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import NoVerdict, Scored, Span, Verdict


def taken(number: int, verdicts: list[Verdict], *, step: int | None = 5, version: int = 3) -> Group:
    """A group that `step` took: two tokens a member, of `version` and the next."""
    group = Group(
        number,
        "train",
        0,
        b"\7\0\0\0",
        None,
        tuple(Rollout(10 * number + i, number, 4) for i in range(len(verdicts))),
    )
    for member, verdict in zip(group.members, verdicts, strict=True):
        member.extend(version, 0, member.id.to_bytes(4, "little"), b"\1\2\3\4")
        member.extend(version + 1, 1, b"\5\0\0\0", b"\5\6\7\10")
        member.verdict, member.status = verdict, RolloutStatus.TAKEN
        member.step = step if isinstance(verdict, Scored) else None
    return group


def test_it_comes_back_with_its_versions_and_log_probabilities_when_its_tokens_were_released() -> (
    None
):
    replay_buffer, group = (
        ReplayBuffer(),
        taken(1, [Scored(1.0, [0.5, 0.5]), NoVerdict("timeout"), Scored(0.0)]),
    )
    replay_buffer.keep(group, until=7)
    for member in group.members:
        member.release()
    assert replay_buffer.tokens == 4
    replay_buffer = msgspec.msgpack.decode(msgspec.msgpack.encode(replay_buffer), type=ReplayBuffer)
    [kept] = replay_buffer.replay(6, [1])
    assert (kept.group, kept.prompt, kept.rewards, kept.oldest, kept.tokens) == (
        1,
        b"\7\0\0\0",
        (1.0, 0.0),
        3,
        4,
    )
    assert [member.rollout for member in kept.members] == [10, 12]
    assert kept.members[0].parts == [0.5, 0.5]
    assert [bytes(member.ids) for member in kept.members] == [
        b"\12\0\0\0\5\0\0\0",
        b"\14\0\0\0\5\0\0\0",
    ]
    assert all(member.behaviour == b"\1\2\3\4\5\6\7\10" for member in kept.members)
    assert all(member.spans == [Span(3, 0, 1), Span(4, 1, 2)] for member in kept.members)


def test_once_and_until_its_last_step() -> None:
    replay_buffer = ReplayBuffer()
    for number in (1, 2, 3):
        replay_buffer.keep(taken(number, [Scored(1.0)]), until=number + 5)
    with pytest.raises(ImpossibleEvent, match="group 1 is already kept"):
        replay_buffer.keep(taken(1, [Scored(1.0)]), until=9)
    with pytest.raises(ImpossibleEvent, match="until step 6, and this is step 7"):
        replay_buffer.replay(7, [3, 1])
    with pytest.raises(ImpossibleEvent, match="group 3 is not kept"):
        replay_buffer.replay(7, [3, 3])
    assert list(replay_buffer.kept) == [1, 2, 3], "what is refused changes nothing"
    assert [kept.group for kept in replay_buffer.replay(7, [3, 2])] == [3, 2]
    with pytest.raises(ImpossibleEvent, match="group 3 is not kept"):
        replay_buffer.replay(7, [3])
    replay_buffer.publish(6)
    assert list(replay_buffer.kept) == [1]
    replay_buffer.publish(7)
    assert not replay_buffer.kept and replay_buffer.tokens == 0


@pytest.mark.parametrize("fate", [RolloutStatus.TRAINED, RolloutStatus.DISCARDED])
def test_what_was_trained_in_part_is_not_kept(fate: RolloutStatus) -> None:
    """Nor is what was kept, trained and replayed, while a sibling is still being sampled: each is
    replayed once."""
    replay_buffer, group = (
        ReplayBuffer(),
        taken(1, [Scored(1.0), Scored(0.0), NoVerdict("timeout")]),
    )
    group.members[0].status = fate
    group.members[0].release()
    with pytest.raises(ImpossibleEvent, match="group 1 was trained before it was kept"):
        replay_buffer.keep(group, until=7)
    assert not replay_buffer.kept


def test_what_was_not_trained_is_not_trained_again() -> None:
    for group in (taken(1, [Scored(1.0)], step=None), taken(1, [NoVerdict("timeout")])):
        with pytest.raises(ImpossibleEvent, match="nothing to replay"):
            ReplayBuffer().keep(group, until=9)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30))
def test_it_holds_no_more_than_the_steps_that_may_still_train_it(
    kept: list[tuple[int, int]],
) -> None:
    """Each step keeps some groups, of some age, for a lag of 4 at most."""
    replay_buffer, number = ReplayBuffer(), 0
    for step, (groups, age) in enumerate(kept):
        for _ in range(groups):
            replay_buffer.keep(
                taken(number, [Scored(1.0)], step=step, version=max(0, step - age)),
                until=max(0, step - age) + 4,
            )
            number += 1
        replay_buffer.publish(step + 1)
        assert all(held.oldest + 4 >= step + 1 for held in replay_buffer.kept.values())
        assert len(replay_buffer.kept) <= 3 * 4
