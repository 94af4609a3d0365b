"""A run followed from outside, through its journal alone, life after life. Invariant: whatever is
killed, what the journal held before is in the account after, and the account is kept without the
product's own state (`asyncrl.simulation.checker.reference_state`).

A life begins with the state that the run goes on from. The journal keeps it, beside the version
that training starts from; so what was trained since that version's checkpoint is undone here too,
and every token, verdict and prompt stands.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Container
from pathlib import Path

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.journal import JournalError, SqliteHistory, read
from asyncrl.runtime.run_dir import JOURNAL
from asyncrl.simulation.checker.reference_recovery import gone_on
from asyncrl.simulation.checker.reference_state import ReferenceState

TRAINING = (e.Taken, e.Trained, e.Published, e.Checkpointed)


class Wrong(Exception):
    """The run did what it never may; `what` is "lost" or "twice", or else what the sentence
    says."""

    def __init__(self, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what = what


class JournalFollower(ABC):
    """`events` are all that were ever durable, the first at 0. `version` is the highest that was
    ever published, -1 for none. `resumed` are the versions that training started again from. What
    the events come to is a subclass's account."""

    def __init__(self, run: Path) -> None:
        self._journal = run / JOURNAL
        self.events: list[e.AnyEvent] = []
        self.version = -1
        self.resumed: list[int] = []
        self.redone: list[tuple[int, list[int]]] = []
        """Rollouts that had to be taken again when the last life began, and was not yet."""
        self._undone: set[int] = set()
        self._kept: list[tuple[int, int]] | None = None  # the snapshots that a dead run left

    @abstractmethod
    def compare(self, experience: Experience) -> None:
        """Raises Wrong where this is not what the events come to."""

    @abstractmethod
    def go_on(self, undone: Container[int]) -> None:
        """Begin the account of a life with what all events come to, but for those whose numbers
        (from 1) are undone; and know what is to be `redone`."""

    @abstractmethod
    def take(self, number: int, event: e.AnyEvent) -> None:
        """Take the next event into the account. Raises Wrong where it may never happen."""

    def look(self) -> int:
        """Take in what is new, and return how many events there are. Raises Wrong."""
        try:
            fresh = list(read(self._journal, len(self.events)))
        except (JournalError, OSError):
            if self._journal.exists() and self.events:
                raise
            return 0  # it is not there yet
        if fresh and self._kept is not None:
            self._begin(self._kept)
            self._kept = None
        for number, event in fresh:
            if number != len(self.events) + 1:
                raise Wrong("lost", f"event {number} follows event {len(self.events)}")
            self.take(number, event)
            if isinstance(event, e.Published):
                self.version = max(self.version, event.version)
            self.events.append(event)
        return len(self.events)

    def dead(self) -> None:
        """Nobody writes any more: take in what is left, and compare it with what the product makes
        of it. Raises Wrong."""
        self.look()
        if self._journal.exists():
            self.compare(self.folded())
            self._kept = SqliteHistory(self._journal).snapshots()

    def folded(self) -> Experience:
        """Fold, by the product's own code, as many events as were looked at; also while the run
        goes on."""
        history, seen = SqliteHistory(self._journal), len(self.events)
        after, experience = 0, Experience()
        for number, _ in [row for row in history.snapshots() if row[0] <= seen][-1:]:
            after, experience = number, Experience.of(history.snapshot(number))
        for _, event in itertools.islice(history.events(after), seen - after):
            experience.apply(event)
        return experience

    def _begin(self, kept: list[tuple[int, int]]) -> None:
        """A life begins: undo what it undoes, and compare with the state that it wrote down."""
        last, before = len(self.events), {version: number for number, version in kept}
        history = SqliteHistory(self._journal)
        if not (found := [version for number, version in history.snapshots() if number == last]):
            raise Wrong(
                "lost", f"a run went on after event {last}, and did not write down from what"
            )
        [version] = found
        self.resumed.append(version)
        self._undone.update(
            n
            for n in range(before.get(version, 0) + 1, last + 1)
            if isinstance(self.events[n - 1], TRAINING)
        )
        self.go_on(self._undone)
        self.compare(Experience.of(history.snapshot(last)))

    def refuse_other(self, number: int, taken: e.Taken) -> None:
        """Raises Wrong where a step takes other rollouts than have to be taken again first."""
        if self.redone and (due := self.redone.pop(0)) != (taken.step, taken.rollouts):
            raise Wrong(
                "twice",
                f"event {number} takes {taken.rollouts} for step {taken.step}, and {due} had to be "
                "taken again first",
            )


class Follower(JournalFollower):
    """Follows a run whose rollouts are responses of one turn."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.account = ReferenceState()

    def compare(self, experience: Experience) -> None:
        mine, tokens, rollouts = self.account, experience.ledger.tokens, experience.ledger.rollouts
        if not experience.ledger.balances():
            raise Wrong("lost", f"the ledger does not balance: {experience.ledger}")
        for what, counted, booked in (
            ("tokens generated", mine.tokens, tokens.total),
            ("tokens live", mine.tokens_live, tokens.live),
            ("tokens trained", mine.tokens_trained, tokens.trained),
            ("tokens discarded", dict(+mine.tokens_discarded), tokens.discarded),
            ("rollouts admitted", mine.admitted, rollouts.total),
            ("rollouts trained", mine.trained, rollouts.trained),
            ("rollouts live", sorted(mine.rollouts), sorted(experience.rollouts)),
            ("prompts", mine.cursor, experience.prompts["train"]),
        ):
            if counted != booked:
                raise Wrong("lost", f"{what}: {counted} by the events, {booked} by the run")
        for id, seen in mine.rollouts.items():
            theirs = experience.rollouts[id]
            if (seen.ids, seen.behaviour, seen.verdict) != (
                theirs.ids,
                theirs.behaviour,
                theirs.verdict,
            ):
                raise Wrong("lost", f"rollout {id} is not what its events say")

    def go_on(self, undone: Container[int]) -> None:
        self.account, self.redone = gone_on(self.events, undone)

    def take(self, number: int, event: e.AnyEvent) -> None:
        match event:
            case e.Trained(rollout) | e.Judged(rollout) if rollout not in self.account.rollouts:
                raise Wrong(
                    "twice",
                    f"event {number}: {event}, and that rollout was "
                    f"{self.account.ended.get(rollout, 'never admitted')}",
                )
            case e.Taken(step, rollouts):
                if gone := [id for id in rollouts if id not in self.account.rollouts]:
                    raise Wrong(
                        "twice",
                        f"event {number} takes rollouts {gone} for step {step}, and they have "
                        "ended",
                    )
                if again := [id for id in rollouts if self.account.rollouts[id].step is not None]:
                    raise Wrong(
                        "twice",
                        f"event {number} takes rollouts {again} for step {step}, and a step has "
                        "them",
                    )
                self.refuse_other(number, event)
            case e.Extended(rollout, _, _, start):
                held = len(self.account.rollouts[rollout].versions)
                if start != held:
                    raise Wrong(
                        "lost",
                        f"event {number}: rollout {rollout} goes on from token {start}, and "
                        f"{held} are journalled",
                    )
        self.account.apply(event)
