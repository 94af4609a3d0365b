"""Growth of a group: asked for when its members are judged, by what the journal has; wrong answers
of a rule end the run in one sentence, with nothing lost."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.group_sizes import GroupSizes
from asyncrl.config import Config
from asyncrl.config.errors import input_error
from asyncrl.config.strategies import StrategyError
from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import fold
from asyncrl.messages import NoVerdict, Scored, Verdict

PROMPT = struct.pack("<i", 5)


def begun(most: int = 5) -> EventStore:
    """A group of two that may grow, and a younger one."""
    store = EventStore(fold([]), MemoryLog())
    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, 2, "train", 0, PROMPT, 4, key=10, most=most))
    store.record(e.Admitted(1, 2, 2, "train", 1, PROMPT, 4, key=15, most=most))
    return store


def events(store: EventStore) -> list[e.AnyEvent]:
    assert isinstance(store.log, MemoryLog)
    return store.log.events


def judge(store: EventStore, rollout: int, verdict: Verdict) -> None:
    attempt = store.experience.rollouts[rollout].attempt + 1
    store.record(e.Leased(rollout, "rollout-0", attempt))
    store.record(e.Extended(rollout, attempt, 0, 0, PROMPT, struct.pack("<f", -1.0)))
    store.record(e.Sealed(rollout, attempt, "stop"))
    store.record(e.Judged(rollout, verdict))


def config_of(sizing: str, **rollout: Any) -> Config:
    return configured(
        rollout={"sizing": sizing, "group_size": 2, "group_size_max": 5, "k_min": 1} | rollout
    )


def test_a_group_grows_once_judged_before_younger_ones_and_then_is_complete() -> None:
    store = begun()
    sizes, experience = GroupSizes(store, config_of("dars")), store.experience
    judge(store, 0, Scored(0.0))
    sizes.decide()
    assert not experience.undecided() and len(experience.groups[0].members) == 2
    judge(store, 1, Scored(0.0))
    assert [group.id for group in experience.undecided()] == [0] and not experience.ready()
    with pytest.raises(ImpossibleEvent, match="which may grow: nothing of it is taken before"):
        store.record(e.Taken(0, [0, 1]))
    with pytest.raises(ImpossibleEvent, match="which may grow: only the whole group is dropped"):
        store.record(e.Discarded(0, "stale"))
    again = EventStore(fold(events(store)), MemoryLog())  # a crash before the answer
    for one in (store, again):
        GroupSizes(one, config_of("dars")).decide()
        assert events(one)[-1] == e.Grown(0, 3, 4)
    assert [rollout.id for rollout in experience.to_lease("train", 9)] == [4, 2, 3]
    group = experience.groups[0]
    assert [group.key + group.place_of(member.id) for member in group.members] == [10, 11, 12]
    judge(store, 4, Scored(1.0))
    sizes.decide()  # it is not asked for a third stage
    assert events(store)[-1] == e.Grown(0, 3, 5) and group.complete and not group.may_grow
    assert [group.id for group in experience.ready()] == [0]
    assert experience.history.seen[0].visits == 1 and experience.history.rollouts == 5
    assert [len(m) for m in (group.members, group.rewards)] == [3, 3]
    assert fold(events(store)) == experience


@pytest.mark.parametrize("grown", [e.Grown(0, 1, 4), e.Grown(0, 6, 4), e.Grown(0, 3, 9)])
def test_a_growth_that_cannot_be_changes_nothing(grown: e.Grown) -> None:
    store = begun()
    for early in (grown, e.Grown(0, 3, 4), e.Grown(7, 3, 4)):
        with pytest.raises(ImpossibleEvent, match=r"cannot grow|cannot have|grows from"):
            store.record(early)  # no verdict yet
    judge(store, 0, Scored(0.0))
    judge(store, 1, NoVerdict("timeout"))
    before = len(events(store))
    with pytest.raises(ImpossibleEvent, match="group 0"):
        store.record(grown)
    assert len(events(store)) == before and fold(events(store)) == store.experience


def test_a_group_without_a_reward_or_under_a_rule_that_does_not_grow_is_complete() -> None:
    for sizing, verdict in (("dars", NoVerdict("timeout")), ("difficulty", Scored(0.0))):
        store = begun()
        judge(store, 0, verdict)
        store.record(e.Buried(1, "died"))
        GroupSizes(store, config_of(sizing)).decide()
        assert store.experience.groups[0].complete and not store.experience.undecided()
    store.record(e.Dropped(0, "k_min"))
    assert store.experience.ledger.balances() and list(store.experience.groups) == [1]


def test_a_group_that_is_dropped_while_it_is_open_whether_it_grows_leaves_nothing() -> None:
    store = begun()
    for rollout in (0, 1):
        judge(store, rollout, Scored(0.0))
    store.record(e.Dropped(0, "stale", restart=True))
    assert not store.experience.undecided() and store.experience.restarts == {0: 0}
    assert store.experience.ledger.balances()


RULE = """class Mine:
    def __init__(self, least, most):
        self.least, self.most = least, most
    def size(self, history, prompt_index):
        return self.least
    def grow(self, group):
        {body}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "growing.py"
    sys.modules.pop("growing", None)


def write(file: Path, code: str) -> None:
    file.write_text(code)
    sys.modules.pop("growing", None)
    importlib.invalidate_caches()


ASKED = "return a whole number from 2, which is no growth, to 5 (rollout.group_size_max)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return group.size // group.solved", "failed in growing.py, line 7 (ZeroDivisionError"),
        ("return group.best", "failed in growing.py, line 7 (AttributeError"),
        ("return self.most + 1", f"the group of 2 of prompt 0 grow to 6; {ASKED}"),
        ("return group.size - 1", f"grow to 1; {ASKED}"),
        ("return None", f"grow to None; {ASKED}"),
        ("return 3.0", f"grow to 3.0; {ASKED}"),
        ("return True", f"grow to True; {ASKED}"),
    ],
)
def test_a_rule_that_fails_grows_nothing_and_goes_on_corrected(
    mine: Path, body: str, said: str
) -> None:
    store, config = begun(), config_of("growing:Mine")
    for rollout in (0, 1):
        judge(store, rollout, Scored(0.0))
    write(mine, RULE.format(body=body))
    before = list(events(store))
    with pytest.raises(StrategyError) as caught:
        GroupSizes(store, config).decide()
    text = str(caught.value)
    assert text.startswith("the sizing 'growing:Mine' ") and said in text, text
    assert text.endswith("resume the run.") and text.isprintable()
    assert input_error(caught.value) is caught.value, "so the actor ends, and is not started again"
    assert events(store) == before and store.experience.ledger.balances()
    write(mine, RULE.format(body="return group.size + 2"))
    GroupSizes(store, config).decide()
    assert len(store.experience.groups[0].members) == 4
