"""The rewards of an episode's turns come to the trainer, each with the tokens of its turn, and when
a group is trained once more as the first time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
import trio.testing
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.sequences import of_replayed, of_rollout
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.episode import Strand, Turn
from asyncrl.experience.group import Group
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.replay_buffer import ReplayBuffer, ReplayGroup
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import ERROR_TOKEN, Scored, Span
from asyncrl.staleness.loss_mask import loss_mask


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def played() -> Group:
    """A group of one episode of three turns in two strands, as a step has taken it, and one of a
    single turn."""
    group = Group.of(e.Admitted(4, 0, 2, "train", 0, ids(50), 8), 0, (0.0, 0.0), 0)
    for member, tokens in zip(group.members, (6, 2), strict=True):
        member.ids, member.behaviour = bytearray(ids(*range(tokens))), bytearray(4 * tokens)
        member.spans, member.verdict = [Span(0, 0, tokens)], Scored(1.0)
        member.status, member.step = RolloutStatus.TAKEN, 0
    episode, other = group.members
    episode.turns = [Turn(2, "stop", 0.5), Turn(1, "stop"), Turn(3, "length", -1.0, above=(0,))]
    episode.strands = [
        Strand(None, 0, [ids(50, 51), 0, ids(70), 1]),
        Strand(0, 5, [ids(71), 2]),
    ]
    other.turns, other.strands = [Turn(2, "stop", 0.25)], [Strand(None, 0, [ids(50), 0])]
    return group


def test_a_sequence_says_which_turns_its_tokens_are_of() -> None:
    group, buffer = played(), ReplayBuffer()
    buffer.keep(group, 1)
    kept = buffer.kept[4]
    assert group.facts.turns == kept.facts.turns == [[0.5, 0.0, -1.0], [0.25]]
    assert group.facts.above == kept.facts.above == [[[], [0], [0]], []]
    config = configured()
    for pieces in (of_rollout(group, group.members[0], config), of_replayed(kept, 0, config)):
        assert [piece.sample.turns for piece in pieces] == [[(0, 2), (1, 1)], [(2, 3)]]
        for piece in pieces:
            assert sum(count for _, count in piece.sample.turns) == piece.sample.sampled_tokens


@pytest.mark.parametrize(
    ("tools", "due"),
    [
        ((), [(), ()]),
        (("search",), [((0, 2),), ()]),
        (("search", "run"), [((0, 2),), ((0, 3),)]),
        (("*",), [((0, 2),), ((0, 3),)]),
        (("other",), [(), ()]),
    ],
)
def test_failed_calls_of_these_tools_are_errors_the_first_time_and_once_more(
    tools: tuple[str, ...], due: list[tuple[tuple[int, int], ...]]
) -> None:
    group, buffer = played(), ReplayBuffer()
    episode = group.members[0]
    episode.turns = [
        Turn(2, "stop", 0.5, "search"),
        Turn(1, "stop"),
        Turn(3, "length", -1.0, failed="run"),
    ]
    buffer.keep(group, 1)
    config = configured(agent={"mask_failed": tools})
    for pieces in (of_rollout(group, episode, config), of_replayed(buffer.kept[4], 0, config)):
        assert [piece.sequence.errors for piece in pieces] == due
        masks = [
            loss_mask(p.sequence.spans, 0, 9, truncated=False, errors=p.sequence.errors)
            for p in pieces
        ]
        assert [mask.count(ERROR_TOKEN) for mask in masks] == [
            sum(end - start for start, end in errors) for errors in due
        ]


def give_turns(
    monkeypatch: pytest.MonkeyPatch, turns: Callable[[Sequence[float]], list[list[float]]]
) -> None:
    """Have members with these rewards be said to have earned them at such turns."""
    facts_of = Group.facts_of

    def given(group: Group, members: list[Rollout]) -> GroupFacts:
        facts = facts_of(group, members)
        return facts._replace(turns=turns(facts.rewards))

    monkeypatch.setattr(Group, "facts_of", given)
    monkeypatch.setattr(ReplayGroup, "turns", property(lambda group: turns(group.rewards)))


def each_at_another_turn(rewards: Sequence[float]) -> list[list[float]]:
    return [[float(place), 0.0] for place, _ in enumerate(rewards)]


async def test_every_micro_batch_has_the_turns_of_its_groups(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Have every rollout be of one turn, with its reward."""
    give_turns(monkeypatch, lambda rewards: [[reward] for reward in rewards])
    train = {"advantage": "rloo", "credit": "to_go", "steps": 5, "replay_groups": 1}
    world = ScriptedWorld(configured(train=train))
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.learner.batches
    trained = list[int]()
    for batch, _ in world.learner.batches:
        due = {group: [[reward] for reward in rewards] for group, rewards in batch.rewards.items()}
        assert batch.turns == due
        trained += [sample.rollout for sample in batch.samples]
    assert len(trained) > len(set(trained)), "some were trained once more"


async def test_a_run_goes_on_whose_groups_differ_in_their_turns_alone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Every reward is the same, and each rollout is said to have earned it at another turn."""
    give_turns(monkeypatch, each_at_another_turn)
    train = {"advantage": "rloo", "credit": "to_go", "steps": 12}
    rollout = {"filter": "zero_variance", "filter_patience": 4}
    world = ScriptedWorld(configured(train=train, rollout=rollout))
    world.verifiers = ScriptedVerifiers(lambda split, prompt_index, ids: Scored(1.0), 0.05)
    outcome = await world.run()
    assert outcome.ok, outcome
    dropped = [event.reason for event in world.log.events if isinstance(event, e.Dropped)]
    assert "zero_variance" not in dropped


async def test_groups_that_differ_in_their_turns_alone_are_trained_once_more(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    give_turns(monkeypatch, each_at_another_turn)
    again = {}
    for credit in ("episode", "to_go"):
        train = {"advantage": "rloo", "credit": credit, "steps": 5, "replay_groups": 1}
        world = ScriptedWorld(configured(train=train, rollout={"filter": "none"}))
        world.verifiers = ScriptedVerifiers(lambda split, prompt_index, ids: Scored(1.0), 0.05)
        assert (await world.run()).ok
        again[credit] = sum(isinstance(event, e.Replayed) for event in world.log.events)
    assert again["episode"] == 0 < again["to_go"]
