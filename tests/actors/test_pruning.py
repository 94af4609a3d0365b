"""Ends of rollouts before their response is complete: asked for by what the journal has, and the
same after a crash; wrong answers of a rule end the run in one sentence, with nothing lost."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.pruning import Pruning
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.config import Config
from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import RolloutConfig
from asyncrl.config.selection_names import PRUNES
from asyncrl.config.strategies import StrategyError
from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.experience import fold
from asyncrl.launch.prune_trial import refuse_rule_that_ends_all
from asyncrl.messages import DrawnMembers, Scored

PROMPT = struct.pack("<i", 5)


def begun(members: int = 4, most: int = 9) -> EventStore:
    """A group that is generated, and a held-out prompt; each rollout waits with five tokens."""
    store = EventStore(fold([]), MemoryLog())
    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, members, "train", 7, PROMPT, most, key=40))
    store.record(e.Admitted(1, members, 1, "evaluation", 0, PROMPT, most, 0))
    for rollout in range(members + 1):
        grow(store, rollout, 5)
    return store


def grow(store: EventStore, rollout: int, tokens: int) -> None:
    """Sample more tokens, and take the rollout back."""
    call = store.experience.calls[rollout]
    store.record(e.Leased(rollout, "rollout-0", call.attempt + 1))
    ids = struct.pack(f"<{tokens}i", *(100 * rollout + n for n in range(tokens)))
    logs = struct.pack(f"<{tokens}f", *[-0.5] * tokens)
    store.record(e.Extended(rollout, call.attempt, 0, call.tokens, ids, logs))
    store.record(e.Requeued(rollout, call.attempt, "interrupted"))


def finish(store: EventStore, rollout: int, reward: float) -> None:
    attempt = store.experience.calls[rollout].attempt + 1
    store.record(e.Leased(rollout, "rollout-0", attempt))
    store.record(e.Sealed(rollout, attempt, "stop"))
    store.record(e.Judged(rollout, Scored(reward)))


def events(store: EventStore, after: int = 0) -> list[e.AnyEvent]:
    assert isinstance(store.log, MemoryLog)
    return store.log.events[after:]


def config_of(prune: str, **rollout: Any) -> Config:
    settings = {"prune": prune, "prune_after": 4, "group_size": 4, "max_new_tokens": 9}
    return configured(rollout=settings | {"k_min": 1, "filter": "none"} | rollout)


def pruning(store: EventStore, config: Config) -> Pruning:
    leases = LeaseTable(config.rollout.lease_s)
    reclaiming = Reclaiming(store, EnginePool(keeps=True), leases, config)
    return Pruning(store, reclaiming, config)


RULE = """
from asyncrl.algorithms.selection.prune import Ending
class Mine:
    def __init__(self, share):
        self.share = share
    def ends(self, group):
        {body}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "ending.py"
    sys.modules.pop("ending", None)


def write(file: Path, body: str) -> None:
    file.write_text(RULE.format(body=body))
    sys.modules.pop("ending", None)
    importlib.invalidate_caches()


def test_each_is_asked_once_and_the_last_members_go_on(mine: Path) -> None:
    write(mine, "return Ending('mine') if group.asked else None")
    store, config = begun(), config_of("ending:Mine", k_min=2)
    before, rule = len(events(store)), pruning(store, config)
    rule.decide()
    asked = events(store, before)
    assert asked == [
        e.Spared(0, 4, 1.0),
        e.Pruned(1, "pruned_mine", 0),
        e.Pruned(2, "pruned_mine", 0),
        e.Spared(3, 4, 1.0),  # two are left
    ]
    rule.decide()
    pruning(store, config).decide()
    assert events(store, before) == asked, "and the held-out one is not asked about"
    ledger, group = store.experience.ledger, store.experience.groups[0]
    assert ledger.tokens.discarded == ledger.pruned | {"pruned_mine": 10}
    assert ledger.pruned == {"pruned_mine": 2} and ledger.balances()
    assert [m.status for m in group.members[1:3]] == [RolloutStatus.BURIED] * 2
    for rollout, reward in ((0, 1.0), (3, 0.0)):
        finish(store, rollout, reward)
    assert [ready.id for ready in store.experience.ready()] == [0] and group.rewards == [1.0, 0.0]
    assert store.experience.history.judged_count == 2
    assert fold(events(store)) == store.experience


def test_a_kill_at_any_event_repeats_the_decisions(mine: Path) -> None:
    write(mine, "return Ending('mine', chance=0.5) if group.asked else Ending('cut', kept=3)")
    store, config = begun(8), config_of("ending:Mine", group_size=8)
    before = len(events(store))
    pruning(store, config).decide()
    decided = events(store)
    chances = {x.chance for x in decided[before:] if isinstance(x, e.Spared)}
    assert chances == {0.5} and decided[before] == e.Pruned(0, "pruned_cut", 3)
    assert {type(x) for x in decided[before:]} == {e.Spared, e.Pruned}
    for cut in range(before, len(decided)):
        again = EventStore(fold(decided[:cut]), MemoryLog())
        pruning(again, config).decide()
        assert events(again) == decided[cut:]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=8))
def test_what_grows_is_asked_about_as_in_a_new_life(growths: list[tuple[int, int]]) -> None:
    """One that is told of each growth decides what one decides that begins then."""
    store, config = begun(most=99), config_of("longest", max_new_tokens=99)
    rule = pruning(store, config)
    rule.decide()
    for rollout, tokens in growths:
        grow(store, rollout, tokens)
        rule.extended(store.experience.calls[rollout])
        before = events(store)
        rule.decide()
        again = EventStore(fold(before), MemoryLog())
        pruning(again, config).decide()
        assert events(again) == events(store, len(before))


def test_a_rollout_that_is_cut_is_judged_and_trained(mine: Path) -> None:
    write(mine, "return Ending('long', kept=len(group.member.ids) // 4)")
    store, config = begun(1), config_of("ending:Mine", group_size=1)
    pruning(store, config).decide()
    x = store.experience
    assert events(store)[-1] == e.Pruned(0, "pruned_long", 4)
    assert (
        [r.id for r in x.to_judge()] == [0]
        and x.rollouts[0].truncated
        and not x.to_lease("train", 9)
    )
    assert x.ledger.tokens.discarded == {"pruned_long": 1} and x.rollouts[0].tokens == 4
    store.record(e.LateTokens(2))  # what its engine still sent
    store.record(e.Judged(0, Scored(1.0)))
    store.record(e.Taken(0, [0]))
    store.record(e.Trained(0, 4, {}))
    store.record(e.Published(1))
    assert x.ledger.tokens.trained == 4 and x.ledger.balances() and 0 not in x.groups
    assert x.history.longest(7) == 4 and fold(events(store)) == x


def test_members_that_went_on_by_a_draw_say_with_which_chance(mine: Path) -> None:
    write(mine, "return Ending('mine', chance=0.5)")
    store = begun(8)
    pruning(store, config_of("ending:Mine", group_size=8)).decide()
    group = store.experience.groups[0]
    left = [member.id for member in group.members if not member.pruned]
    grow(store, left[0], 3)  # it is asked about again: the chances multiply
    store.record(e.Spared(left[0], 8, 0.25))
    for rollout in left:
        finish(store, rollout, 1.0)
    assert group.facts.drawn == DrawnMembers(8, [0.125] + [0.5] * (len(left) - 1))


@pytest.mark.parametrize(
    "event",
    [
        *(e.Spared(0, tokens, 1.0) for tokens in (0, 6, -1)),
        *(e.Spared(0, 4, chance) for chance in (0.0, 1.5, float("nan"))),
        *(e.Spared(4, 4, 1.0), e.Spared(9, 4, 1.0), e.Pruned(4, "pruned_mine", 0)),
        *(e.Pruned(0, "", 0), e.Pruned(0, "pruned_mine", 6), e.Pruned(0, "pruned_mine", -1)),
    ],
)
def test_an_end_that_cannot_be_changes_nothing(event: e.AnyEvent) -> None:
    store = begun()
    before = list(events(store))
    with pytest.raises(ImpossibleEvent):
        store.record(event)
    assert events(store) == before and fold(before) == store.experience


SAID = "return None, or an Ending with a reason of small letters, kept from 0 to its tokens and a "


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / (group.asked - group.asked)", "failed in ending.py, line 7 (ZeroDivision"),
        ("return group.best", "failed in ending.py, line 7 (AttributeError"),
        ("return True", SAID),
        ("return 'mine'", SAID),
        ("return Ending('')", SAID),
        ("return Ending('Not so')", SAID),
        ("return Ending('mine', kept=6)", SAID),
        ("return Ending('mine', kept=-1)", SAID),
        ("return Ending('mine', kept=2.0)", SAID),
        ("return Ending('mine', chance=-0.5)", SAID),
        ("return Ending('mine', chance=1.5)", SAID),
        ("return Ending('mine', chance=float('nan'))", SAID),
        ("return Ending('mine', chance='half')", SAID),
    ],
)
def test_a_rule_that_fails_ends_nothing_and_goes_on_corrected(
    mine: Path, body: str, said: str
) -> None:
    store, config = begun(), config_of("ending:Mine")
    write(mine, body)
    before = list(events(store))
    with pytest.raises(StrategyError) as caught:
        pruning(store, config).decide()
    text = str(caught.value)
    assert text.startswith("the prune rule 'ending:Mine' ") and said in text, text
    assert text.endswith("resume the run.") and text.isprintable()
    assert events(store) == before and store.experience.ledger.balances()
    write(mine, "return Ending('mine')")
    pruning(store, config).decide()
    assert store.experience.ledger.pruned == {"pruned_mine": 3}


def test_an_end_without_a_chance_has_no_weight(mine: Path) -> None:
    write(mine, "return Ending('mine')")
    config = config_of("ending:Mine", prune_weight="inverse")
    with pytest.raises(StrategyError, match="which has no chance to weigh by; return a chance"):
        pruning(begun(), config).decide()


def test_check_tries_a_rule_and_refuses_one_that_ends_all(mine: Path) -> None:
    for kind in PRUNES:
        refuse_rule_that_ends_all(config_of(kind).rollout)
    write(mine, "return Ending('mine') if group.prompt.solve_rate < 0.5 else None")
    refuse_rule_that_ends_all(config_of("ending:Mine").rollout)
    write(mine, "return Ending('mine')")
    with pytest.raises(ConfigError, match=r"ended each of 8 made-up .* let some continue"):
        refuse_rule_that_ends_all(config_of("ending:Mine").rollout)
    write(mine, "return group.best")
    with pytest.raises(ConfigError, match=r"failed in ending\.py, line 7"):
        refuse_rule_that_ends_all(config_of("ending:Mine").rollout)
    with pytest.raises(ConfigError, match="must be one of none, balance, converged, longest"):
        refuse_rule_that_ends_all(RolloutConfig(prune="unlikly"))
