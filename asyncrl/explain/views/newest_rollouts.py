"""The rollouts that ended last, the newest first, from the end of a journal. Invariant: what is
read grows with what is asked for and with what lives at a time, not with the journal.

Events are read from the last one back. An end comes first, and then what it is the end of, until
the group's admission, or until a snapshot has the group. Its events are then folded forward, by the
transitions of the run itself. A rollout that lives in a later snapshot did not end before it, as a
crash undid that end: it is given once, as it ended in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Literal

import msgspec

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import ENDED
from asyncrl.explain.views.seen_rollouts import EndOfRollout, SeenRollout, ending, seen
from asyncrl.journal import JournalReader, state

Numbered = tuple[int, e.AnyEvent]
Owner = tuple[Literal["rollout", "group"], int]
"""A rollout, an agent's call (both by their number), or a group."""


def newest_ended(
    history: JournalReader, forgotten: int, after: int = 0, until: int | None = None
) -> Iterator[tuple[int, SeenRollout]]:
    """The rollouts that ended after event `after`, and by event `until` (None: by the last one),
    each with the number of the event that ended it, the newest first; the events up to number
    `forgotten` are compacted away. It reads on as it is asked on. Raises JournalError, and
    ImpossibleEvent where events do not follow from one another."""
    if until is not None and until <= forgotten:
        return
    bases = [number for number, _ in history.snapshots() if number >= forgotten]
    if not forgotten:
        bases.insert(0, 0)
    later = set[int]()
    last = until
    for base in reversed(bases or [forgotten]):
        part = _Part(later, after)
        if until is not None and base >= until:  # only what lives there, so did not end before
            later |= part.begin(history.snapshot(base).groups if base else ())
            continue
        for number, event in history.backward(base, last):
            if number <= after and part.settled:
                return
            part.add(number, event)
            yield from part.known()
        if not part.settled or base > after:
            later |= part.begin(history.snapshot(base).groups if base else ())
        yield from part.known()
        last = base


def living(history: JournalReader) -> Iterator[SeenRollout]:
    """The rollouts that have not ended, by their numbers. It reads the last snapshot and the events
    since. Raises JournalError and ImpossibleEvent."""
    experience = state(history)
    for _, rollout in sorted(experience.rollouts.items()):
        yield seen(experience.groups[rollout.group], EndOfRollout(rollout, rollout.status.value))


class _Part:
    """The events behind a snapshot, or behind the journal's beginning. Rollouts `not_these`, and
    ends up to event `after`, are none of it."""

    def __init__(self, not_these: set[int], after: int) -> None:
        self._not_these = not_these
        self._after = after
        self._events = dict[Owner, list[Numbered]]()
        # what has ended, but has no beginning yet, with the number of its end; the newest first
        self._due = dict[Owner, int]()
        self._found = list[tuple[int, int, SeenRollout]]()
        # members that groups have grown by, whose group begins before
        self._grown = dict[int, list[int]]()
        self._forks = dict[int, list[int]]()  # of each rollout

    @property
    def settled(self) -> bool:
        """True if the beginning of all that has ended is known."""
        return not self._due

    def known(self) -> Iterator[tuple[int, SeenRollout]]:
        """Those that ended after all whose beginning is to come, the newest first."""
        while self._found:
            number, _, one = self._found[0]
            if self._due and -number < next(iter(self._due.values())):
                return
            heappop(self._found)
            yield -number, one

    def add(self, number: int, event: e.AnyEvent) -> None:
        """Add the event before all others."""
        match event:
            case e.Admitted(group, first, size):
                known = (n for kind, n in self._events if kind == "rollout")
                members = (  # a size may be any number
                    range(first, first + size)
                    if size <= len(self._events)
                    else [n for n in known if first <= n < first + size]
                )
                members = self._forked([*members, *self._grown.pop(group, ())])
                own = [("group", group), *_rollouts(members)]
                if (events := self._of(own)) is not None:
                    self._fold(_admitted(event), [(number, event), *events])
            case e.Forked(rollout, at, first):
                if at:
                    self._forks.setdefault(rollout, []).append(first)
                self._note(("rollout", rollout), number, event)
            case e.Grown(group, _, first):
                placed = {n for more in self._grown.values() for n in more}
                self._grown.setdefault(group, []).extend(
                    n  # all that were admitted later are known, so these are the group's
                    for kind, n in self._events
                    if kind == "rollout" and n >= first and n not in placed
                )
                self._note(("group", group), number, event)
            case e.Imported(group, first, answers):
                more = range(first, first + len(answers))
                self._grown.setdefault(group, []).extend(more)
                self._note(("group", group), number, event)
            case e.Called(rollout, _, call):
                events = self._events.pop(("rollout", call), [])
                self._events.setdefault(("rollout", rollout), []).extend(events)
                self._due.pop(("rollout", call), None)
                self._note(("rollout", rollout), number, event)
            case e.Taken(_, rollouts, left_out):  # those without a verdict end with it, too
                for owner in _rollouts([*rollouts, *left_out]):
                    self._note(owner, number, event, ends=True)
            case e.Trained() | e.Discarded() | e.Buried() | e.Pruned(kept=0):
                self._note(("rollout", event.rollout), number, event, ends=True)
            case e.Dropped(group):
                self._note(("group", group), number, event, ends=True)
            case e.Extended():
                lighter = msgspec.structs.replace(event, routing=b"") if event.routing else event
                self._note(("rollout", event.rollout), number, lighter)
            case e.Answered(call):
                self._note(("rollout", call), number, event)
            case (
                e.LateTokens()
                | e.RoutingKnown()
                | e.StoredForReplay()
                | e.Replayed()
                | e.Published()
                | e.Checkpointed()
            ):
                pass
            case _:
                self._note(("rollout", event.rollout), number, event)

    def begin(self, groups: Iterable[Group]) -> set[int]:
        """Begin with the groups of a snapshot; returns the rollouts of them that live there. Raises
        ImpossibleEvent where something has ended that has no beginning."""
        live = set[int]()
        for group in groups:
            calls = [call.id for m in group.members if m.episode for call in m.episode.calls]
            members = [*(m.id for m in group.members), *self._grown.pop(group.id, ())]
            members = self._forked(members)
            own = [("group", group.id), *_rollouts([*members, *calls])]
            live |= {member.id for member in group.members if member.status not in ENDED}
            if (events := self._of(own)) is not None:
                self._fold(_restored(group), events)
        for (kind, number), event in self._due.items():
            raise ImpossibleEvent(
                f"{kind} {number} ended by event {event}, and it was never admitted"
            )
        return live

    def _forked(self, members: Iterable[int]) -> list[int]:
        """These members of a group, and all that are forks of them."""
        found, left = list[int](), [*members]
        while left:
            found.append(left.pop())
            left += self._forks.pop(found[-1], ())
        return found

    def _note(self, owner: Owner, number: int, event: e.AnyEvent, *, ends: bool = False) -> None:
        self._events.setdefault(owner, []).append((number, event))
        kind, which = owner
        if ends and number > self._after and (kind == "group" or which not in self._not_these):
            self._due.setdefault(owner, number)

    def _of(self, owners: Iterable[Owner]) -> list[Numbered] | None:
        """The events of these, in order; None where none of them has ended."""
        found, ended = dict[int, e.AnyEvent](), False
        for owner in owners:
            found.update(self._events.pop(owner, ()))
            ended |= self._due.pop(owner, None) is not None
        return sorted(found.items(), key=lambda one: one[0]) if ended else None

    def _fold(self, experience: Experience, events: Iterable[Numbered]) -> None:
        """Fold the events of one group, and keep what ended by them."""
        failures = dict[int, list[str]]()
        for number, event in events:
            if isinstance(event, e.Called):
                experience.next_rollout = event.call  # others made those between
            if isinstance(event, e.Grown | e.Imported | e.Forked):
                experience.next_rollout = event.first
            if isinstance(
                event, e.Imported
            ):  # they are as old as versions of which nothing is here
                versions = (answer.version for answer in event.answers)
                experience.steps.closed = max(versions, default=0)
            if isinstance(event, e.Taken):
                event = _own(event, experience)
            if isinstance(event, e.Left) and event.failed:
                failures.setdefault(event.rollout, []).append(event.reason)
            for end in ending(experience, event):
                rollout = end.rollout
                if number > self._after and rollout.id not in self._not_these:
                    one = seen(experience.groups[rollout.group], end)
                    one = msgspec.structs.replace(one, failures=failures.get(rollout.id, []))
                    heappush(self._found, (-number, rollout.id, one))
            experience.apply(event)


def _rollouts(numbers: Iterable[int]) -> list[Owner]:
    return [("rollout", number) for number in numbers]


def _own(event: e.Taken, experience: Experience) -> e.Taken:
    """A taking without the rollouts of other groups."""
    return e.Taken(
        event.step,
        [number for number in event.rollouts if number in experience.rollouts],
        [number for number in event.left_out if number in experience.rollouts],
    )


def _admitted(event: e.Admitted) -> Experience:
    """The state in which a group is the next one that is admitted."""
    experience = Experience()
    experience.next_group, experience.next_rollout = event.group, event.first
    if event.restarts is not None:
        experience.restarts[event.restarts] = event.prompt_index
        experience.history.admit(event.prompt_index, 0)
    return experience


def _restored(group: Group) -> Experience:
    """The state of which a group is all that lives."""
    written = msgspec.structs.replace(Experience().snapshot(), groups=[group])
    written.history.admit(group.prompt_index, 0)
    return Experience.of(written)
