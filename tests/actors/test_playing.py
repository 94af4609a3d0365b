"""Agents play episodes: who has which, what is answered, and what a killed agent costs: nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_link import memory_links
from scripted_parts import MemoryLog
from scripted_world import configured
from trio.testing import MockClock

from asyncrl.actors.coordinator.attempts import PlayingLimits
from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.episode_placement import EpisodePlacement
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.peers import Peer, Roster
from asyncrl.actors.coordinator.playing import Playing
from asyncrl.actors.coordinator.reclaiming import Reclaiming, completed
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.experience import Experience, fold
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import (
    Ask,
    Enough,
    Finish,
    GiveFailure,
    GiveReward,
    Hello,
    KeepGame,
    Message,
    Note,
    Play,
    Played,
    Reply,
    StopPlaying,
)
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.processes.standstill import RunClock

LIMITS = PlayingLimits(max_calls=4, attempts=2, context_tokens=40)
BUDGET = 16


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


class Actor(Peer):
    """An actor that keeps what it is told."""

    def __init__(self, role: str = "agents", index: int = 0, incarnation: int = 0) -> None:
        super().__init__(Hello(role, index, incarnation, 1), memory_links()[0])
        self.told: list[tuple[Message, tuple[object, ...]]] = []

    def send(self, message: Message, *buffers: object) -> None:
        self.told.append((message, buffers))

    def take(self, kind: type[Message]) -> list[Message]:
        """Messages of this kind that it was told, once."""
        found = [message for message, _ in self.told if isinstance(message, kind)]
        self.told = [item for item in self.told if not isinstance(item[0], kind)]
        return found


class Parts:
    """A coordinator's parts around one engine and agents actors."""

    def __init__(
        self,
        limits: PlayingLimits = LIMITS,
        *,
        concurrency: int = 2,
        slots: int = 8,
        **rollout: object,
    ) -> None:
        self.log = MemoryLog()
        self.store, self.roster = EventStore(Experience(), self.log), Roster(lambda: None)
        self.pool, self.leases = EnginePool(), LeaseTable(50.0)
        self.reclaiming = Reclaiming(
            self.store, self.pool, self.leases, configured(rollout=rollout)
        )
        self.engine = Actor("rollout")
        self.pool.add(EngineHandle(self.engine, slots))
        clock = RunClock()
        placement = EpisodePlacement(self.roster, self.pool, clock, concurrency, math.inf)
        self.playing = Playing(
            self.store, placement, self.reclaiming, limits, lambda group: 1.0, clock
        )

    @property
    def experience(self) -> Experience:
        return self.store.experience

    def agents(self, index: int = 0) -> Actor:
        self.roster.add(actor := Actor("agents", index))
        return actor

    def lose(self, actor: Actor) -> None:
        self.roster.remove(actor)
        self.playing.lose(actor)

    def replace(self, actor: Actor) -> Actor:
        """Lose an agents actor. Another one has its episodes then."""
        self.lose(actor)
        other = self.agents(1)
        self.pump()
        return other

    def admit(self, count: int = 1) -> None:
        x = self.experience
        self.store.record(
            e.Admitted(
                *(x.next_group, x.next_rollout, count, "train", x.prompts["train"], ids(7)),
                *(BUDGET, None, None, 100),
                played=True,
            )
        )

    def pump(self) -> None:
        self.playing.pump(0)
        self.playing.begin("train")
        self.playing.observe()

    def begun(self) -> tuple[Actor, int]:
        """One episode, with an agent."""
        actor = self.agents()
        self.admit()
        self.pump()
        (play,) = actor.take(Play)
        assert isinstance(play, Play)
        return actor, play.rollout

    def ask(
        self,
        actor: Actor,
        rollout: int,
        number: int,
        *context: int,
        budget: int = 4,
        stops: Sequence[str] = (),
    ) -> None:
        episode = self.experience.rollouts[rollout].episode
        assert episode is not None
        role = f"role-{episode.attempt}"
        message = Ask(rollout, episode.attempt, number, budget, [*stops], role=role)
        self.playing.on_ask(actor, message, ids(*context))

    def lease(self) -> list[AgentCall]:
        """Lease all that waits."""
        handle, found = self.pool.get("rollout-0"), []
        assert handle is not None
        for call in self.experience.to_lease("train", 99):
            assert isinstance(call, AgentCall)
            self.store.record(e.Leased(call.id, handle.name, call.attempt + 1))
            self.leases.give(call.id, call.attempt, call.tokens, trio.current_time())
            self.pool.hold(handle, call.id, "train")
            found.append(call)
        return found

    def sample(self, call: AgentCall, count: int) -> None:
        """Sample so many tokens: each follows from the call's key and its place."""
        places = range(call.tokens, min(call.tokens + count, call.max_new_tokens))
        tokens = [drawn(call.key, place) for place in places]
        if tokens:
            behaviour = np.full(len(tokens), -0.5, np.float32).tobytes()
            self.store.record(
                e.Extended(call.id, call.attempt, 0, call.tokens, ids(*tokens), behaviour)
            )

    def answer(self, call: AgentCall) -> None:
        self.sample(call, 99)
        self.reclaiming.release(call)
        self.store.record(completed(call, "length"))

    def rollout(self, number: int) -> Rollout:
        return self.experience.rollouts[number]

    def sequences(self, number: int) -> list[TrainingSequence]:
        rollout = self.rollout(number)
        return self.experience.groups[rollout.group].sequences(rollout)


def drawn(key: int, place: int) -> int:
    return sha256(b"%d/%d" % (key, place)).digest()[0]


def replies(actor: Actor) -> tuple[list[int], str, str]:
    """The tokens that it was given since, the last ending, and the last refusal."""
    tokens, finish, refused = [], "", ""
    for message, buffers in actor.told:
        if isinstance(message, Reply):
            tokens += np.frombuffer(bytes(buffers[0]), np.int32).tolist()
            finish, refused = message.finish or finish, message.refused or refused
    actor.take(Reply)
    return tokens, finish, refused


async def test_an_episode_of_two_turns_is_answered_as_it_comes_and_sealed_as_played() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.sample(call, 3)
    p.pump()
    first = [drawn(call.key, place) for place in range(4)]
    assert replies(actor) == (first[:3], "", "")
    p.answer(call)
    p.pump()
    assert replies(actor) == (first[3:], "length", "")
    p.ask(actor, number, 1, 1, 2, *first, 9)
    (second,) = p.lease()
    assert second.after == (call.id, 6) and second.given == ids(9), "only what is new is kept"
    p.answer(second)
    attempt = Played(number, 1, "stop")
    p.playing.on_reward(actor, GiveReward(number, 1, 0, 0.25))
    p.playing.on_reward(actor, GiveReward(number, 1, None, 1.0))
    p.playing.on_played(actor, attempt)
    (sequence,) = p.sequences(number)
    assert list(sequence.mask) == [0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert p.rollout(number).agent_reward == 1.0
    assert [turn.reward for turn in p.rollout(number).turns] == [0.25, None]
    assert [turn.role for turn in p.rollout(number).turns] == ["role-1", "role-1"]
    assert fold(p.log.events) == p.experience
    p.playing.on_played(actor, attempt)  # it is over: nothing more is heard of it
    assert p.rollout(number).status is RolloutStatus.SEALED


async def test_another_attempt_is_answered_with_what_there_is_and_samples_nothing_again() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.answer(call)
    p.ask(actor, number, 1, 3)
    (second,) = p.lease()
    p.sample(second, 2)
    p.playing.on_note(actor, Note(number, 1, "tool", b"42"))
    p.lose(actor)
    assert second.status is RolloutStatus.UNCLAIMED and not p.lease(), "nobody asks for it"
    other = p.agents(1)
    p.pump()
    (play,) = other.take(Play)
    assert isinstance(play, Play) and (play.attempt, play.notes) == (2, {"tool": b"42"})
    p.ask(other, number, 0, 1, 2)
    p.pump()
    assert replies(other) == ([drawn(call.key, n) for n in range(4)], "length", "")
    p.ask(other, number, 1, 3)
    p.pump()
    assert replies(other)[0] == [drawn(second.key, n) for n in range(2)]
    assert p.lease() == [second], "it goes on from its last token"
    p.answer(second)
    p.pump()
    assert replies(other) == ([drawn(second.key, n) for n in (2, 3)], "length", "")
    p.playing.on_played(other, Played(number, 2, "stop"))
    tokens = p.experience.ledger.tokens
    assert (tokens.total, tokens.live, tokens.discarded, p.playing.diverged) == (8, 8, {}, 0)


async def test_what_the_last_attempt_did_not_ask_is_orphaned_and_the_attempt_counted() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.answer(call)
    other = p.replace(actor)
    for place, context in enumerate([5, 6]):
        p.ask(other, number, place, context, budget=2)
    assert p.playing.diverged == 1
    for new in p.lease():
        p.answer(new)
    p.playing.on_played(other, Played(number, 2, "stop"))
    assert p.experience.ledger.tokens.discarded == {"orphaned": 4}
    assert [turn.tokens for turn in p.rollout(number).turns] == [2, 2]


@pytest.mark.parametrize(
    ("context", "budget", "stops"), [([1, 3], 4, ["!"]), ([1, 2], 3, ["!"]), ([1, 2], 4, ["?"])]
)
async def test_an_attempt_that_asks_for_something_else_gets_no_earlier_answer(
    context: list[int], budget: int, stops: list[str]
) -> None:
    """All that changes an answer is in the key of a call."""
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2, budget=4, stops=["!"])
    (call,) = p.lease()
    p.answer(call)
    other = p.replace(actor)
    p.ask(other, number, 0, *context, budget=budget, stops=stops)
    (new,) = p.lease()
    assert new.key != call.key and p.playing.diverged == 1
    p.answer(new)
    third = p.replace(other)
    p.ask(third, number, 0, 1, 2, budget=4, stops=["!"])
    assert not p.lease() and len(p.rollout(number).episode.calls) == 2, "the first is known still"


async def test_equal_calls_of_an_attempt_have_draws_of_their_own_and_are_known_in_their_order() -> (
    None
):
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    p.ask(actor, number, 1, 1, 2)
    first, second = p.lease()
    assert first.key != second.key
    other = p.replace(actor)
    p.ask(other, number, 0, 1, 2)
    assert p.lease() == [first]
    assert (first.role, second.role) == ("role-2", "role-1"), "of the attempt that made it last"
    p.ask(other, number, 1, 1, 2)
    assert p.lease() == [second]


async def test_an_agent_that_has_enough_is_trained_on_what_it_saw() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.sample(call, 3)
    p.playing.on_enough(actor, Enough(number, 1, 0, 2))
    assert not p.lease() and p.experience.ledger.tokens.discarded == {"unused": 1}
    p.playing.on_enough(actor, Enough(number, 1, 0, 1))  # it has ended
    p.playing.on_played(actor, Played(number, 1, "stop"))
    assert p.rollout(number).tokens == 2


async def test_a_later_attempt_may_say_at_once_that_it_has_enough_of_what_was_cut_before() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.sample(call, 3)
    p.playing.on_enough(actor, Enough(number, 1, 0, 2))
    other = p.replace(actor)
    p.ask(other, number, 0, 1, 2)
    p.playing.on_enough(other, Enough(number, 2, 0, 0))
    p.playing.on_played(other, Played(number, 2, "stop"))
    assert p.rollout(number).tokens == 2


async def test_an_actor_may_be_lost_before_it_hears_that_a_rollout_is_over() -> None:
    p = Parts()
    actor, _ = p.begun()
    p.store.record(e.Dropped(0, "evaluation"))
    p.lose(actor)
    p.pump()
    assert not actor.take(StopPlaying) and not p.playing.held(actor.name)


async def test_calls_at_one_time_sample_no_more_than_the_episode_may_in_all() -> None:
    p = Parts()
    actor, number = p.begun()
    for place in range(3):
        p.ask(actor, number, place, 1, 2, place, budget=BUDGET)
    one, two, three = p.lease()
    p.sample(one, 9)
    p.pump()
    p.sample(two, 9)
    p.pump()
    assert (one.tokens, two.tokens, three.tokens) == (9, 7, 0), "no more than 16 in all"
    assert replies(actor)[1] == "length" and not p.lease()
    assert p.experience.ledger.tokens.discarded == {"unused": 2}
    p.playing.on_played(actor, Played(number, 1, "stop"))
    assert p.rollout(number).tokens == BUDGET


async def test_a_call_that_is_given_up_leaves_what_it_had_sampled_to_the_others() -> None:
    p = Parts(max_resumes=1)
    actor, number = p.begun()
    for place in range(2):
        p.ask(actor, number, place, 1, 2, place, budget=BUDGET)
    one, two = p.lease()
    p.reclaiming.take_back(one, "interrupted")
    p.lease()
    p.sample(one, 9)
    p.sample(two, 7)
    p.pump()
    assert one.status is RolloutStatus.BURIED, "it was taken back twice, and may be once"
    assert two.status is RolloutStatus.LEASED, "7 of 16 tokens are sampled"
    p.answer(two)
    p.pump()
    assert len(replies(actor)[0]) == two.tokens == BUDGET


async def test_bounds_are_refused_by_name_and_the_agent_goes_on() -> None:
    p = Parts()
    actor, number = p.begun()
    for place in range(LIMITS.max_calls):
        p.ask(actor, number, place, place, budget=1)
    p.ask(actor, number, LIMITS.max_calls, 9)
    assert "agent.max_calls" in replies(actor)[2]
    actor, number = (p := Parts()).begun()
    p.ask(actor, number, 0, *range(LIMITS.context_tokens))
    assert "engine.context_tokens" in replies(actor)[2]
    p.ask(actor, number, 1, *range(LIMITS.context_tokens - 2))
    assert p.lease()[0].max_new_tokens == 2, "what the context has room for"


@pytest.mark.parametrize(
    ("number", "budget", "context"), [(1, 4, (1,)), (0, 0, (1,)), (0, 4, ())], ids=str
)
async def test_an_ask_that_no_gateway_makes_ends_the_link(
    number: int, budget: int, context: tuple[int, ...]
) -> None:
    p = Parts()
    actor, rollout = p.begun()
    with pytest.raises(LinkError, match="agents-0 asks"):
        p.ask(actor, rollout, number, *context, budget=budget)
    with pytest.raises(LinkError, match="the reward nan"):
        p.playing.on_reward(actor, GiveReward(rollout, 1, None, float("nan")))
    with pytest.raises(LinkError, match="for call 3"):
        p.playing.on_reward(actor, GiveReward(rollout, 1, 3, 1.0))
    for number, tool in ((3, "search"), (-1, "search")):
        with pytest.raises(LinkError, match=f"call {number} of rollout"):
            p.playing.on_failure(actor, GiveFailure(rollout, 1, number, tool))


async def test_a_failed_call_is_known_when_its_episode_is_sealed_and_said_once() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.answer(call)
    with pytest.raises(LinkError, match="has no name"):
        p.playing.on_failure(actor, GiveFailure(number, 1, 0, ""))
    p.playing.on_failure(actor, GiveFailure(number, 1, 0, "search"))
    with pytest.raises(LinkError, match="has failed before"):
        p.playing.on_failure(actor, GiveFailure(number, 1, 0, "search"))
    p.playing.on_played(actor, Played(number, 1, "stop"))
    assert [turn.failed for turn in p.rollout(number).turns] == ["search"]


async def test_a_reward_of_a_call_that_was_refused_or_given_up_costs_nobody_anything() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.reclaiming.give_up(call, "nan")
    p.ask(actor, number, 1, *range(LIMITS.context_tokens))  # refused
    for place in range(2):  # on their way before the agent hears of it
        p.playing.on_reward(actor, GiveReward(number, 1, place, 1.0))
        p.playing.on_failure(actor, GiveFailure(number, 1, place, "search"))
    p.playing.on_reward(actor, GiveReward(number, 1, None, 0.5))
    p.playing.on_played(actor, Played(number, 1, "stop"))
    assert (p.rollout(number).agent_reward, p.rollout(number).turns) == (0.5, [])


async def test_an_agent_that_fails_too_often_is_a_tombstone_and_no_reward_of_zero() -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    (call,) = p.lease()
    p.sample(call, 1)
    p.playing.on_played(actor, Played(number, 1, "", "raised"))
    p.pump()
    p.ask(actor, number, 0, 1, 2)
    p.playing.on_played(actor, Played(number, 2, "", "raised"))
    assert number not in p.experience.rollouts
    assert p.experience.ledger.tokens.discarded == {"raised": 1}
    (group,) = p.experience.groups.values()
    assert [m.status for m in group.members] == [RolloutStatus.BURIED] and not group.rewards


@pytest.mark.parametrize(
    ("rewarded", "finish", "failed"),
    [((0, 1), "stop", ""), ((1,), "stop", "no_reward"), ((1,), "length", "")],
)
async def test_an_attempt_that_forks_has_failed_without_a_reward_at_each_end(
    rewarded: tuple[int, ...], finish: Finish, failed: str
) -> None:
    p = Parts(limits=msgspec.structs.replace(LIMITS, ends_rewarded=True))
    actor, number = p.begun()
    for call in range(2):
        p.ask(actor, number, call, 1, 2)
    for call in p.lease():
        p.answer(call)
    for call in rewarded:
        p.playing.on_reward(actor, GiveReward(number, 1, call, 0.0))
    p.playing.on_reward(actor, GiveReward(number, 1, None, 1.0))
    p.playing.on_played(actor, Played(number, 1, finish))
    ends = [event for event in p.log.events if isinstance(event, (e.Left, e.Sealed))]
    (end,) = ends
    assert (end.reason if isinstance(end, e.Left) else "") == failed
    assert isinstance(end, e.Sealed) or end.failed
    if isinstance(end, e.Sealed):
        assert p.rollout(number).turns[1].above == ()


async def test_an_agent_is_told_that_its_rollout_is_over() -> None:
    p = Parts()
    actor, number = p.begun()
    p.store.record(e.Dropped(0, "stale"))
    p.ask_late = Ask(number, 1, 0, 4)
    p.playing.on_ask(actor, p.ask_late, ids(1))  # on its way already
    p.pump()
    assert actor.take(StopPlaying) == [StopPlaying(number, 1)]


@pytest.mark.parametrize("promised", [False, True])
async def test_a_game_that_is_about_to_end_elsewhere_is_not_given_up_by_a_later_attempt(
    promised: bool,
) -> None:
    p = Parts()
    actor, number = p.begun()
    p.ask(actor, number, 0, 1, 2)
    p.sample(*p.lease(), 3)
    if promised:
        assert p.playing.promise(KeepGame(1, number, 1)) == "live"
    p.replace(actor)  # its host's agents were killed, or this run was: another attempt plays it
    assert p.rollout(number).status is RolloutStatus.BEGUN
    p.playing.pump(9)  # by now no step can train its tokens
    assert (number in p.experience.rollouts) == promised


async def test_actors_are_given_what_they_have_room_for_the_emptiest_first() -> None:
    p = Parts()
    actors = [p.agents(0), p.agents(1)]
    p.admit(5)
    p.pump()
    assert [len(actor.take(Play)) for actor in actors] == [2, 2]
    assert [p.playing.held(actor.name) for actor in actors] == [2, 2]
    assert len(p.experience.to_begin("train", 9)) == 1


async def test_before_anything_is_known_as_many_begin_as_there_are_slots(
    autojump_clock: MockClock,
) -> None:
    p = Parts(concurrency=99, slots=3)
    actor = p.agents()
    p.admit(99)
    p.pump()
    await trio.sleep(50)  # nobody has been answered: that agents have the ball says nothing yet
    p.pump()
    assert len(actor.take(Play)) == 3


@pytest.mark.parametrize(("concurrency", "live"), [(99, 10), (5, 5)])
async def test_more_begin_as_agents_take_longer_than_decoding_as_far_as_there_is_room(
    autojump_clock: MockClock, concurrency: int, live: int
) -> None:
    p = Parts(concurrency=concurrency, slots=2)
    actor = p.agents()
    p.admit(99)
    p.pump()
    for play in actor.take(Play):
        assert isinstance(play, Play)
        p.ask(actor, play.rollout, 0, 1)
    calls = p.lease()
    p.pump()
    await trio.sleep(10)
    for call in calls:
        p.answer(call)
    p.pump()
    assert p.playing.counts.live == 3, "of agents that take no time there are 2 × 1.25"
    await trio.sleep(20)
    p.pump()
    p.pump()
    # 3 × 20 s with agents, after 2 × 10 s in slots: 2 × (1 + 3) × 1.25
    assert (p.playing.counts.live, p.playing.counts.most) == (live, 10)


class Killed:
    """A deterministic agent, killed at random: its next context is all before, and a tool's word
    on the answer."""

    def __init__(self, seed: int | None) -> None:
        self.p, self.draw = Parts(), random.Random(seed or 0)
        self.kills = 0 if seed is None else 4
        self.actor, self.number = self.p.begun()

    def killed(self) -> bool:
        """Kill the agents actor, or an engine's lease, now and then."""
        if not self.kills or self.draw.random() < 0.5:
            return False
        self.kills -= 1
        self.p.lose(self.actor)
        self.actor = self.p.agents(9 - self.kills)
        self.p.pump()
        self.actor.take(Play)
        return True

    def play(self) -> list[TrainingSequence]:
        while not self.attempt():
            pass
        episode = self.p.rollout(self.number).episode
        assert episode is not None
        self.p.playing.on_played(self.actor, Played(self.number, episode.attempt, "stop"))
        return self.p.sequences(self.number)

    def attempt(self) -> bool:
        p, context = self.p, [1, 2]
        for number in range(3):
            p.ask(self.actor, self.number, number, *context)
            answer: list[int] = []
            while True:
                if self.killed():
                    return False
                p.lease()
                p.pump()
                tokens, finish, _ = replies(self.actor)
                answer += tokens
                if finish:
                    break
                for call in p.experience.calls.values():
                    assert isinstance(call, AgentCall)
                    if call.status is RolloutStatus.LEASED:
                        p.sample(call, self.draw.randint(0, 3))
                        if not call.remaining:
                            p.answer(call)
                            break
            context += [*answer, sum(answer) % 97]
        return True


@given(st.integers(1, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_killed_agents_episode_is_what_it_would_have_been_and_no_token_is_sampled_twice(
    seed: int,
) -> None:
    async def compare() -> None:
        whole, killed = Killed(None), Killed(seed)
        assert killed.play() == whole.play()
        assert killed.p.experience.ledger.tokens == whole.p.experience.ledger.tokens
        assert killed.p.playing.diverged == 0
        assert fold(killed.p.log.events) == killed.p.experience

    trio.run(compare)
