"""One publication from the coordinator's side. Invariant: it is committed at most once, only when
every engine of its epoch has shown the trainer's own checksums, and never both committed and
aborted; nothing decodes with weights whose publication has not committed.

Pure: no I/O and no clock. The shell passes messages and `now` in, and carries out the actions that
come back, in their order.

    phase      waits for                       next, when                 at its deadline
    --------   -----------------------------   ------------------------   ------------------------
    PREPARE    begin(); and, of a direct       all came: QUIESCE          ABORT
               one, Joined of every member
    QUIESCE    Quiesced of every member        all came: Transfer goes    ABORT
                                               out, TRANSFER
    TRANSFER   Transferred of the trainer      it came: VERIFY            ABORT or RESEND
    VERIFY     Prepared of every member        all equal the trainer's:   silent members fenced,
               left                            COMMIT                     COMMIT with the others
    COMMIT     Committed of every member       all came: DONE             silent members fenced,
               left                                                       DONE
    ABORT,     answers still owed (below)      all came: FAILED           whoever is silent fenced,
    RESEND                                                                FAILED
    DONE       nothing: the version is
               current
    FAILED     nothing; the shell tries again with a new number and a new epoch

A staged publication goes from PREPARE to TRANSFER at once: its members receive into staging while
they decode. A direct one has no staging. It joins all members and compares plans first (PREPARE),
pauses every engine (QUIESCE), and only then sends into the weights that engines decode with. Up to
there a failure leads to ABORT, and the old version is still served. From the first byte on there is
no way back, and a failure leads to RESEND: members that are not fenced stay paused, with torn
weights, until a later publication has sent all of them. In both cases, nothing decodes with
uncommitted weights.

A member lost in TRANSFER leads to ABORT or RESEND: a broadcast with a dead member fails for all. A
member lost in VERIFY does not, nor one that is fenced there (silent, or of a wrong checksum): the
trainer has sent everything, and each of the others shows by its own checksums that it has
everything. They continue without it; if none is left, ABORT or RESEND follows. So it does after an
error before the decision. An error that a member reports is not its own fault (its peer died, the
trainer stopped), so no member is fenced for one; a member that cannot receive for reasons of its
own should crash, and is then lost. A member lost after the decision is fenced, and the commit
stands.

What makes ABORT and RESEND finite: every Prepare is answered by exactly one Prepared, and every
Publish by exactly one Transferred. A member or trainer still at work when one comes stops, and
gives that one answer with an error; one that has answered just forgets. Late answers of other
publications are known by their number, and ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

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


class PublicationPhase(enum.Enum):
    """Stages of a publication."""

    PREPARE = "prepare"
    QUIESCE = "quiesce"
    TRANSFER = "transfer"
    VERIFY = "verify"
    COMMIT = "commit"
    ABORT = "abort"
    RESEND = "resend"
    DONE = "done"
    FAILED = "failed"


_UNSENT = (PublicationPhase.PREPARE, PublicationPhase.QUIESCE)
_BEFORE_DECISION = (*_UNSENT, PublicationPhase.TRANSFER, PublicationPhase.VERIFY)
_GIVEN_UP = (PublicationPhase.ABORT, PublicationPhase.RESEND)


# ------------------------------------------------------------------------------------- publication


class Publication:
    """Publication of `version` to every member of `membership`, whose trainer has its store at the
    address `store`; with `direct` into the weights that it decodes with.

    `number` is the publication's own, never used twice. Each phase has `deadline_s` seconds. With
    `pin` members keep the version, with `average` its average in its place: that is sent and
    verified in the same transaction. Raises ValueError when there is no member, and for an average
    that is not pinned or is to go direct.
    """

    def __init__(
        self,
        number: int,
        version: int,
        membership: Membership,
        *,
        store: str,
        deadline_s: float,
        pin: bool = False,
        average: bool = False,
        direct: bool = False,
    ) -> None:
        if not membership.members:
            raise ValueError(
                f"version {version} cannot be published: epoch {membership.epoch} has no engine"
            )
        if average and not pin:
            raise ValueError(
                f"the average of version {version} would be sent, but no engine keeps it"
            )
        if average and direct:
            raise ValueError(f"the average of version {version} has no place in engines' weights")
        self.number = number
        self.version = version
        self.membership = membership
        self.phase = PublicationPhase.PREPARE
        self.deadline: float | None = None
        """The time at which the shell must call `late`, on the clock of `now`; None without a
        wait."""
        self._store = store
        self._deadline_s = deadline_s
        self._pin = pin
        self._average = average
        self._direct = direct
        self._reason = ""
        # Both in rank order. An answer costs the same with any number of members: each is looked at
        # when it comes.
        self._live = dict.fromkeys(membership.members)
        # the live that owe a Prepared; in COMMIT, a Committed
        self._owing = dict.fromkeys(membership.members)
        self._early: dict[int, Prepared] = {}  # what came before the trainer's answer
        # of a direct one: members that have not joined, or are not paused
        self._trainer_joined = not direct
        self._behind = dict.fromkeys(membership.members)
        self._sending = False  # from here on members' weights may be written
        self._sent: Transferred | None = None

    @property
    def finished(self) -> bool:
        """No further input changes anything."""
        return self.phase in (PublicationPhase.DONE, PublicationPhase.FAILED)

    @property
    def live(self) -> tuple[int, ...]:
        """The members not fenced, in rank order."""
        return tuple(self._live)

    @property
    def waiting_for(self) -> str:
        """The processes that the publication waits for now, in words; empty when none."""
        trainer = (self._began and not self._trainer_joined) or (
            self._sent is None and self.phase in (PublicationPhase.TRANSFER, *_GIVEN_UP)
        )
        return ", ".join(
            (["the trainer"] if trainer else []) + [f"engine {m}" for m in self._silent()]
        )

    def commits(self, member: int) -> bool:
        """True if a member was told to decode with the new weights, and has not said that it
        does."""
        return self.phase is PublicationPhase.COMMIT and member in self._owing

    # ---- inputs

    def begin(self, now: float) -> list[Action]:
        """Start it. Raises ValueError when it was started before."""
        if self._began:
            raise ValueError(f"publication {self.number} was started before")
        first = PublicationPhase.PREPARE if self._direct else PublicationPhase.TRANSFER
        self._enter(first, now)
        epoch, world = self.membership.epoch, self.membership.world
        return [
            ToTrainer(Publish(self.number, epoch, world, self._average, self._direct)),
            *(
                ToMember(
                    m,
                    Prepare(
                        self.number,
                        self.version,
                        epoch,
                        rank,
                        world,
                        self._store,
                        self._average,
                        self._direct,
                    ),
                )
                for rank, m in enumerate(self.membership.members, start=1)
            ),
        ]

    def joined(self, member: int | None, message: Joined, now: float) -> list[Action]:
        """A member, or with None the trainer, is in the group of a direct publication."""
        if message.publication != self.number or self.phase is not PublicationPhase.PREPARE:
            return []
        if member is None:
            self._trainer_joined = True
        else:
            self._behind.pop(member, None)
        if self._behind or not self._trainer_joined:
            return []
        self._enter(PublicationPhase.QUIESCE, now)
        self._behind = dict(self._live)
        return [ToMember(m, Quiesce(self.number)) for m in self._live]

    def quiesced(self, member: int, message: Quiesced, now: float) -> list[Action]:
        """Note that a member's engine is paused."""
        if message.publication != self.number or self.phase is not PublicationPhase.QUIESCE:
            return []
        self._behind.pop(member, None)
        if self._behind:
            return []
        self._sending = True
        self._enter(PublicationPhase.TRANSFER, now)
        return [ToTrainer(Transfer(self.number))]

    def transferred(self, message: Transferred, now: float) -> list[Action]:
        """The trainer's answer."""
        if message.publication != self.number or self._sent is not None:
            return []
        self._sent, self._trainer_joined = message, True
        if self.phase in _UNSENT:
            return self._abort(f"the trainer: {message.error or 'it sent before it was told'}", now)
        if self.phase is PublicationPhase.TRANSFER:
            if message.error:
                return self._abort(f"the trainer: {message.error}", now)
            if message.version != self.version:
                return self._abort(
                    f"the trainer sent version {message.version}, not {self.version}", now
                )
            self._enter(PublicationPhase.VERIFY, now)
            return self._verify(self._early, now)
        return self._go_on(now)

    def prepared(self, member: int, message: Prepared, now: float) -> list[Action]:
        """A member's answer."""
        if (
            message.publication != self.number
            or member not in self._owing
            or self.phase is PublicationPhase.COMMIT
        ):
            return []
        del self._owing[member]
        error = message.error or (
            "it received before anything was sent" if self.phase in _UNSENT else ""
        )
        if error and self.phase in _BEFORE_DECISION:
            return self._abort(f"engine {member}: {error}", now)
        if self.phase is PublicationPhase.TRANSFER:
            self._early[member] = message
        return (
            self._verify({member: message}, now)
            if self.phase is PublicationPhase.VERIFY
            else self._go_on(now)
        )

    def committed(self, member: int, message: Committed, now: float) -> list[Action]:
        """A member decodes with the new weights."""
        if message.publication != self.number or not self.commits(member):
            return []
        if message.version != self.version:
            return [
                self._fence(
                    member, f"it decodes with version {message.version}, not {self.version}"
                ),
                *self._go_on(now),
            ]
        del self._owing[member]
        return self._go_on(now)

    def lost(self, member: int, reason: str, now: float) -> list[Action]:
        """Note that a member's process ended, its link broke, or the coordinator fenced it."""
        if member not in self._live or self.finished or not self._began:
            return []
        if self.phase in (*_UNSENT, PublicationPhase.TRANSFER):
            fence = self._fence(member, reason)
            return [fence, *self._abort(f"engine {member}: {reason}", now)]
        return self._without([member], reason, now)

    def late(self, now: float) -> list[Action]:
        """To be called when `deadline` has passed; before it, nothing happens."""
        if self.deadline is None or now < self.deadline:
            return []
        missing = f"no answer within {self._deadline_s:g} s of {self.phase.value}"
        if self.phase in (*_UNSENT, PublicationPhase.TRANSFER):
            return self._abort(f"{self.waiting_for}: {missing}", now)
        silent = self._silent()
        if self.phase in _GIVEN_UP and self._sent is None:
            fences = [self._fence(m, missing) for m in silent]
            return [*fences, FenceTrainer(missing), self._failed()]
        return self._without(silent, missing, now)

    # ---- what follows from them

    def _silent(self) -> list[int]:
        """The members that owe an answer in this phase."""
        if self.phase in _UNSENT:
            return list(self._behind) if self._began else []
        return [] if self.phase is PublicationPhase.TRANSFER else list(self._owing)

    def _go_on(self, now: float) -> list[Action]:
        if self._owing:
            return []
        if self.phase is PublicationPhase.VERIFY:
            return self._commit(now)
        if self.phase is PublicationPhase.COMMIT:
            self._finish(PublicationPhase.DONE)
            return [Done(self.version)]
        if self.phase in _GIVEN_UP and self._sent is not None:
            return [self._failed()]
        return []

    def _failed(self) -> Failed:
        self._finish(PublicationPhase.FAILED)
        return Failed(self._reason)

    def _verify(self, answers: Mapping[int, Prepared], now: float) -> list[Action]:
        assert self._sent is not None
        wrong = [
            m
            for m, answer in answers.items()
            if m in self._live and answer.checksums != self._sent.checksums
        ]
        return self._without(wrong, "its checksums are not the trainer's", now)

    def _without(self, members: Sequence[int], reason: str, now: float) -> list[Action]:
        """Fence these, and continue with the others."""
        fences = [self._fence(m, reason) for m in members]
        if self.phase is PublicationPhase.VERIFY and not self._live:
            gone = ", ".join(f"engine {m}" for m in members)
            return [*fences, *self._abort(f"{gone}: {reason}", now)]
        return [*fences, *self._go_on(now)]

    def _commit(self, now: float) -> list[Action]:
        self._enter(PublicationPhase.COMMIT, now)
        self._owing = dict(self._live)
        assert self._sent is not None, "nothing is decided before it"
        commit = Commit(self.number, self.version, self._pin, self._sent.canary)
        return [
            Decided(self.version),
            *(ToMember(m, commit) for m in self._live),
        ]

    def _abort(self, reason: str, now: float) -> list[Action]:
        """Give up: for good where nothing was sent into engines' weights, else until it is sent
        again."""
        self._reason, self._trainer_joined = reason, True
        self._enter(PublicationPhase.RESEND if self._sending else PublicationPhase.ABORT, now)
        order = Resend(self.number) if self._sending else Abort(self.number)
        trainer: list[Action] = [] if self._sent is not None else [ToTrainer(order)]
        return [*trainer, *(ToMember(m, order) for m in self._live), *self._go_on(now)]

    def _fence(self, member: int, reason: str) -> Fence:
        del self._live[member]
        self._owing.pop(member, None)
        self._behind.pop(member, None)
        return Fence(member, reason)

    @property
    def _began(self) -> bool:
        return self.phase is not PublicationPhase.PREPARE or self.deadline is not None

    def _enter(self, phase: PublicationPhase, now: float) -> None:
        self.phase = phase
        self.deadline = now + self._deadline_s

    def _finish(self, phase: PublicationPhase) -> None:
        self.phase = phase
        self.deadline = None
