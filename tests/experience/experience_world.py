"""Random lives of experience, and an account of them kept apart: what the events alone say, without
the state machine."""

from __future__ import annotations

import copy
import struct
from collections import Counter
from typing import TypeVar

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from asyncrl.experience import events as e
from asyncrl.experience.call import Call, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall, Episode
from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.experience.recovery import recovered
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.snapshot import Snapshot
from asyncrl.messages import ForeignAnswer, NoVerdict, Scored
from asyncrl.staleness.lag import fresh_mask

MAX_LAG = 1
Thing = TypeVar("Thing")

small = st.integers(0, 7)
reasons = st.sampled_from(["filtered", "stale", "died", ""])
token_bytes = st.sampled_from([b"", b"\1\0\0\0", b"\2\0\0\0" * 3, b"\3\0\0"])
any_event: st.SearchStrategy[e.AnyEvent] = st.one_of(
    st.builds(
        e.Admitted,
        small,
        small,
        small,
        st.sampled_from(["train", "evaluation"]),
        small,
        token_bytes,
        small,
        st.none() | small,
    ),
    st.builds(e.Forked, small, st.integers(-1, 4), small),
    st.builds(e.Grown, small, small, small),
    st.builds(
        e.Imported,
        small,
        small,
        st.lists(
            st.builds(
                ForeignAnswer,
                st.sampled_from(["file", "own"]),
                st.just("line 1"),
                st.integers(-1, 7),
                token_bytes,
                token_bytes,
            ),
            max_size=2,
        ),
    ),
    st.builds(e.Leased, small, st.sampled_from(["", "rollout-0"]), small),
    st.builds(e.Extended, small, small, st.integers(-1, 7), small, token_bytes, token_bytes),
    st.builds(e.RoutingKnown, small, small, st.integers(-1, 7), st.integers(-1, 7), token_bytes),
    st.builds(e.Sealed, small, small, st.sampled_from(["", "stop", "length", "interrupted"])),
    st.builds(e.Begun, small, st.sampled_from(["", "agents-0"]), small),
    st.builds(
        e.Called,
        *(small, small, small),
        st.none() | st.tuples(small, st.integers(-1, 7)),
        *(token_bytes, small, small, st.sampled_from([0.0, 1.0, -1.0, float("nan")])),
    ),
    st.builds(e.Answered, small, small, st.sampled_from(["", "stop", "length", "interrupted"])),
    st.builds(e.Cut, small, small, small, st.integers(-1, 4)),
    st.builds(e.Reused, small, small, small),
    st.builds(e.Noted, small, small, reasons, token_bytes),
    st.builds(e.Rewarded, small, small, st.none() | small, st.sampled_from([0.5, float("inf")])),
    st.builds(e.ToolFailed, small, small, small, reasons),
    st.builds(e.Left, small, small, reasons, st.booleans()),
    st.builds(e.Requeued, small, small, reasons),
    st.builds(e.Buried, small, reasons),
    st.builds(e.Spared, small, small, st.sampled_from([0.5, 1.0, 0.0, float("nan")])),
    st.builds(e.Pruned, small, reasons, st.integers(-1, 4)),
    st.builds(e.LateTokens, st.integers(-1, 3)),
    st.builds(
        e.Judged, small, st.sampled_from([Scored(0.0), Scored(float("nan")), NoVerdict("timeout")])
    ),
    st.builds(e.Taken, st.integers(-1, 7), st.lists(small, max_size=3)),
    st.builds(
        e.Trained,
        small,
        st.integers(-1, 7),
        st.dictionaries(reasons, st.integers(-1, 7), max_size=2),
    ),
    st.builds(e.StoredForReplay, small, small),
    st.builds(e.Replayed, small, st.lists(small, max_size=2)),
    st.builds(e.Discarded, small, reasons),
    st.builds(e.Dropped, small, reasons, st.booleans()),
    st.builds(e.Published, st.integers(-1, 7)),
)


class Token:
    """A token as the events told of it."""

    def __init__(self, version: int, id_: bytes, behaviour: bytes) -> None:
        self.version, self.id, self.behaviour = version, id_, behaviour


class PlayedCall:
    """A call of an agent's as the events told of it: what it was given, and what it sampled; when
    it failed for good that is context of others and nothing else."""

    def __init__(self, rollout: int, context: bytes) -> None:
        self.rollout, self.context = rollout, context
        self.tokens: list[Token] = []
        self.failed = False

    @property
    def path(self) -> bytes:
        return self.context + b"".join(token.id for token in self.tokens)


class Account:
    """A history, by the events alone: each rollout's tokens, and how it ended. Of an episode
    the tokens are those of its calls until it is sealed, and then those of the `turns` that its
    agent used."""

    def __init__(self, events: list[e.AnyEvent]) -> None:
        self.groups: dict[int, list[int]] = {}
        self.calls: dict[int, PlayedCall] = {}
        self.used: dict[int, list[int]] = {}
        self.turns: dict[int, list[PlayedCall]] = {}
        self.generated = 0
        self.tokens: dict[int, list[Token]] = {}
        self.fates: dict[int, list[str]] = {}
        self.verdicts: dict[int, object] = {}
        self.steps: dict[int, int] = {}
        self.trained: list[tuple[int, e.Trained]] = []
        self.late = 0
        self.foreign: set[int] = set()
        self.shared: dict[int, bytes] = {}
        self.discarded_tokens: Counter[str] = Counter()
        for event in events:
            self._take_in(event)

    def _take_in(self, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted():
                self.groups[event.group] = list(range(event.first, event.first + event.size))
                for rollout in self.groups[event.group]:
                    self.tokens[rollout], self.fates[rollout] = [], []
            case e.Forked() if event.at:
                parent = event.rollout
                ids = self.shared.get(parent, b"") + b"".join(t.id for t in self.tokens[parent])
                self.shared[event.first] = ids[: 4 * event.at]
                self.tokens[event.first], self.fates[event.first] = [], []
                next(of for of in self.groups.values() if parent in of).append(event.first)
            case e.Grown():
                members = self.groups[event.group]
                more = [event.first + n for n in range(event.size - len(members))]
                members.extend(more)
                for rollout in more:
                    self.tokens[rollout], self.fates[rollout] = [], []
            case e.Imported():
                for number, answer in enumerate(event.answers, event.first):
                    self.groups[event.group].append(number)
                    self.foreign.add(number)
                    ids, known = answer.ids, answer.behaviour or b"\0\0\xc0\x7f" * len(answer.ids)
                    self.tokens[number] = [
                        Token(answer.version, ids[i : i + 4], known[i : i + 4])
                        for i in range(0, len(ids), 4)
                    ]
                    self.fates[number] = []
            case e.Extended():
                call = self.calls.get(event.rollout)
                tokens = self.tokens[event.rollout] if call is None else call.tokens
                for i in range(0, len(event.ids), 4):
                    tokens.append(
                        Token(event.version, event.ids[i : i + 4], event.behaviour[i : i + 4])
                    )
                    self.generated += 1
            case e.Begun() | e.Left():
                self.used[event.rollout] = []
            case e.Called():
                before = b"" if event.after is None else self.calls[event.after[0]].path
                shared = 0 if event.after is None else 4 * event.after[1]
                context = before[:shared] + event.given
                self.calls[event.call] = PlayedCall(event.rollout, context)
                self.used[event.rollout].append(event.call)
            case e.Cut():
                call = self.calls[event.call]
                self.discarded_tokens["unused"] += len(call.tokens) - event.tokens
                del call.tokens[event.tokens :]
            case e.Reused():
                self.used[event.rollout].append(event.call)
            case e.Sealed() if event.rollout in self.used:
                used = self.used.pop(event.rollout)
                for number, call in self.calls.items():
                    if call.rollout == event.rollout and not call.failed and number not in used:
                        self.discarded_tokens["orphaned"] += len(call.tokens)
                self.turns[event.rollout] = [self.calls[number] for number in used]
                self.tokens[event.rollout] = [
                    token for call in self.turns[event.rollout] for token in call.tokens
                ]
            case e.Buried() if event.rollout in self.calls:
                call = self.calls[event.rollout]
                self.discarded_tokens[event.reason] += len(call.tokens)
                call.failed = True
                if event.rollout in self.used[call.rollout]:
                    self.used[call.rollout].remove(event.rollout)
            case e.Buried() | e.Pruned(kept=0):
                self._end(event.rollout, event.reason)
            case e.Pruned():
                tokens = self.tokens[event.rollout]
                self.discarded_tokens[event.reason] += len(tokens) - event.kept
                del tokens[event.kept :]
            case e.LateTokens():
                self.generated += event.tokens
                self.late += event.tokens
                self.discarded_tokens["late"] += event.tokens
            case e.Judged():
                self.verdicts[event.rollout] = event.verdict
            case e.Taken():
                for rollout in event.rollouts:
                    self.steps[rollout] = event.step
                for rollout in event.left_out:
                    self._end(rollout, "not_chosen")
                for members in self.groups.values():
                    complete = all(
                        self.fates[member] or member in self.verdicts for member in members
                    )
                    if complete and set(members) & set(event.rollouts):
                        for member in members:
                            if (
                                isinstance(self.verdicts.get(member), NoVerdict)
                                and not self.fates[member]
                            ):
                                self._end(member, "no_verdict")
            case e.Trained():
                self.trained.append((self.steps[event.rollout], event))
                if event.rollout not in self.foreign:
                    self.discarded_tokens.update(event.discarded)
                blame = sorted(
                    event.discarded, key=lambda reason: (-event.discarded[reason], reason)
                ) or ["empty"]
                self.fates[event.rollout].append("trained" if event.trained else blame[0])
            case e.Discarded():
                self._end(event.rollout, event.reason)
            case e.Dropped():
                for member in self.groups[event.group]:
                    if not self.fates[member]:
                        self._end(member, event.reason)
            case _:
                pass

    def _end(self, rollout: int, reason: str) -> None:
        self.fates[rollout].append(reason)
        if rollout not in self.foreign:
            self.discarded_tokens[reason] += self.held(rollout)

    def held(self, rollout: int) -> int:
        """The tokens of a live rollout, and of the calls of an episode that is not sealed."""
        calls = (call for call in self.calls.values() if call.rollout == rollout)
        played = [] if rollout in self.turns else [c for c in calls if not c.failed]
        return len(self.tokens[rollout]) + sum(len(call.tokens) for call in played)

    @property
    def live(self) -> list[int]:
        return [rollout for rollout, fates in self.fates.items() if not fates]


def pick(things: list[Thing], index: int) -> Thing:
    return things[index % len(things)]


class World(RuleBasedStateMachine):
    """Events in any order that can happen, and now and then one that mostly cannot: that must
    change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.experience = Experience()
        self.events: list[e.AnyEvent] = []
        self.assembled: list[tuple[e.Trained, int, bytes]] = []
        self.written = self.checkpointed = (
            self.write()
        )  # the last state written down, and that of the last checkpoint
        self.since: list[e.AnyEvent] = []  # events after `written`
        self.cut = 0  # events before the checkpoint
        self.then_assembled = 0
        self.takings: list[
            tuple[int, list[int]]
        ] = []  # step and rollouts of what was taken, and was not trained before the checkpoint
        # what each of these takings left out, by the step and the rollouts
        self.left_out: dict[tuple[int, ...], list[int]] = {}

    def write(self) -> bytes:
        return msgspec.msgpack.encode(self.experience.snapshot())

    def apply(self, event: e.AnyEvent) -> None:
        self.experience.apply(event)
        self.events.append(event)
        self.since.append(event)
        if isinstance(event, e.Taken):
            taking = event.step, event.rollouts
            self.takings += [taking] * (taking not in self.takings)

    def members(self, status: RolloutStatus) -> list[Rollout]:
        return [r for r in self.experience.rollouts.values() if r.status is status]

    def calls(self, *statuses: RolloutStatus) -> list[Call]:
        return [call for call in self.experience.calls.values() if call.status in statuses]

    def has(self, *statuses: RolloutStatus) -> bool:
        return any(self.members(status) or self.calls(status) for status in statuses)

    def open_groups(self) -> list[Group]:
        return [group for group in self.experience.groups.values() if not group.begun]

    def alone(self) -> list[Rollout]:
        """Judged rollouts of groups that neither grow nor fork, and which no foreign answer may
        join."""
        x = self.experience
        forking = {rollout.group for rollout in x.rollouts.values() if rollout.forks}
        waits = {group.id for group in x.groups.values() if group.may_grow or group.imports}
        waits |= forking
        return [rollout for rollout in x.judged() if rollout.group not in waits]

    def on_offer(self) -> list[Rollout]:
        return [rollout for rollout in self.alone() if isinstance(rollout.verdict, Scored)]

    @rule(
        size=st.integers(1, 3),
        budget=st.integers(1, 6),
        split=st.sampled_from(["train", "train", "evaluation"]),
        more=st.integers(0, 2),
        imports=st.integers(0, 2),
        leaves=st.integers(1, 4),
    )
    def admit(
        self, size: int, budget: int, split: str, more: int = 0, imports: int = 0, leaves: int = 1
    ) -> None:
        x = self.experience
        pin = x.version if split == "evaluation" else None
        self.apply(
            e.Admitted(
                x.next_group,
                x.next_rollout,
                size,
                split,
                x.prompts[split],
                b"\7\0\0\0",
                budget,
                pin,
                most=size + more if split == "train" else 0,
                imports=imports if split == "train" else 0,
                leaves=1 if more or imports or split != "train" else leaves,
            )
        )

    def forking(self) -> list[Rollout]:
        """Rollouts that may fork here and now, or are complete, and may say that they do not."""
        live = (rollout for rollout in self.experience.rollouts.values() if rollout.forks)
        return [rollout for rollout in live if rollout.tokens > 1 or rollout.sealed]

    @precondition(lambda self: self.forking())
    @rule(index=st.integers(0, 99), at=st.integers(0, 9))
    def fork(self, index: int, at: int) -> None:
        rollout = pick(self.forking(), index)
        own = at % rollout.tokens if rollout.tokens > 1 else 0
        at = rollout.shared_tokens + own if own else 0
        if at or rollout.sealed:
            self.apply(e.Forked(rollout.id, at, self.experience.next_rollout))

    @precondition(lambda self: self.experience.undecided())
    @rule(more=st.integers(0, 2))
    def grow(self, more: int) -> None:
        group = self.experience.undecided()[0]
        size = min(len(group.members) + more, group.most)
        self.apply(e.Grown(group.id, size, self.experience.next_rollout))

    def prunable(self) -> list[Rollout]:
        x, live = self.experience, self.calls(RolloutStatus.WAITING, RolloutStatus.LEASED)
        return [r for r in live if isinstance(r, Rollout) and x.groups[r.group].split == "train"]

    @precondition(lambda self: self.prunable())
    @rule(index=st.integers(0, 99), kept=st.integers(0, 6), spare=st.booleans())
    def prune(self, index: int, kept: int, spare: bool) -> None:
        rollout = pick(self.prunable(), index)
        if not spare:
            self.apply(e.Pruned(rollout.id, "pruned", min(kept, rollout.tokens)))
        elif rollout.tokens > rollout.looked:
            self.apply(e.Spared(rollout.id, rollout.tokens, 0.5))

    @precondition(lambda self: self.experience.importing())
    @rule(count=st.integers(0, 2), tokens=st.integers(1, 6), known=st.booleans())
    def take_in(self, count: int, tokens: int, known: bool) -> None:
        group = self.experience.importing()[0]
        tokens = min(tokens, group.members[0].max_new_tokens)
        ids = struct.pack(f"<{tokens}i", *range(tokens))
        answer = ForeignAnswer(
            "file", "line 1", self.experience.version or 0, ids, ids if known else b""
        )
        answers = [answer] * min(count, group.imports)
        self.apply(e.Imported(group.id, self.experience.next_rollout, answers))

    @precondition(lambda self: self.experience.restarts)
    @rule(size=st.integers(1, 3))
    def admit_again(self, size: int) -> None:
        x = self.experience
        group, prompt_index = next(iter(x.restarts.items()))
        self.apply(
            e.Admitted(
                x.next_group,
                x.next_rollout,
                size,
                "train",
                prompt_index,
                b"\7\0\0\0",
                4,
                None,
                group,
            )
        )

    @rule(
        size=st.integers(1, 3),
        budget=st.integers(1, 6),
        split=st.sampled_from(["train", "train", "evaluation"]),
        more=st.integers(0, 2),
    )
    def admit_played(self, size: int, budget: int, split: str, more: int = 0) -> None:
        x = self.experience
        pin = x.version if split == "evaluation" else None
        self.apply(
            e.Admitted(
                *(x.next_group, x.next_rollout, size, split, x.prompts[split], b"\7\0\0\0"),
                *(budget, pin),
                played=True,
                most=size + more if split == "train" else 0,
            )
        )

    def to_begin(self) -> list[Rollout]:
        x = self.experience
        return x.to_begin("train", 99) + x.to_begin("evaluation", 99)

    @precondition(lambda self: self.to_begin())
    @rule(index=st.integers(0, 99), all_of_it=st.booleans())
    def begin(self, index: int, all_of_it: bool) -> None:
        waiting = self.to_begin()
        for rollout in waiting if all_of_it else [pick(waiting, index)]:
            assert rollout.episode is not None
            self.apply(e.Begun(rollout.id, "agents-0", rollout.episode.attempt + 1))

    def played(self, index: int) -> tuple[Rollout, Episode]:
        rollout = pick(self.members(RolloutStatus.BEGUN), index)
        assert rollout.episode is not None
        return rollout, rollout.episode

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(
        index=st.integers(0, 99),
        way=st.sampled_from(["new", "on", "on", "on", "again", "branch"]),
        value=st.integers(0, 3),
        cut=st.integers(0, 9),
        budget=st.integers(1, 4),
    )
    def call(self, index: int, way: str, value: int, cut: int, budget: int) -> None:
        """An agent calls: with a context of its own, or going on from a call, from the midst of
        one, or with a context that there was."""
        rollout, episode = self.played(index)
        account, context = Account(self.events), struct.pack("<2i", 7, value)
        if episode.calls and way != "new":
            before = account.calls[pick(episode.calls, cut).id]
            tool = struct.pack("<i", 90 + value)
            context = {
                "on": before.path + tool,
                "again": before.context,
                "branch": before.path[: 4 * (1 + cut % (len(before.path) // 4))] + tool,
            }[way]
        after, given = episode.locate(context)
        x = self.experience
        self.apply(
            e.Called(
                *(rollout.id, episode.attempt, x.next_rollout, after, given, x.next_rollout),
                *(min(budget, rollout.max_new_tokens), 1.0),
            )
        )
        made = episode.calls[-1]
        assert episode.context(made) == context == Account(self.events).calls[made.id].context

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), number=st.integers(0, 99))
    def reuse(self, index: int, number: int) -> None:
        rollout, episode = self.played(index)
        left = [
            c for c in episode.calls if c.id not in episode.used and c.id in self.experience.calls
        ]
        if left:
            self.apply(e.Reused(rollout.id, episode.attempt, pick(left, number).id))

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), number=st.integers(0, 99), tokens=st.integers(0, 6))
    def cut_call(self, index: int, number: int, tokens: int) -> None:
        rollout, episode = self.played(index)
        used = [
            call
            for call in episode.calls
            if call.id in episode.used and (call.status is RolloutStatus.WAITING or call.finish)
        ]
        if used:
            call = pick(used, number)
            kept = min(call.tokens, max(tokens, episode.needed(call)))
            self.apply(e.Cut(rollout.id, episode.attempt, call.id, kept))

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), name=st.sampled_from("ab"))
    def note(self, index: int, name: str) -> None:
        rollout, episode = self.played(index)
        if name not in episode.notes:
            self.apply(e.Noted(rollout.id, episode.attempt, name, b"4"))

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), number=st.integers(0, 99))
    def reward(self, index: int, number: int) -> None:
        rollout, episode = self.played(index)
        call = pick([None, *episode.used], number)
        if call not in episode.rewards:
            self.apply(e.Rewarded(rollout.id, episode.attempt, call, 0.5))

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), number=st.integers(0, 99))
    def fail_tool(self, index: int, number: int) -> None:
        rollout, episode = self.played(index)
        if episode.used and (call := pick(episode.used, number)) not in episode.failed:
            self.apply(e.ToolFailed(rollout.id, episode.attempt, call, "search"))

    @precondition(lambda self: self.has(RolloutStatus.BEGUN))
    @rule(index=st.integers(0, 99), over=st.booleans(), failed=st.booleans())
    def end_attempt(self, index: int, over: bool, failed: bool) -> None:
        """An agent ends its episode, or is gone; what engines have of it is taken back."""
        rollout, episode = self.played(index)
        for call in episode.calls:
            if call.status is RolloutStatus.LEASED:
                if call.remaining:
                    self.apply(e.Requeued(call.id, call.attempt, "agent left"))
                else:
                    self.apply(e.Answered(call.id, call.attempt, "length"))
        if over:
            self.apply(e.Sealed(rollout.id, episode.attempt, "stop"))
        else:
            self.apply(e.Left(rollout.id, episode.attempt, "died", failed))

    @precondition(lambda self: self.calls(RolloutStatus.WAITING))
    @rule(index=st.integers(0, 99), all_of_it=st.booleans())
    def lease(self, index: int, all_of_it: bool) -> None:
        x = self.experience
        waiting = [  # none of a group without a prompt, which `anything` may admit
            call
            for call in x.to_lease("train", 99) + x.to_lease("evaluation", 99)
            if x.groups[call.group].prompt
        ]
        for rollout in waiting if all_of_it or not waiting else [pick(waiting, index)]:
            self.apply(e.Leased(rollout.id, "rollout-0", rollout.attempt + 1))

    @precondition(lambda self: self.calls(RolloutStatus.LEASED))
    @rule(
        index=st.integers(0, 99),
        count=st.integers(1, 6),
        age=st.integers(0, 3),
        values=st.integers(0, 2**16),
    )
    def extend(self, index: int, count: int, age: int, values: int) -> None:
        rollout = pick(self.calls(RolloutStatus.LEASED), index)
        count = min(count, rollout.remaining)
        if count:
            pinned = self.experience.groups[rollout.group].version
            version = max(0, (self.experience.version or 0) - age) if pinned is None else pinned
            ids = struct.pack(f"<{count}i", *range(values, values + count))
            behaviour = struct.pack(
                f"<{count}f", *(-0.5 * n for n in range(values, values + count))
            )
            self.apply(
                e.Extended(rollout.id, rollout.attempt, version, rollout.tokens, ids, behaviour)
            )

    @precondition(lambda self: self.calls(RolloutStatus.LEASED))
    @rule(index=st.integers(0, 99), all_of_it=st.booleans())
    def seal(self, index: int, all_of_it: bool) -> None:
        leased = self.calls(RolloutStatus.LEASED)
        for call in leased if all_of_it else [pick(leased, index)]:
            kind = e.Answered if isinstance(call, AgentCall) else e.Sealed
            self.apply(kind(call.id, call.attempt, "stop" if call.remaining else "length"))

    @precondition(lambda self: self.calls(RolloutStatus.LEASED))
    @rule(index=st.integers(0, 99), failed=st.booleans())
    def requeue(self, index: int, failed: bool) -> None:
        rollout = pick(self.calls(RolloutStatus.LEASED), index)
        if rollout.remaining:
            self.apply(e.Requeued(rollout.id, rollout.attempt, "lease expired", failed))

    def unfinished(self) -> list[Call]:
        calls = self.calls(RolloutStatus.WAITING, RolloutStatus.LEASED, RolloutStatus.UNCLAIMED)
        return calls + self.to_begin() + self.members(RolloutStatus.BEGUN)

    @precondition(lambda self: self.unfinished())
    @rule(index=st.integers(0, 99))
    def bury(self, index: int) -> None:
        self.apply(e.Buried(pick(self.unfinished(), index).id, "died"))

    @rule(tokens=st.integers(1, 5))
    def late(self, tokens: int) -> None:
        self.apply(e.LateTokens(tokens))

    @precondition(lambda self: self.has(RolloutStatus.SEALED))
    @rule(
        verdict=st.sampled_from([Scored(0.0), Scored(1.0), Scored(0.25), NoVerdict("timeout")]),
        all_of_it=st.booleans(),
    )
    def judge(self, verdict: Scored | NoVerdict, all_of_it: bool) -> None:
        sealed = self.experience.to_judge()
        for rollout in sealed if all_of_it else sealed[-1:]:
            self.apply(e.Judged(rollout.id, verdict))

    @precondition(lambda self: self.experience.prescribed or self.on_offer())
    @rule(
        ahead=st.integers(0, 2),
        count=st.integers(1, 3),
        whole=st.booleans(),
        chosen=st.integers(1, 3),
    )
    def take(self, ahead: int, count: int, whole: bool, chosen: int) -> None:
        left_out: list[int] = []
        if self.experience.prescribed is not None:
            step, rollouts = self.experience.prescribed
            left = self.left_out.get((step, *(rollout.id for rollout in rollouts)), [])
            left_out = [number for number in left if number in self.experience.rollouts]
        else:
            groups = [
                [m for m in group.scored if m.status is RolloutStatus.JUDGED]
                for group in self.experience.ready()
            ]
            rollouts = (
                [m for group in [group for group in groups if group][:count] for m in group]
                if whole
                else []
            )
            kept = [m for m in rollouts if self.experience.groups[m.group].scored.index(m) < chosen]
            if kept:  # of each group the first few
                left_out = [m.id for m in rollouts if m.id not in {one.id for one in kept}]
                rollouts = [m for m in kept if m.id not in left_out]
            groups_taken = {m.group for m in rollouts}
            left_out = [n for n in left_out if self.experience.rollouts[n].group in groups_taken]
            rollouts = rollouts or self.on_offer()[:count]
            newest = max(
                (span.version for rollout in rollouts for span in rollout.spans), default=0
            )
            step = max(self.experience.step or 0, self.experience.version or 0, newest) + ahead
        self.left_out[(step, *(rollout.id for rollout in rollouts))] = left_out
        self.apply(e.Taken(step, [rollout.id for rollout in rollouts], left_out))

    @precondition(lambda self: self.alone())
    @rule(index=st.integers(0, 99))
    def discard(self, index: int) -> None:
        self.apply(e.Discarded(pick(self.alone(), index).id, "filtered"))

    def half_trained(self) -> bool:
        """True if something of a step is trained, and something not: no checkpoint is written
        then."""
        members = [
            member
            for group in self.experience.groups.values()
            for member in group.members
            if member.step is not None
        ]
        taken = {member.step for member in members if member.status is RolloutStatus.TAKEN}
        return any(
            member.status is not RolloutStatus.TAKEN for member in members if member.step in taken
        )

    @precondition(lambda self: not self.half_trained())
    @rule()
    def checkpoint(self) -> None:
        self.written = self.checkpointed = self.write()
        self.since, self.cut, self.then_assembled = [], len(self.events), len(self.assembled)
        self.takings = [
            (step, rollouts)
            for step, rollouts in self.takings
            if set(self.experience.rollouts) & set(rollouts)
        ]

    @rule()
    def crash(self) -> None:
        """Everything dies, and goes on from the checkpoint: what was trained since was not. The
        account forgets it, too."""
        since = self.events[self.cut :]
        self.experience = recovered(
            Experience.of(msgspec.msgpack.decode(self.checkpointed, type=Snapshot)), since
        )
        kept = [
            event
            for event in since
            if not isinstance(
                event,
                e.Taken | e.Trained | e.StoredForReplay | e.Replayed | e.Published | e.Checkpointed,
            )
        ]
        self.events[self.cut :] = kept
        del self.assembled[self.then_assembled :]
        prescribed = self.experience.snapshot().prescribed
        assert self.takings == [
            (step, rollouts) for step, takings in prescribed.items() for rollouts in takings
        ]
        self.written = self.checkpointed = self.write()
        self.since, self.cut = [], len(self.events)

    @precondition(lambda self: self.has(RolloutStatus.TAKEN))
    @rule(how_many=st.integers(1, 6), masked=st.booleans())
    def train(self, how_many: int, masked: bool) -> None:
        for rollout in self.experience.taken()[:how_many]:
            group = self.experience.groups[rollout.group]
            whole = all(
                member.step is None or member.status is RolloutStatus.TAKEN
                for member in group.members
            )
            if how_many % 2 == 0 and whole and group.id not in self.experience.replay_buffer.kept:
                self.apply(
                    e.StoredForReplay(
                        group.id,
                        max(member.step for member in group.members if member.step is not None) + 1,
                    )
                )
            step = rollout.step
            assert step is not None
            mask = fresh_mask(rollout.spans, step, MAX_LAG, MAX_LAG)
            out = min(sum(mask), 1) if masked else 0
            counts = {"stale": rollout.tokens - sum(mask), "icepop": out}
            event = e.Trained(
                rollout.id,
                sum(mask) - out,
                {reason: count for reason, count in counts.items() if count},
            )
            self.apply(event)
            self.assembled.append((event, step, mask))

    @precondition(lambda self: self.experience.replay_buffer.kept)
    @rule()
    def replay(self) -> None:
        group, kept = next(iter(self.experience.replay_buffer.kept.items()))
        self.apply(e.Replayed(kept.until, [group]))

    @rule(moves=st.lists(st.integers(0, 2**20), min_size=4, max_size=16))
    def progress(self, moves: list[int]) -> None:
        """Do what mostly happens in a run: a move's lowest bits choose among what can be done next,
        the others how."""
        for move in moves:
            how = move >> 3
            verdict = NoVerdict("timeout") if how % 3 == 0 else Scored(how % 3 / 2)
            due = [
                (self.calls(RolloutStatus.WAITING), lambda how=how: self.lease(how, True)),
                (bool(self.to_begin()), lambda how=how: self.begin(how, True)),
                *[
                    (
                        self.has(RolloutStatus.BEGUN),
                        lambda how=how: self.call(
                            how, pick(["on", "on", "new", "branch"], how), how % 4, how % 10, 4
                        ),
                    ),
                    (self.has(RolloutStatus.BEGUN), lambda how=how: self.reuse(how, how)),
                    (
                        self.has(RolloutStatus.BEGUN),
                        lambda how=how: self.cut_call(how, how, how % 4),
                    ),
                ]
                * 2,
                (
                    self.has(RolloutStatus.BEGUN) and how % 3 == 0,
                    lambda how=how: self.end_attempt(how, how % 2 == 0, False),
                ),
                *[
                    (
                        self.calls(RolloutStatus.LEASED),
                        lambda how=how: self.extend(how, 1 + how % 6, how % 3, how),
                    )
                ]
                * 3,
                (self.calls(RolloutStatus.LEASED), lambda how=how: self.seal(how, how % 4 == 0)),
                (
                    self.has(RolloutStatus.SEALED),
                    lambda verdict=verdict: self.judge(verdict, False),
                ),
                (
                    self.experience.prescribed is not None or bool(self.on_offer()),
                    lambda how=how: self.take(how % 2, 2, how % 4 < 2, 1 + how % 3),
                ),
                (self.has(RolloutStatus.TAKEN), lambda how=how: self.train(6, how % 2 == 0)),
                (True, lambda: self.publish(1)),
                (
                    len(self.experience.groups) < 3,
                    lambda how=how: (
                        self.admit_played(1 + how % 3, 6, "train", how % 2)
                        if how % 5 < 2
                        else self.admit(1 + how % 3, 6, "train", how % 2, how % 3, 1 + how % 4)
                    ),
                ),
                (bool(self.forking()), lambda how=how: self.fork(how, how % 5)),
                (bool(self.experience.undecided()), lambda how=how: self.grow(how % 3)),
                (
                    bool(self.experience.importing()),
                    lambda how=how: self.take_in(how % 3, 1 + how % 4, how % 2 == 0),
                ),
                (self.has(RolloutStatus.TAKEN) and not self.half_trained(), self.checkpoint),
                (how % 4 == 0 and self.cut > 0, self.crash),
            ]
            pick([act for possible, act in due if possible], move)()

    @precondition(lambda self: self.open_groups())
    @rule(index=st.integers(0, 99), again=st.booleans())
    def drop(self, index: int, again: bool) -> None:
        group = pick(self.open_groups(), index)
        self.apply(e.Dropped(group.id, "filtered", again and group.split == "train"))

    @rule(ahead=st.integers(0, 2))
    def publish(self, ahead: int) -> None:
        version = (self.experience.version or 0) + ahead
        unfinished = [rollout.step for rollout in self.experience.taken()]
        due = self.experience.prescribed
        if all(step is not None and step >= version for step in unfinished) and (
            due is None or due[0] >= version
        ):
            self.apply(e.Published(version))

    @rule(event=any_event)
    def anything(self, event: e.AnyEvent) -> None:
        before = copy.deepcopy(self.experience)
        try:
            self.experience.apply(event)
        except ImpossibleEvent as refusal:
            assert str(refusal)
            assert self.experience == before
        else:
            self.events.append(event)
            self.since.append(event)

    @precondition(lambda self: self.events)
    @rule(index=st.integers(0, 999))
    def again(self, index: int) -> None:
        """Refuse what happened once already, unless it is a repeatable kind."""
        event = pick(self.events, index)
        if not isinstance(event, e.LateTokens | e.Published | e.Extended | e.Taken):
            before = copy.deepcopy(self.experience)
            with pytest.raises(ImpossibleEvent):
                self.experience.apply(event)
            assert self.experience == before
