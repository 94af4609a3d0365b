"""Prompts and turns as advantages see them: fixed at admission, the same after a replay of the
journal, and one value for a rollout or one for each turn."""

from __future__ import annotations

import struct

import msgspec
import pytest

from asyncrl.agents.agent_rewards import as_key
from asyncrl.agents.gateway.api_requests import turn_reward
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.algorithms.advantage_tensors import token_values
from asyncrl.algorithms.advantages import Advantage, RewardedSamples
from asyncrl.algorithms.advantages.advantage import Value
from asyncrl.experience import events as e
from asyncrl.experience.episode import AgentCall, Episode, gathered, turn_keys
from asyncrl.experience.experience import Experience
from asyncrl.experience.training_message import training_message
from asyncrl.messages import PromptFacts, Sample, Scored, Span

PROMPT = bytes(8)


def admitted(experience: Experience, cursor: int) -> int:
    group = experience.next_group
    experience.apply(
        e.Admitted(group, experience.next_rollout, 2, "train", 7, PROMPT, 4, cursor=cursor)
    )
    return group


def solve(experience: Experience, group: int, rewards: list[float]) -> None:
    for member, reward in zip(experience.groups[group].members, rewards, strict=True):
        experience.apply(e.Leased(member.id, "a", 1))
        experience.apply(e.Extended(member.id, 1, 0, 0, bytes(4), bytes(4)))
        experience.apply(e.Sealed(member.id, 1, "stop"))
        experience.apply(e.Judged(member.id, Scored(reward)))


def test_a_record_is_that_of_the_admission_and_not_of_later_visits() -> None:
    experience = Experience()
    experience.apply(e.Published(0))
    first = admitted(experience, 1)
    solve(experience, first, [1.0, 0.0])
    second = admitted(experience, 2)
    known = PromptFacts(7, "", (0.5, 2.0), (2.0, 2.0), 1)
    assert experience.groups[second].facts.prompt == known
    third = admitted(experience, 3)
    solve(experience, third, [1.0, 1.0])
    assert experience.groups[second].facts.prompt == known, "a later visit changed it"
    assert experience.history.posterior(7) != (2.0, 2.0)
    restored = msgspec.msgpack.decode(
        msgspec.msgpack.encode(experience.groups[second]), type=type(experience.groups[second])
    )
    assert restored.facts.prompt == known, "a snapshot has it"


class BySolveRate(Advantage):
    """One value a rollout, from the record; one a turn where turns have keys."""

    def of(self, batch: RewardedSamples) -> list[Value]:
        values = list[Value]()
        for sample in batch.samples:
            assert sample.member is not None
            rate = batch.prompts[sample.group].solve_rate
            keys = batch.keys.get(sample.group)
            own = keys[sample.member] if keys else ()
            values.append([rate * (key == "page") for key in own] if own else rate)
        return values


def test_keys_and_records_reach_an_advantage_in_the_message() -> None:
    one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0, turns=[(1, 1), (0, 2)])
    other = Sample(9, 5, 1, 2, 1.0, [Span(0, 1, 3)], member=0)
    given = RewardedSamples(
        [one, other],
        {4: [1.0], 5: [1.0]},
        {},
        keys={4: [["page", ""]]},
        prompts={4: PromptFacts(posterior=(1.0, 3.0)), 5: PromptFacts(posterior=(3.0, 1.0))},
    )
    found = token_values(BySolveRate(), given)
    assert found.value.tolist() == [0.0, 0.25, 0.25, 0.75, 0.75]
    assert found.trainable.tolist() == [True, True]


def test_the_message_has_the_records_of_its_groups() -> None:
    experience = Experience()
    experience.apply(e.Published(0))
    group = admitted(experience, 1)
    solve(experience, group, [1.0, 0.0])
    facts = {group: experience.groups[group].facts}
    packed = training_message(0, 0, [], facts, 1, mask_truncated=False, whole_step=False)
    assert packed.message.prompts == {group: PromptFacts(7)}
    assert packed.message.keys == {}


class Short(BySolveRate):
    def of(self, batch: RewardedSamples) -> list[Value]:
        return []


def test_too_few_values_are_refused() -> None:
    one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0)
    with pytest.raises(ValueError, match="gives 0 advantages to 1 samples"):
        token_values(Short(), RewardedSamples([one], {4: [1.0]}, {}))


def test_a_key_of_a_turn_is_journalled_and_reaches_the_facts() -> None:
    episode = Episode(used=[3, 4, 5], keys={3: "page", 5: "end"}, rewards={3: 0.5})
    for call in episode.used:
        made = AgentCall(call, 0, 4, rollout=0, after=None, given=bytes(4), key=call, temperature=1)
        made.extend(0, 0, struct.pack("<i", call), bytes(4))
        episode.calls.append(made)
    turns = gathered(episode)[3]
    assert turn_keys(turns) == ["page", "", "end"]
    event = e.Rewarded(0, 1, 3, 0.5, "page")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=e.Rewarded) == event


@pytest.mark.parametrize(
    ("key", "said"), [(7, "of int"), (None, "of NoneType"), ("a" * 1025, "of 1025 characters")]
)
def test_a_key_that_is_no_text_is_refused(key: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"the key of a turn is a text .* {said}; give a digest"):
        as_key(key)
    body = msgspec.json.encode({"reward": 0.5, "turn": 0, "key": key})
    with pytest.raises(GatewayError) as caught:
        turn_reward(body)
    assert caught.value.status == 400 and "key" in str(caught.value)
