"""Foreign answers join a group once its own members are judged, and are booked apart."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.group_sizes import GroupSizes
from asyncrl.actors.coordinator.imports import Imports
from asyncrl.actors.coordinator.sharing import Sharing
from asyncrl.config import Config, ConfigError, load
from asyncrl.experience import answer_pool
from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import Experience, fold
from asyncrl.messages import ForeignAnswer, NoVerdict, Scored, Span, Verdict
from asyncrl.object_store import StoreError
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.shared_groups import SharedReader
from asyncrl.tasks.shared_places import SharedFolder

PROMPT = struct.pack("<i", 5)


class Answers:
    """Three answers to the prompt, each a version old, and none to others."""

    def of(self, prompt: bytes) -> Sequence[ForeignAnswer]:
        ids, known = struct.pack("<2i", 8, 9), struct.pack("<2f", -0.5, -0.25)
        three = [ForeignAnswer("file", f"line {n}", -1, ids, known) for n in range(3)]
        return three if prompt == PROMPT else []


def config_of(**foreign: Any) -> Config:
    return configured(
        rollout={"group_size": 2, "group_size_max": 5, "k_min": 1},
        foreign={"source": "file", "path": "a.jsonl", "members": 2} | foreign,
    )


def begun(most: int = 0, prompt: bytes = PROMPT) -> EventStore:
    store = EventStore(fold([]), MemoryLog())
    store.record(e.Published(0))
    store.record(e.Published(3))
    store.record(e.Admitted(0, 0, 2, "train", 0, prompt, 4, key=10, most=most, imports=2))
    return store


def events(store: EventStore) -> list[e.AnyEvent]:
    assert isinstance(store.log, MemoryLog)
    return store.log.events


def judge(store: EventStore, rollout: int, verdict: Verdict) -> None:
    store.record(e.Leased(rollout, "rollout-0", 1))
    store.record(e.Extended(rollout, 1, 3, 0, PROMPT, struct.pack("<f", -1.0)))
    store.record(e.Sealed(rollout, 1, "stop"))
    store.record(e.Judged(rollout, verdict))


def test_foreign_answers_join_once_all_own_are_judged_and_touch_no_count_of_the_runs_own() -> None:
    store = begun()
    imports, x = Imports(store, config_of(), Answers()), store.experience
    judge(store, 0, Scored(0.0))
    imports.decide()
    assert not x.importing() and len(x.groups[0].members) == 2
    judge(store, 1, Scored(0.0))
    assert [group.id for group in x.importing()] == [0] and not x.ready()
    for early, said in ((e.Taken(3, [0, 1]), "may grow"), (e.Discarded(0, "stale"), "may grow")):
        with pytest.raises(ImpossibleEvent, match=said):
            store.record(early)
    again = EventStore(fold(events(store)), MemoryLog())  # a crash before the answer
    Imports(again, config_of(), Answers()).decide()
    imports.decide()
    assert events(again)[-1] == events(store)[-1], "the same answers join"
    group = x.groups[0]
    assert [member.source for member in group.members] == ["own", "own", "file", "file"]
    assert group.members[2].spans == [Span(2, 0, 2, "file")], "a version older than its admission"
    assert not group.complete and [member.id for member in x.to_judge()] == [2, 3]
    assert x.history.seen[0].visits == 0, "no visit before the verdicts"
    store.record(e.Judged(2, Scored(1.0)))
    store.record(e.Judged(3, NoVerdict("timeout")))
    seen = x.history.seen[0]
    assert (seen.visits, seen.count, seen.total, seen.solved) == (1, 2, 0.0, 0), "its own alone"
    assert list(x.history.recent) == [1], "what is trained of it has a signal"
    assert (store.outcomes.recent.rewards, store.outcomes.recent.exact) == (2, 0.0)
    assert x.ready() == [group] and group.oldest == 3 and x.history.rollouts == 2
    generated = x.ledger.tokens.total
    store.record(e.Taken(3, [0, 1, 2]))
    for rollout, tokens in ((0, 1), (1, 1), (2, 2)):
        store.record(e.Trained(rollout, tokens, {}))
    ledger = x.ledger
    assert (generated, ledger.tokens.total, ledger.tokens.trained) == (2, 2, 2)
    foreign = ledger.foreign
    assert (foreign.tokens.total, foreign.tokens.trained) == (4, 2)
    assert foreign.tokens.discarded == {"no_verdict": 2} and foreign.rollouts.live == 0
    assert ledger.balances() and fold(events(store)) == x
    assert sum(x.audit.length.trained) == 2.0


def test_answers_join_after_growth_and_none_where_there_are_too_few_verdicts() -> None:
    for verdicts, joined in (((0.0, 0.0), 2), ((None, None), 0)):
        store = begun(most=5)
        config = configured(
            rollout={"group_size": 2, "group_size_max": 5, "k_min": 1, "sizing": "dars"},
            foreign={"source": "file", "path": "a.jsonl", "members": 2},
        )
        for number, reward in enumerate(verdicts):
            judge(store, number, NoVerdict("no") if reward is None else Scored(reward))
        assert not store.experience.importing()
        GroupSizes(store, config).decide()
        for number in list(store.experience.rollouts)[2:]:
            judge(store, number, Scored(1.0))
        GroupSizes(store, config).decide()
        Imports(store, config, Answers()).decide()
        members = store.experience.groups[0].members
        assert sum(not member.own for member in members) == joined


def test_a_prompt_without_answers_and_a_resumed_run_without_a_file_complete_their_groups() -> None:
    for store, answers in ((begun(prompt=b"\6\0\0\0"), Answers()), (begun(), None)):
        judge(store, 0, Scored(0.0))
        store.record(e.Buried(1, "died"))
        Imports(store, config_of(), answers).decide()
        assert events(store)[-1] == e.Imported(0, 2, []) and store.experience.groups[0].complete


def test_an_old_success_joins_where_all_own_fail_and_is_not_too_old() -> None:
    store, config = begun(), config_of(source="pool", path="", max_age=2)
    x, published = store.experience, 3
    store.record(e.Dropped(0, "k_min"))
    for group, rewards, joined in (
        (1, (0.0, 1.0), []),  # solved, so it is kept
        (2, (0.0, 0.5), [("pool", "rollout 3", 3)]),
        (3, (1.0, 0.0), []),
        (4, (0.0, 0.0), []),  # three versions later
    ):
        if group == 4:
            published = 7
            store.record(e.Published(7))
        first = x.next_rollout
        store.record(e.Admitted(group, first, 2, "train", 0, PROMPT, 4, imports=1, source="pool"))
        for rollout, reward in zip((first, first + 1), rewards, strict=True):
            judge(store, rollout, Scored(reward))
        again = EventStore(fold(events(store)), MemoryLog())
        for one in (again, store):
            Imports(one, config, None).decide()
            (answers,) = [e_.answers for e_ in events(one)[-1:] if isinstance(e_, e.Imported)]
            assert [(a.source, a.origin, a.version) for a in answers] == joined
        if joined:
            store.record(e.Judged(first + 2, Scored(1.0)))
    assert published == 7 and x.pool.answers[0].origin == f"rollout {first - 2}"
    assert Experience.of(x.snapshot()) == x and fold(events(store)) == x


def test_the_pool_forgets_what_was_solved_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_pool, "POOL_TOKENS", 2)
    store = begun()
    for group in (1, 2, 3):
        first = store.experience.next_rollout
        store.record(
            e.Admitted(group, first, 1, "train", group, PROMPT, 4, imports=1, source="pool")
        )
        judge(store, first, Scored(1.0))
        store.record(e.Imported(group, first + 1, []))
    assert [*store.experience.pool.answers] == [2, 3] and store.experience.pool.tokens == 2


async def test_a_group_that_one_run_shares_joins_the_group_of_another(tmp_path: Path) -> None:
    one, other = begun(), begun()
    for store in (one, other):
        judge(store, 0, Scored(1.0))
    judge(one, 1, NoVerdict("timeout"))
    place = SharedFolder(tmp_path)
    giver = Sharing("a" * 16, "tokens", place)
    taker = Sharing("b" * 16, "tokens", None, SharedReader(place, "b" * 16, "tokens", 9, 4, 8))
    Imports(one, config_of(), None).decide()
    waits = Waits()
    async with trio.open_nursery() as nursery:
        for sharing in (giver, taker):
            nursery.start_soon(sharing.run, waits)
        giver.look(one)
        giver.look(one)
        with trio.fail_after(10):
            while not giver.shared:  # noqa: ASYNC110  # a thread writes
                await trio.sleep(0.01)
            taker.look(other)
            while not taker.of(PROMPT):  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert giver.shared == 1 and giver.failed == 0
    judge(other, 1, Scored(0.0))
    taker.look(other)
    Imports(other, config_of(source="runs"), taker).decide()
    joined = other.experience.groups[0].members[2:]
    assert [(bytes(m.ids), m.source, m.tokens) for m in joined] == [(PROMPT, "run", 1)]
    assert joined[0].behaviour == struct.pack("<f", -1.0)


class Failing(SharedFolder):
    """A store that hangs at a read until it is `over`, and takes no group."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.over, self.asked = threading.Event(), threading.Event()

    def names(self, prompt: str) -> list[str]:
        self.asked.set()
        self.over.wait(60)
        raise StoreError("the store says: no")

    def write(self, prompt: str, name: str, data: bytes) -> None:
        raise StoreError("the store says: no")


async def test_a_store_that_hangs_or_fails_costs_shared_groups_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop decides without it, it is told once, and the end waits for no request."""
    store, place = begun(), Failing(tmp_path)
    judge(store, 0, Scored(1.0))
    reader = SharedReader(place, "b" * 16, "tokens", 9, 4, 8)
    sharing = Sharing("b" * 16, "tokens", place, reader)
    imports = Imports(store, config_of(source="runs"), sharing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sharing.run, Waits())
        sharing.look(store)
        with trio.fail_after(10):
            await trio.to_thread.run_sync(place.asked.wait)
        judge(store, 1, Scored(0.0))
        imports.decide()
        assert store.experience.ready(), "the group waits for no answer of others"
        sharing.look(store)
        assert sharing.failed == 0
        place.over.set()
        with trio.fail_after(10):
            while sharing.failed < 2:  # noqa: ASYNC110  # a read and a write
                await trio.sleep(0.01)
        place.over.clear()
        place.asked.clear()
        sharing._wanted[PROMPT] = None
        sharing._due.set()
        with trio.fail_after(10):
            await trio.to_thread.run_sync(place.asked.wait)
        nursery.cancel_scope.cancel()
    place.over.set()
    assert sharing.shared == 0 and caplog.text.count("groups cannot be shared") == 1


ANSWER = ForeignAnswer("file", "line 1", 3, bytes(8), bytes(8))


@pytest.mark.parametrize(
    "wrong",
    [
        e.Imported(0, 7, [ANSWER]),
        e.Imported(0, 2, [ANSWER] * 3),
        *(
            e.Imported(0, 2, [ForeignAnswer(*of)])
            for of in [
                ("own", "", 3, bytes(8)),
                ("file", "", 4, bytes(8)),
                ("file", "", -1, bytes(8)),
                ("file", "", 3, b""),
                ("file", "", 3, bytes(7)),
                ("file", "", 3, bytes(20)),
                ("file", "", 3, bytes(8), bytes(4)),
                ("file", "", 3, bytes(8), b"", "refused"),
            ]
        ),
    ],
)
def test_answers_that_cannot_join_change_nothing(wrong: e.Imported) -> None:
    store = begun()
    with pytest.raises(ImpossibleEvent, match="waits for verdicts"):
        store.record(e.Imported(0, 2, []))
    judge(store, 0, Scored(0.0))
    judge(store, 1, Scored(1.0))
    before = len(events(store))
    with pytest.raises(ImpossibleEvent, match="group 0"):
        store.record(wrong)
    assert len(events(store)) == before and fold(events(store)) == store.experience


FILE = ["foreign.source=file", "foreign.path=a.jsonl"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (FILE[:1], "need both"),
        (FILE[1:], "need both"),
        ([*FILE, "foreign.members=9"], "would outnumber"),
        ([*FILE, "train.unit=rollout", "train.advantage=first_k"], "join whole groups"),
        ([*FILE, "staleness.proximal=boundary"], "set proximal to behaviour or recompute"),
        ([*FILE, "agent.run=asyncrl.agents.examples.guess_number:agent"], "is a single response"),
    ],
)
def test_settings_that_contradict_are_one_sentence(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(None, settings, {})
    assert len(str(caught.value).splitlines()) == 1
