"""The heart's invariants, each checked after every event of random lives."""

from __future__ import annotations

import copy
from collections import Counter
from unittest import TestCase

import msgspec
import pytest
from experience_world import MAX_LAG, Account, World
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule
from some_values import drawn

from asyncrl.experience import events as e
from asyncrl.experience.call import TOKEN_BYTES, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.experience import Experience
from asyncrl.experience.rollout import ENDED, Rollout
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.experience.snapshot import Snapshot
from asyncrl.simulation.checker.impossible_events import impossible
from asyncrl.simulation.checker.reference_recovery import gone_on
from asyncrl.simulation.checker.reference_state import ReferenceState

OPEN = (
    *(RolloutStatus.WAITING, RolloutStatus.LEASED, RolloutStatus.BEGUN),
    RolloutStatus.SEALED,
)
PROFILE = settings(
    max_examples=drawn(120),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class Ledger(World):
    """Invariant 1: generated = trained + discarded + live, against a recount of the events from
    scratch."""

    @invariant()
    def balances(self) -> None:
        ledger, account = self.experience.ledger, Account(self.events)
        assert ledger.balances()
        assert ledger.tokens.total == account.generated
        own = [event for _, event in account.trained if event.rollout not in account.foreign]
        assert ledger.tokens.trained == sum(event.trained for event in own)
        assert ledger.tokens.discarded == {
            reason: n for reason, n in account.discarded_tokens.items() if n
        }
        live = [rollout for rollout in account.live if rollout not in account.foreign]
        assert ledger.tokens.live == sum(map(account.held, live))
        fates = Counter(
            fate
            for rollout, fates in account.fates.items()
            for fate in fates
            if rollout not in account.foreign
        )
        assert ledger.rollouts.total == len(account.fates.keys() - account.foreign)
        assert ledger.rollouts.trained == fates.pop("trained", 0)
        assert ledger.rollouts.discarded == fates
        assert ledger.rollouts.live == len(live)
        held = [rollout for group in self.experience.groups.values() for rollout in group.members]
        assert ledger.tokens.live == sum(rollout.tokens for rollout in held if rollout.own)
        books, joined = ledger.foreign, account.foreign
        assert books.tokens.total == sum(len(account.tokens[number]) for number in joined)
        assert books.rollouts.total == len(joined)
        assert books.rollouts.live == len(joined.intersection(account.live))
        assert books.tokens.live == sum(rollout.tokens for rollout in held if not rollout.own)
        assert books.tokens.trained == sum(
            event.trained for _, event in account.trained if event.rollout in joined
        )


class Once(World):
    """Invariant 2: a rollout is trained at most once, and has exactly one end or is live."""

    @invariant()
    def ends_once(self) -> None:
        account = Account(self.events)
        assert max(Counter(event.rollout for _, event in account.trained).values(), default=0) <= 1
        assert all(len(fates) <= 1 for fates in account.fates.values())
        assert sorted(self.experience.rollouts) == sorted(account.live)
        for group in self.experience.groups.values():
            for member in group.members:
                assert (member.status in ENDED) == (member.id not in self.experience.rollouts)
                assert member.status in ENDED or self.experience.rollouts[member.id] is member


class Lag(World):
    """Invariant 3: the mask that assembly makes of a rollout's spans lets a token in exactly where
    its own version is young enough."""

    @invariant()
    def no_older(self) -> None:
        account = Account(self.events)
        for event, step, mask in self.assembled:
            lags = [step - token.version for token in account.tokens[event.rollout]]
            assert list(mask) == [0 <= lag <= MAX_LAG for lag in lags]
            assert event.trained <= sum(mask)


class ParallelArrays(World):
    """Invariant 4: arrays are parallel, spans tile them, and both say of each token what its event
    said."""

    @invariant()
    def parallel(self) -> None:
        account = Account(self.events)
        for rollout in [*self.experience.rollouts.values(), *self.experience.calls.values()]:
            if isinstance(rollout, Rollout) and rollout.episode is not None:
                assert not (rollout.ids or rollout.behaviour or rollout.spans)
                continue
            call = account.calls.get(rollout.id)
            tokens = account.tokens[rollout.id] if call is None else call.tokens
            assert (
                len(rollout.ids) == len(rollout.behaviour) == 4 * rollout.tokens == 4 * len(tokens)
            )
            assert rollout.ids == b"".join(token.id for token in tokens)
            if isinstance(rollout, Rollout):
                group, shared = self.experience.groups[rollout.group], rollout.shared
                assert shared == account.shared.get(rollout.id, b"")
                (sequence,) = group.sequences(rollout) if not rollout.strands else [None]
                assert sequence is None or sequence.ids == group.prompt + shared + rollout.ids
                assert sequence is None or sequence.trained == rollout.tokens
            assert rollout.behaviour == b"".join(token.behaviour for token in tokens)
            assert [
                span.version for span in rollout.spans for _ in range(span.start, span.end)
            ] == [token.version for token in tokens]
            assert [span.start for span in rollout.spans] == [
                0,
                *(span.end for span in rollout.spans),
            ][: len(rollout.spans)]
            assert all(
                a.version != b.version
                for a, b in zip(rollout.spans, rollout.spans[1:], strict=False)
            )


class Episodes(World):
    """A sealed episode is trained as the calls that its agent used: each sampled token once, behind
    exactly what its call was given, as the recorder of sessions has it."""

    @invariant()
    def trained_as_played(self) -> None:
        account = Account(self.events)
        for group in self.experience.groups.values():
            for member in group.members:
                if member.id not in self.experience.rollouts or member.id not in account.turns:
                    continue
                turns = [turn for turn in account.turns[member.id] if turn.tokens]
                assert [turn.tokens for turn in member.turns] == [len(t.tokens) for t in turns]
                leaves = group.sequences(member) if member.strands else []
                assert Counter(
                    (turn.path[: len(turn.context) + 4 * place], t.id, t.behaviour, t.version)
                    for turn in turns
                    for place, t in enumerate(turn.tokens)
                ) == Counter(token for leaf in leaves for token in marked(leaf))
                assert group.sequence_tokens(member) == (
                    sum(leaf.tokens for leaf in leaves) or group.prompt_tokens
                )


def marked(leaf: TrainingSequence) -> list[tuple[bytes, bytes, bytes, int]]:
    """Each token that the mask marks: all ids before it, its id, log-probability and version."""
    version = {place: span.version for span in leaf.spans for place in range(span.start, span.end)}
    assert list(version) == [place for place, mark in enumerate(leaf.mask) if mark]
    return [
        (
            leaf.ids[: 4 * place],
            leaf.ids[4 * place : 4 * place + 4],
            leaf.behaviour[4 * place : 4 * place + 4],
            of,
        )
        for place, of in version.items()
    ]


class RestartEqualsNoCrash(World):
    """Invariant 8: folding the events gives the state, also when they come back from the journal's
    encoding."""

    @invariant()
    def folds(self) -> None:
        folded = Experience.of(msgspec.msgpack.decode(self.written, type=Snapshot))
        for event in self.since:
            folded.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=e.AnyEvent))
        assert folded == self.experience
        assert Experience.of(msgspec.msgpack.decode(self.write(), type=Snapshot)) == self.experience


def completed_by(event: e.AnyEvent) -> list[int]:
    """The rollouts that an event lets wait for a verdict."""
    match event:
        case e.Sealed(number, _, _):
            return [number]
        case e.Pruned(number, _, kept) if kept:
            return [number]
        case e.Imported(_, first, answers):
            return [*range(first, first + len(answers))]
    return []


class Views(World):
    """Work that is due, counted incrementally, is what a search through everything finds."""

    @invariant()
    def agree(self) -> None:
        x = self.experience
        leader = {group.id: group.members[0].id for group in x.groups.values()}
        for group in x.groups.values():
            assert [group.place_of(m.id) for m in group.members] == [*range(len(group.members))]
            slots = {group.draw_of(member) for member in group.members}
            assert len(slots) == len(group.members)
        done = (RolloutStatus.SEALED, RolloutStatus.JUDGED)
        forking = [r for r in x.rollouts.values() if r.forks and r.status in done]
        assert x.unsettled() == sorted(forking, key=lambda rollout: rollout.id)
        assert not {r.group for r in forking} & {group.id for group in x.ready()}
        for split in ("train", "evaluation"):
            groups = [group for group in x.groups.values() if group.split == split]
            rollouts = [
                rollout for rollout in x.rollouts.values() if x.groups[rollout.group].split == split
            ]
            calls = [call for call in x.calls.values() if x.groups[call.group].split == split]
            waiting = [call for call in calls if call.status is RolloutStatus.WAITING]
            assert all(
                call.id in x.rollouts[call.rollout].episode.used
                for call in waiting
                if isinstance(call, AgentCall)
            )
            unbegun = [
                (not r.episode.attempt, r.group, r.id)
                for r in rollouts
                if r.episode is not None and r.status is RolloutStatus.WAITING
            ]
            assert [r.id for r in x.to_begin(split, 99)] == [id for *_, id in sorted(unbegun)]
            order = [
                call.id
                for call in sorted(
                    waiting,
                    key=lambda call: (
                        not call.resumable,
                        call.id if isinstance(call, AgentCall) else leader[call.group],
                        call.id,
                    ),
                )
            ]
            assert [rollout.id for rollout in x.to_lease(split, 99)] == order
            assert [rollout.id for rollout in x.to_lease(split, 2)] == order[:2]
            asked = [
                group.id
                for group in groups
                if len(group.members) < group.most
                and not any(m.status in OPEN for m in group.members)
            ]
            assert split == "evaluation" or [group.id for group in x.undecided()] == asked
            assert not {group.id for group in x.ready(split)} & set(asked)
            waiting_for = [
                group.id
                for group in groups
                if group.imports
                and group.id not in asked
                and not any(m.status in OPEN for m in group.members)
            ]
            assert split == "evaluation" or [group.id for group in x.importing()] == waiting_for
            assert not {group.id for group in x.ready(split)} & set(waiting_for)
            due = [group for group in self.open_groups() if group.split == split and group.complete]
            assert x.ready(split) == sorted(due, key=lambda group: (group.oldest, group.id))
            taken = [
                group
                for group in groups
                if any(
                    m.step is not None and m.status is not RolloutStatus.JUDGED
                    for m in group.members
                )
            ]
            assert split != "train" or x.groups_untaken == x.groups_live - len(taken)
            admitted = [
                event
                for event in self.events
                if isinstance(event, e.Admitted) and event.split == split
            ]
            assert x.prompts[split] == sum(event.restarts is None for event in admitted)
        judged = [
            r
            for r in x.rollouts.values()
            if r.status is RolloutStatus.JUDGED
            and r.step is None
            and x.groups[r.group].split == "train"
        ]
        assert x.judged() == sorted(judged, key=lambda rollout: (rollout.oldest, rollout.id))
        untaken = [
            r
            for r in x.rollouts.values()
            if r.status is not RolloutStatus.TAKEN and x.groups[r.group].split == "train"
        ]
        training = [
            m
            for group in x.groups.values()
            for m in group.members
            if m.step is not None and m.status is not RolloutStatus.JUDGED
        ]
        unpublished = [member for member in training if member.step >= (x.version or 0)]
        assert (x.rollouts_untaken, x.rollouts_live) == (
            len(untaken),
            len(untaken) + len(unpublished),
        )
        admitted = [
            event.group
            for event in self.events
            if isinstance(event, e.Admitted) and event.split == "train"
        ]
        unfinished = [
            group
            for group in x.groups.values()
            if group.split == "train"
            and any(m in judged or m.status in OPEN for m in group.members)
        ]
        first = min(unfinished, key=lambda group: group.id, default=None)
        assert x.oldest() is first and (first is None or first.ordinal == admitted.index(first.id))
        verdicts = [event.rollout for event in self.events if isinstance(event, e.Judged)]
        assert all(
            rollout.judged == (verdicts.index(rollout.id) + 1 if rollout.verdict else 0)
            for rollout in x.rollouts.values()
        )
        unjudged = [
            number
            for event in self.events
            for number in completed_by(event)
            if number in x.rollouts and x.rollouts[number].status is RolloutStatus.SEALED
        ]
        assert [rollout.id for rollout in x.to_judge()] == unjudged
        if unjudged:
            assert [
                rollout.id for rollout in x.to_judge(after=x.rollouts[unjudged[0]].sealed)
            ] == unjudged[1:]
        assert x.groups_live == sum(group.split == "train" for group in x.groups.values())
        queue = [
            r
            for r in x.rollouts.values()
            if r.status in (RolloutStatus.SEALED, RolloutStatus.JUDGED)
            and x.groups[r.group].split == "train"
        ]
        assert (x.queue_items, x.queue_bytes) == (
            len(queue),
            sum(r.tokens * TOKEN_BYTES for r in queue),
        )
        assert sorted(r.id for r in x.taken()) == sorted(
            r.id for r in x.rollouts.values() if r.status is RolloutStatus.TAKEN
        )
        agents_calls = [call for call in x.calls.values() if isinstance(call, AgentCall)]
        assert x.statuses() == Counter(r.status for r in [*x.rollouts.values(), *agents_calls])
        live = x.ledger.rollouts.live + x.ledger.foreign.rollouts.live
        assert x.statuses().total() == live + len(agents_calls)
        leasable = [
            call
            for r in x.rollouts.values()
            for call in ([r] if r.episode is None else r.episode.calls)
            if call.status is not RolloutStatus.BURIED and not r.sealed
        ]
        assert x.calls == {call.id: call for call in leasable}
        failed = Counter(
            event.rollout for event in self.events if isinstance(event, e.Requeued) and event.failed
        )
        assert all(call.failures == failed[call.id] for call in x.calls.values())
        restarted = {
            event.group for event in self.events if isinstance(event, e.Dropped) and event.restart
        }
        assert set(x.restarts) == restarted - {
            event.restarts for event in self.events if isinstance(event, e.Admitted)
        }


class Refusals(World):
    """Beside each event that happens, those that cannot are refused, and change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.reference, self.told = ReferenceState(), 0

    def hear(self) -> None:
        for event in self.events[self.told :]:
            self.reference.apply(event)
        self.told = len(self.events)

    @rule()
    def crash(self) -> None:
        self.hear()
        newest = self.reference.newest  # a version that was published stays so
        super().crash()
        self.reference, _ = gone_on(self.events, ())
        self.reference.newest, self.told = newest, len(self.events)

    def apply(self, event: e.AnyEvent) -> None:
        self.hear()
        before = copy.deepcopy(self.experience)
        for wrong in impossible(self.reference, event):
            with pytest.raises(ImpossibleEvent):
                self.experience.apply(wrong)
        assert self.experience == before
        super().apply(event)


def case(world: type[World]) -> type[TestCase]:
    """A machine's tests, as pytest collects them."""
    world.TestCase.settings = PROFILE
    return world.TestCase


TestInvariant1Ledger = case(Ledger)
TestInvariant2Once = case(Once)
TestInvariant3Lag = case(Lag)
TestInvariant4ParallelArrays = case(ParallelArrays)
TestEpisodes = case(Episodes)
TestInvariant8RestartEqualsNoCrash = case(RestartEqualsNoCrash)
TestViews = case(Views)
TestRefusals = case(Refusals)
