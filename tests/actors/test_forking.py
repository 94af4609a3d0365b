"""Forks of rollouts while they are generated: decided by what the journal has, and the same after a
crash; what branches share is generated, held and trained once."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.forking import Forking
from asyncrl.actors.coordinator.sequences import of_rollout
from asyncrl.algorithms.advantage_tensors import token_values
from asyncrl.algorithms.advantages import RewardedSamples, Rloo
from asyncrl.algorithms.advantages.by_root import ByRoot
from asyncrl.config import Config
from asyncrl.config.selection_names import FORKS
from asyncrl.config.strategies import StrategyError
from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import fold
from asyncrl.messages import ForkedMembers, Scored

PROMPT = struct.pack("<i", 5)


def begun(leaves: int = 2) -> EventStore:
    """A group of two rollouts that wait for more tokens, and a held-out prompt."""
    store = EventStore(fold([]), MemoryLog())
    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, 2, "train", 7, PROMPT, 12, key=40, leaves=leaves))
    store.record(e.Admitted(1, 2, 1, "evaluation", 0, PROMPT, 12, 0))
    return store


def grow(store: EventStore, rollout: int, logs: list[float], finish: str = "") -> None:
    """Sample more tokens, and take the rollout back, or seal it."""
    call = store.experience.calls[rollout]
    store.record(e.Leased(rollout, "rollout-0", call.attempt + 1))
    ids = struct.pack(
        f"<{len(logs)}i", *(100 * rollout + call.tokens + n for n in range(len(logs)))
    )
    behaviour = struct.pack(f"<{len(logs)}f", *logs)
    store.record(e.Extended(rollout, call.attempt, 0, call.tokens, ids, behaviour))
    if finish:
        store.record(e.Sealed(rollout, call.attempt, "stop"))
    else:
        store.record(e.Requeued(rollout, call.attempt, "interrupted"))


def events(store: EventStore, after: int = 0) -> list[e.AnyEvent]:
    assert isinstance(store.log, MemoryLog)
    return store.log.events[after:]


def config_of(fork: str = "depths", leaves: int = 2, **rollout: Any) -> Config:
    settings = {"fork": fork, "fork_after": 4, "fork_leaves": leaves, "group_size": 2 * leaves}
    return configured(
        rollout=settings | {"max_new_tokens": 12, "k_min": 2, "filter": "none"} | rollout,
        train={"advantage": "rloo", "objective": "clip"},
    )


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def test_a_fork_continues_durable_tokens_that_are_counted_once() -> None:
    store, config = begun(), config_of()
    grow(store, 0, [-1.0] * 4)
    forking, before = Forking(store, config), len(events(store))
    forking.decide()
    assert events(store, before) == [], "whether it goes on is not known yet"
    grow(store, 0, [-1.0] * 2)
    forking.extended(store.experience.calls[0])
    forking.decide()
    x = store.experience
    assert events(store)[-1] == e.Forked(0, 4, 3)
    group, fork = x.groups[0], x.rollouts[3]
    assert group.context(fork) == PROMPT + ids(0, 1, 2, 3)
    assert (fork.remaining, fork.tokens, x.rollouts[0].remaining) == (8, 0, 6)
    assert [group.draw_of(member) for member in group.members] == [0, 2, 1]
    assert x.ledger.tokens.total == x.ledger.tokens.live == 6 and x.ledger.balances()
    grow(store, 3, [-1.0] * 5, "stop")
    forking.decide()
    assert not isinstance(events(store)[-1], e.Forked), "neither has another leaf to give"
    with pytest.raises(ImpossibleEvent, match="it may not"):
        store.record(e.Forked(0, 5, 4))


@pytest.mark.parametrize("at", [-1, 4, 5])
def test_no_fork_is_beyond_durable_tokens(at: int) -> None:
    store = begun()
    grow(store, 0, [-1.0] * 4)
    with pytest.raises(ImpossibleEvent, match="has sampled the tokens 0 to 3"):
        store.record(e.Forked(0, at, 3))
    assert fold(events(store)) == store.experience


def test_a_group_is_complete_when_it_is_said_of_each_member_whether_it_forks() -> None:
    store = begun()
    for rollout, tokens in ((0, 3), (1, 6)):
        grow(store, rollout, [-1.0] * tokens, "stop")
        store.record(e.Judged(rollout, Scored(float(rollout), score=1.0)))
    x = store.experience
    assert [rollout.id for rollout in x.unsettled()] == [0, 1] and not x.ready()
    with pytest.raises(ImpossibleEvent, match="may grow"):
        store.record(e.Taken(0, [0, 1]))
    before = len(events(store))
    Forking(store, config_of()).decide()
    assert events(store, before) == [e.Forked(0, 0, 3), e.Forked(1, 4, 3)], "though it had ended"
    grow(store, 3, [-1.0], "stop")
    store.record(e.Judged(3, Scored(1.0)))
    assert [group.id for group in x.ready()] == [0] and not x.unsettled()
    assert x.history.posterior(7) == (3.0, 1.0), "the fork is no try of its own"
    for cut in range(before, len(events(store))):
        again = EventStore(fold(events(store)[:cut]), MemoryLog())
        Forking(again, config_of()).decide()
        assert events(again)[:2] == [one for one in events(store, cut) if isinstance(one, e.Forked)]


def test_a_tree_is_trained_token_by_token_with_what_lies_below() -> None:
    store, config = begun(4), config_of(leaves=4)
    grow(store, 0, [-1.0] * 10, "stop")
    grow(store, 1, [-1.0] * 3, "stop")
    Forking(store, config).decide()  # at 4 with two leaves, at 8 with one more
    grow(store, 3, [-1.0] * 6, "stop")
    Forking(store, config).decide()
    x = store.experience
    group = x.groups[0]
    assert [(m.parent, m.shared_tokens, m.leaves, m.slot) for m in group.members] == [
        *[(None, 0, 1, 0), (None, 0, 4, 4)],
        *[(0, 4, 1, 2), (0, 8, 1, 1), (3, 8, 1, 3)],
    ]
    assert x.rollouts[5].shared == ids(0, 1, 2, 3, 300, 301, 302, 303)
    for fork in (4, 5):
        grow(store, fork, [-1.0], "stop")
    rewards = {0: 1.0, 1: 0.5, 3: 0.0, 4: 0.75, 5: 0.25}
    for rollout, reward in rewards.items():
        store.record(e.Judged(rollout, Scored(reward)))
    facts, members = group.facts, group.scored
    assert [member.id for member in members] == [0, 4, 3, 5, 1]
    assert facts.forked == ForkedMembers(
        [0, 0, 0, 0, 1], [1, 1, 1, 1, 4], [[(1, 8), (2, 4), (3, 4)], [], [(3, 4)], [], []]
    )
    samples = [of_rollout(group, member, config)[0].sample for member in members]
    given = RewardedSamples(samples, {0: facts.rewards}, {}, forked={0: facts.forked})
    found = token_values(ByRoot(Rloo()), given).value.tolist()
    of_first, of_fork = [0.0] * 4 + [0.75] * 4 + [0.5] * 2, [-0.75] * 4 + [-0.5] * 2
    assert found == [*of_first, 0.25, *of_fork, -0.25, *[0.0] * 3]
    sequences = [of_rollout(group, member, config)[0].sequence for member in members]
    assert sum(sequence.trained for sequence in sequences) == x.ledger.tokens.live
    assert all(sequence.ids.startswith(PROMPT) for sequence in sequences)
    assert fold(events(store)) == x


def test_a_fork_is_decided_by_the_tokens_before_it_alone() -> None:
    rule = FORKS.find("surprise")
    for last in (-0.1, -9.0):
        store = begun()
        grow(store, 0, [-1.0] * 4 + [-2.0] * 4 + [last], "stop")
        grow(store, 1, [-2.0] * 4 + [-1.0] * 4 + [last], "stop")
        Forking(store, config_of("surprise")).decide()
        forked = [one for one in events(store) if isinstance(one, e.Forked)]
        assert forked == [e.Forked(0, 8, 3), e.Forked(1, 0, 4)] and rule.kind == "surprise"


class Wrong:
    def __init__(self, every: int) -> None: ...

    def forks(self, point: object) -> object:
        return 1


def test_a_wrong_answer_ends_the_run_in_one_sentence() -> None:
    store = begun()
    grow(store, 0, [-1.0] * 5)
    forking = Forking(store, config_of())
    forking._rule = Wrong(4)  # type: ignore[assignment]
    with pytest.raises(StrategyError, match=r"says 1 of a rollout of prompt 7 after 4 tokens"):
        forking.decide()
