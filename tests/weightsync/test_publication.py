"""Invariant 6: committed at most once, never with anything unverified, never both committed and
aborted, and always over in the end."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from some_values import drawn

from asyncrl.messages import (
    Abort,
    Commit,
    Committed,
    Joined,
    Prepare,
    Prepared,
    Publish,
    Quiesce,
    Quiesced,
    Resend,
    Transfer,
    Transferred,
)
from asyncrl.weightsync.membership import Membership
from asyncrl.weightsync.publication import Publication, PublicationPhase
from asyncrl.weightsync.publication_actions import (
    Action,
    Decided,
    Done,
    Failed,
    Fence,
    FenceTrainer,
    ToMember,
    ToTrainer,
)

NUMBER, VERSION, DEADLINE = 1007, 1003, 10.0
"""Numbers of a long run: those that a message brings are equal, and other objects."""
GOOD, BAD = [1, 2**64 - 1], [1, 2]


def new(members: tuple[int, ...] = (4, 5), pin: bool = False, direct: bool = False) -> Publication:
    return Publication(
        int(str(NUMBER)),
        int(str(VERSION)),
        Membership(2, members),
        store="tcp:127.0.0.1:999",
        deadline_s=DEADLINE,
        pin=pin,
        direct=direct,
    )


def standing(members: tuple[int, ...] = (4, 5)) -> Publication:
    """A direct publication in TRANSFER: everybody has joined and stands still, at time 2."""
    p = new(members, direct=True)
    p.begin(0.0)
    for who in (None, *members):
        p.joined(who, Joined(NUMBER), 1.0)
    for member in members:
        p.quiesced(member, Quiesced(NUMBER), 2.0)
    assert p.phase is PublicationPhase.TRANSFER
    return p


def transferred(
    checksums: list[int] = GOOD, error: str = "", number: int = NUMBER, version: int = VERSION
) -> Transferred:
    return Transferred(number, version, checksums, 400, 0.1, error)


def prepared(checksums: list[int] = GOOD, error: str = "", number: int = NUMBER) -> Prepared:
    return Prepared(number, checksums, error)


def committed(number: int = NUMBER, version: int = VERSION) -> Committed:
    return Committed(number, version, 0.001)


# -------------------------------------------------------------------------------------- membership


def test_each_change_of_membership_is_a_new_epoch() -> None:
    one = Membership().joined(4).joined(9)
    assert one == Membership(2, (4, 9))
    assert (one.world, one.rank(4), one.rank(9)) == (3, 1, 2)
    assert one.left(4) == Membership(3, (9,))
    assert one.left(5) == one
    assert one.renewed() == Membership(3, (4, 9))
    assert one.joined(2).only([2, 4]) == Membership(4, (4, 2))
    with pytest.raises(ValueError, match="engine 4 is in epoch 2 already"):
        one.joined(4)
    with pytest.raises(ValueError, match="epoch 0 has no engine"):
        Publication(1, 0, Membership(), store="tcp:h:1", deadline_s=1.0)


# --------------------------------------------------------------------------------- told as stories


def test_the_whole_way() -> None:
    p = new(pin=True)
    assert p.begin(0.0) == [
        ToTrainer(Publish(NUMBER, 2, 3)),
        ToMember(4, Prepare(NUMBER, VERSION, 2, 1, 3, "tcp:127.0.0.1:999")),
        ToMember(5, Prepare(NUMBER, VERSION, 2, 2, 3, "tcp:127.0.0.1:999")),
    ]
    assert (p.phase, p.deadline, p.waiting_for) == (PublicationPhase.TRANSFER, 10.0, "the trainer")
    assert p.prepared(5, prepared(), 1.0) == []
    assert p.transferred(transferred(), 2.0) == []
    assert (p.phase, p.deadline, p.waiting_for) == (PublicationPhase.VERIFY, 12.0, "engine 4")
    commit = Commit(NUMBER, VERSION, True)
    assert p.prepared(4, prepared(), 3.0) == [
        Decided(VERSION),
        ToMember(4, commit),
        ToMember(5, commit),
    ]
    assert p.deadline == 13.0
    assert p.committed(4, committed(), 4.0) == []
    assert p.committed(5, committed(), 5.0) == [Done(VERSION)]
    assert p.finished and p.deadline is None and p.waiting_for == "" and p.live == (4, 5)


def test_an_average_is_part_of_the_transaction() -> None:
    """It is asked of the trainer and of each engine, and an engine that has the version alone is
    as one with a wrong checksum."""
    membership, store = Membership(2, (4, 5)), "tcp:127.0.0.1:999"
    p = Publication(
        NUMBER, VERSION, membership, store=store, deadline_s=DEADLINE, pin=True, average=True
    )
    assert p.begin(0.0) == [
        ToTrainer(Publish(NUMBER, 2, 3, average=True)),
        ToMember(4, Prepare(NUMBER, VERSION, 2, 1, 3, store, average=True)),
        ToMember(5, Prepare(NUMBER, VERSION, 2, 2, 3, store, average=True)),
    ]
    p.transferred(transferred(GOOD + BAD), 1.0)
    p.prepared(4, prepared(GOOD + BAD), 2.0)
    assert p.prepared(5, prepared(GOOD), 3.0) == [
        Fence(5, "its checksums are not the trainer's"),
        Decided(VERSION),
        ToMember(4, Commit(NUMBER, VERSION, True)),
    ]
    with pytest.raises(ValueError, match="but no engine keeps it"):
        Publication(NUMBER, VERSION, membership, store=store, deadline_s=1.0, average=True)


def test_a_wrong_checksum_fences_its_engine_and_the_others_go_on() -> None:
    p = new()
    p.begin(0.0)
    p.prepared(5, prepared(BAD), 1.0)
    assert p.transferred(transferred(), 2.0) == [Fence(5, "its checksums are not the trainer's")]
    assert p.waiting_for == "engine 4"
    assert p.prepared(4, prepared(), 3.0) == [
        Decided(VERSION),
        ToMember(4, Commit(NUMBER, VERSION, False)),
    ]
    assert p.live == (4,)


def test_an_engine_that_dies_when_all_is_sent_is_left_out() -> None:
    p = new()
    p.begin(0.0)
    p.transferred(transferred(), 1.0)
    p.prepared(4, prepared(), 2.0)
    assert p.lost(5, "killed", 3.0) == [
        Fence(5, "killed"),
        Decided(VERSION),
        ToMember(4, Commit(NUMBER, VERSION, False)),
    ]
    assert p.committed(4, committed(), 4.0) == [Done(VERSION)]


def test_an_engine_that_is_silent_when_all_is_sent_is_left_out() -> None:
    p = new()
    p.begin(0.0)
    p.transferred(transferred(), 1.0)
    p.prepared(5, prepared(), 2.0)
    assert p.late(11.0) == [
        Fence(4, "no answer within 10 s of verify"),
        Decided(VERSION),
        ToMember(5, Commit(NUMBER, VERSION, False)),
    ]


def test_where_nobody_is_left_nothing_is_committed() -> None:
    p = new()
    p.begin(0.0)
    p.transferred(transferred(), 1.0)
    p.prepared(5, prepared(BAD), 1.0)
    assert p.lost(4, "killed", 3.0) == [Fence(4, "killed"), Failed("engine 4: killed")]
    assert p.live == ()


def test_an_error_when_all_is_sent_aborts_for_all() -> None:
    """Abort for all where an engine decodes on with the version before; none goes on without it."""
    p = new()
    p.begin(0.0)
    p.transferred(transferred(), 1.0)
    p.prepared(5, prepared(), 1.0)
    assert p.prepared(4, prepared(error="connection closed"), 2.0) == [
        ToMember(4, Abort(NUMBER)),
        ToMember(5, Abort(NUMBER)),
        Failed("engine 4: connection closed"),
    ]
    assert p.live == (4, 5)


def test_an_engine_lost_during_the_transfer_aborts_and_the_others_are_not_blamed() -> None:
    p = new()
    p.begin(0.0)
    assert p.prepared(4, prepared(error="connection closed"), 1.0) == [
        ToTrainer(Abort(NUMBER)),
        ToMember(4, Abort(NUMBER)),
        ToMember(5, Abort(NUMBER)),
    ]
    assert p.transferred(transferred([], "connection closed"), 1.0) == []
    assert p.lost(5, "its process ended", 1.0) == [
        Fence(5, "its process ended"),
        Failed("engine 4: connection closed"),
    ]
    assert p.live == (4,)


def test_an_engine_that_hangs_is_found_out_by_the_abort() -> None:
    p = new()
    p.begin(0.0)
    assert p.late(9.9) == []
    assert p.late(10.0) == [
        ToTrainer(Abort(NUMBER)),
        ToMember(4, Abort(NUMBER)),
        ToMember(5, Abort(NUMBER)),
    ]
    p.transferred(transferred([], "aborted"), 11.0)
    p.prepared(4, prepared([], "aborted"), 11.0)
    assert p.late(20.0) == [
        Fence(5, "no answer within 10 s of abort"),
        Failed("the trainer: no answer within 10 s of transfer"),
    ]


def test_a_trainer_that_hangs_ends_the_run() -> None:
    p = new((4,))
    p.begin(0.0)
    p.late(10.0)
    p.prepared(4, prepared([], "aborted"), 11.0)
    assert p.late(20.0)[0] == FenceTrainer("no answer within 10 s of abort")
    assert p.phase is PublicationPhase.FAILED


def test_an_engine_lost_after_the_decision_is_fenced_and_the_commit_stands() -> None:
    p = new()
    p.begin(0.0)
    p.transferred(transferred(), 1.0)
    p.prepared(4, prepared(), 1.0)
    p.prepared(5, prepared(), 1.0)
    assert p.lost(4, "killed", 2.0) == [Fence(4, "killed")]
    assert p.late(11.0) == [Fence(5, "no answer within 10 s of commit"), Done(VERSION)]


def test_answers_of_other_publications_change_nothing() -> None:
    p = new((4,))
    p.begin(0.0)
    assert p.transferred(transferred(number=6, error="old"), 1.0) == []
    assert p.prepared(4, prepared(number=6, error="old"), 1.0) == []
    assert p.prepared(9, prepared(error="no member"), 1.0) == []
    assert p.phase is PublicationPhase.TRANSFER and p.waiting_for == "the trainer"
    p.transferred(transferred(), 1.0)
    p.prepared(4, prepared(), 1.0)
    assert p.committed(4, committed(number=6), 1.0) == []
    assert p.committed(4, committed(version=2), 1.0)[0] == Fence(
        4, "it decodes with version 2, not 1003"
    )


def test_a_trainer_that_sent_another_version_is_not_committed() -> None:
    p = new((4,))
    p.begin(0.0)
    p.prepared(4, prepared(), 1.0)
    assert p.transferred(transferred(version=4), 1.0)[-1] == Failed(
        "the trainer sent version 4, not 1003"
    )


# ------------------------------------------------------------------------- straight into the engine


def test_the_whole_way_straight_into_engines() -> None:
    """Nothing is sent before all have joined and stand still."""
    p, store = new(pin=True, direct=True), "tcp:127.0.0.1:999"
    assert p.begin(0.0) == [
        ToTrainer(Publish(NUMBER, 2, 3, direct=True)),
        ToMember(4, Prepare(NUMBER, VERSION, 2, 1, 3, store, direct=True)),
        ToMember(5, Prepare(NUMBER, VERSION, 2, 2, 3, store, direct=True)),
    ]
    with pytest.raises(ValueError, match="was started before"):
        p.begin(0.0)
    assert p.waiting_for == "the trainer, engine 4, engine 5"
    assert p.joined(5, Joined(NUMBER), 1.0) == [] == p.joined(5, Joined(NUMBER), 1.0)
    assert p.joined(None, Joined(NUMBER), 1.0) == []
    assert (p.phase, p.deadline, p.waiting_for) == (PublicationPhase.PREPARE, 10.0, "engine 4")
    assert p.joined(4, Joined(NUMBER - 1), 1.0) == []
    assert p.joined(4, Joined(NUMBER), 2.0) == [
        ToMember(4, Quiesce(NUMBER)),
        ToMember(5, Quiesce(NUMBER)),
    ]
    assert (p.phase, p.deadline) == (PublicationPhase.QUIESCE, 12.0)
    assert p.quiesced(4, Quiesced(NUMBER), 3.0) == []
    assert p.waiting_for == "engine 5"
    assert p.quiesced(5, Quiesced(NUMBER), 3.0) == [ToTrainer(Transfer(NUMBER))]
    assert p.prepared(5, prepared(), 4.0) == []
    assert p.transferred(transferred(), 4.0) == []
    commits = [ToMember(m, Commit(NUMBER, VERSION, True)) for m in (4, 5)]
    assert p.prepared(4, prepared(), 5.0) == [Decided(VERSION), *commits]
    assert p.committed(4, committed(), 6.0) == []
    assert p.committed(5, committed(), 6.0) == [Done(VERSION)]


@pytest.mark.parametrize("phase", ["prepare", "quiesce"])
@pytest.mark.parametrize("cause", ["lost", "late", "member", "trainer"])
def test_before_anything_is_sent_a_failure_leaves_all_as_they_were(phase: str, cause: str) -> None:
    p = new(direct=True)
    p.begin(0.0)
    if phase == "quiesce":
        for who in (None, 4, 5):
            p.joined(who, Joined(NUMBER), 0.0)
    assert p.phase.value == phase
    match cause:
        case "lost":
            actions = p.lost(5, "killed", 1.0)
        case "late":
            actions = p.late(10.0)
        case "member":
            actions = p.prepared(4, prepared([], "tensor 3 is of another shape"), 1.0)
        case _:
            actions = p.transferred(transferred([], "no store"), 1.0)
    aborts = [a.message for a in actions if isinstance(a, ToMember | ToTrainer)]
    assert aborts and set(aborts) == {Abort(NUMBER)} and p.phase is PublicationPhase.ABORT
    p.transferred(transferred([], "aborted"), 2.0)
    for member in p.live:
        actions = p.prepared(member, prepared([], "aborted"), 2.0) or actions
    assert p.phase is PublicationPhase.FAILED
    assert isinstance(actions[-1], Failed)


@pytest.mark.parametrize("phase", ["transfer", "verify"])
@pytest.mark.parametrize("cause", ["late", "member", "trainer"])
def test_once_it_is_sent_there_is_no_way_back(phase: str, cause: str) -> None:
    """Engines stand still with weights of no version, and are sent all of them again."""
    p = standing()
    if phase == "verify":
        p.transferred(transferred(), 2.0)
    match cause:
        case "late":
            actions = p.late(12.0)
        case "member":
            actions = p.prepared(4, prepared([], "connection closed"), 3.0)
        case _:
            actions = p.transferred(transferred([], "connection closed"), 3.0)
    if (phase, cause) == ("verify", "late"):  # those that are silent then are fenced
        assert actions[-1] == Failed("engine 4, engine 5: no answer within 10 s of verify")
        return
    if (phase, cause) == ("verify", "trainer"):
        assert actions == []  # it has answered
        return
    orders = [a.message for a in actions if isinstance(a, ToMember | ToTrainer)]
    assert orders and set(orders) == {Resend(NUMBER)} and p.phase is PublicationPhase.RESEND
    p.transferred(transferred([], "aborted"), 4.0)
    for member in (4, 5):
        actions = p.prepared(member, prepared([], "aborted"), 4.0) or actions
    assert isinstance(actions[-1], Failed)


def test_an_engine_lost_while_it_is_written_leaves_the_others_to_be_sent_again() -> None:
    p = standing()
    orders = [ToTrainer(Resend(NUMBER)), ToMember(4, Resend(NUMBER))]
    assert p.lost(5, "killed", 3.0) == [Fence(5, "killed"), *orders]
    p.transferred(transferred([], "aborted"), 4.0)
    assert p.late(13.0) == [
        Fence(4, "no answer within 10 s of resend"),
        Failed("engine 5: killed"),
    ]


def test_a_wrong_checksum_of_what_stands_in_an_engine_fences_it_alone() -> None:
    p = standing()
    p.prepared(5, prepared(BAD), 3.0)
    assert p.transferred(transferred(), 3.0) == [Fence(5, "its checksums are not the trainer's")]
    assert p.prepared(4, prepared(), 3.0)[0] == Decided(VERSION)


def test_an_average_does_not_go_straight_into_an_engine() -> None:
    with pytest.raises(ValueError, match="has no place in engines' weights"):
        Publication(
            NUMBER,
            VERSION,
            Membership(2, (4,)),
            store="tcp:h:1",
            deadline_s=1.0,
            pin=True,
            average=True,
            direct=True,
        )


# --------------------------------------------------------------------------- any order of anything


@dataclasses.dataclass
class Witness:
    """Checks every action as it comes, from outside: what it believes, it has from the inputs and
    the actions alone."""

    members: tuple[int, ...]
    sums: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    sent: list[int] | None = None
    seen: Counter[str] = dataclasses.field(default_factory=Counter)
    fenced: set[int] = dataclasses.field(default_factory=set)
    commits: set[int] = dataclasses.field(default_factory=set)
    joined: set[int | None] = dataclasses.field(default_factory=set)
    still: set[int] = dataclasses.field(default_factory=set)
    over: bool = False

    def heard(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.over, "something followed the end"
            match action:
                case Decided():
                    self.seen["decided"] += 1
                    assert self.seen["aborts"] == 0, "decided after an abort"
                    left = set(self.members) - self.fenced
                    assert left and self.sent is not None
                    assert all(self.sums.get(m) == self.sent for m in left)
                case ToMember(member, Commit()):
                    assert (
                        self.seen["decided"] == 1
                        and member not in self.fenced
                        and member not in self.commits
                    )
                    self.commits.add(member)
                case ToMember(_, Quiesce()):
                    assert self.joined == {None, *self.members}
                case ToTrainer(Transfer()):
                    assert self.still == set(self.members) and not self.fenced
                    self.seen["sent"] += 1
                case ToMember(member, Abort() | Resend() as order):
                    self.seen["aborts"] += 1
                    assert self.seen["decided"] == 0 and member not in self.fenced
                    assert isinstance(order, Resend) == bool(self.seen["sent"])
                case ToTrainer(Abort() | Resend() as order):
                    self.seen["aborts"] += 1
                    assert self.seen["decided"] == 0 and self.sent is None
                    assert isinstance(order, Resend) == bool(self.seen["sent"])
                case Fence(member, _):
                    assert member not in self.fenced, "fenced twice"
                    self.fenced.add(member)
                case Done():
                    assert self.seen["decided"] == 1
                    self.over = True
                case Failed():
                    assert self.seen["decided"] == 0
                    self.over = True
        assert self.seen["decided"] <= 1


class AnyOrder(RuleBasedStateMachine):
    @initialize(count=st.integers(1, 4), direct=st.booleans(), begun=st.booleans())
    def start(self, count: int, direct: bool, begun: bool) -> None:
        """With `begun` a direct one has come to where it is sent, which few orders reach."""
        self.now = 0.0
        self.p = new(tuple(range(count)), direct=direct)
        self.checker = Witness(self.p.membership.members)
        self.checker.heard(self.p.begin(self.now))
        if direct and begun:
            for who in (None, *range(count)):
                self.somebody_joins(-1 if who is None else who, NUMBER)
            for who in range(count):
                self.member_stands_still(who, NUMBER)

    member = st.integers(0, 4)
    number = st.sampled_from([NUMBER] * 8 + [NUMBER - 1])
    answer = st.sampled_from([(GOOD, "")] * 6 + [(BAD, ""), ([], ""), ([], "broken")])

    @rule(number=number, answer=answer, version=st.sampled_from([VERSION] * 8 + [VERSION + 1]))
    def trainer_answers(self, number: int, answer: tuple[list[int], str], version: int) -> None:
        first = number == NUMBER and self.checker.sent is None
        if first and not answer[1]:
            self.checker.sent = answer[0] if version == VERSION else [-1]
        elif first:
            self.checker.sent = [-1]
        self.checker.heard(self.p.transferred(transferred(*answer, number, version), self.now))

    @rule(member=member, number=number, answer=answer)
    def member_answers(self, member: int, number: int, answer: tuple[list[int], str]) -> None:
        if number == NUMBER and not answer[1] and member not in self.checker.fenced:
            self.checker.sums.setdefault(member, answer[0])
        elif number == NUMBER:
            self.checker.sums.setdefault(member, [-2])
        self.checker.heard(self.p.prepared(member, prepared(*answer, number), self.now))

    @rule(member=member, number=number, version=st.sampled_from([VERSION] * 8 + [VERSION + 1]))
    def member_commits(self, member: int, number: int, version: int) -> None:
        self.checker.heard(self.p.committed(member, committed(number, version), self.now))

    @rule(who=st.integers(-1, 4), number=number)
    def somebody_joins(self, who: int, number: int) -> None:
        if number == NUMBER and who in (-1, *self.checker.members):
            self.checker.joined.add(None if who < 0 else who)
        self.checker.heard(self.p.joined(None if who < 0 else who, Joined(number), self.now))

    @rule(member=member, number=number)
    def member_stands_still(self, member: int, number: int) -> None:
        told = self.p.phase is PublicationPhase.QUIESCE
        if number == NUMBER and member in self.checker.members and told:
            self.checker.still.add(member)
        self.checker.heard(self.p.quiesced(member, Quiesced(number), self.now))

    @rule(member=member)
    def member_is_lost(self, member: int) -> None:
        self.checker.heard(self.p.lost(member, "lost", self.now))

    @rule(seconds=st.floats(0, 2 * DEADLINE))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.checker.heard(self.p.late(self.now))

    @precondition(lambda self: hasattr(self, "p"))
    @invariant()
    def it_waits_only_with_a_deadline_and_a_name(self) -> None:
        assert self.p.finished == (self.p.deadline is None) == self.checker.over
        assert self.p.finished or self.p.waiting_for
        assert set(self.p.live) == set(self.p.membership.members) - self.checker.fenced

    def teardown(self) -> None:
        if not hasattr(self, "p"):
            return
        for _ in range(3):  # one of five phases, and ABORT or RESEND: no more deadlines than that
            if self.p.deadline is not None:
                self.now = max(self.now, self.p.deadline)
                self.checker.heard(self.p.late(self.now))
        assert self.p.finished


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=drawn(150), stateful_step_count=30, deadline=None)


def test_all_orders_of_two_engines() -> None:
    """Every order of one answer of each kind from everybody, with each engine good, wrong, broken
    or lost, and a deadline anywhere."""
    outcomes: Counter[str] = Counter()
    for kinds in itertools.product(("good", "wrong", "error", "lost", "silent"), repeat=2):
        events = [
            "trainer",
            "tick",
            *(f"prepare {m}" for m in (0, 1)),
            *(f"commit {m}" for m in (0, 1)),
        ]
        for order in itertools.permutations(events):
            p, now = new((0, 1)), 0.0
            checker = Witness((0, 1))
            checker.heard(p.begin(now))
            for event in order:
                kind, _, who = event.partition(" ")
                if kind == "trainer":
                    checker.sent = GOOD
                    checker.heard(p.transferred(transferred(), now))
                elif kind == "tick":
                    now += DEADLINE
                    checker.heard(p.late(now))
                elif kind == "commit":
                    checker.heard(p.committed(int(who), committed(), now))
                else:
                    m = int(who)
                    match kinds[m]:
                        case "lost":
                            checker.heard(p.lost(m, "lost", now))
                        case "silent":
                            pass
                        case what:
                            sums, error = {
                                "good": (GOOD, ""),
                                "wrong": (BAD, ""),
                                "error": ([], "broken"),
                            }[what]
                            checker.sums[m] = sums
                            checker.heard(p.prepared(m, prepared(sums, error), now))
            while p.deadline is not None:
                now = max(now, p.deadline)
                checker.heard(p.late(now))
            assert p.finished
            outcomes[f"{p.phase.value} {' '.join(sorted(kinds))}"] += 1
    assert all("good" in key for key in outcomes if key.startswith("done"))
    assert outcomes["done good lost"] and outcomes["done good wrong"]
    assert outcomes["done good silent"]
    assert (
        outcomes["done good good"] and outcomes["failed good good"] and outcomes["failed good lost"]
    )
