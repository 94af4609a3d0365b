"""A run's account, kept from its events alone. Invariant: it shares no code with `asyncrl.experience`, and is written to be read, not to be
fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Purpose, Scored
from asyncrl.simulation import policy


class Seen:
    """One rollout, as the events tell it."""

    __slots__ = (
        "attempt", "before", "behaviour", "failures", "group", "id", "ids", "key", "lease", "owner", "sealed", "step", "verdict", "versions"
    )  # fmt: skip

    def __init__(self, id: int, group: Group, key: int) -> None:
        self.id, self.group, self.key = id, group, key
        self.ids, self.behaviour = bytearray(), bytearray()
        self.versions: list[int] = []
        self.attempt, self.owner, self.sealed = 0, "", False
        self.lease = self.before = self.failures = 0  # the number of its last lease, the tokens it had then, its failed attempts
        self.verdict: Scored | NoVerdict | None = None
        self.step: int | None = None

    def spans(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for index, version in enumerate(self.versions):
            if found and found[-1][0] == version:
                found[-1] = version, found[-1][1], index + 1
            else:
                found.append((version, index, index + 1))
        return found


class Group:
    """One group, as the events tell it; `step` is the one that has taken it."""

    __slots__ = ("event", "members", "step")

    def __init__(self, event: e.Admitted) -> None:
        self.event = event
        self.members = range(event.first, event.first + event.size)
        self.step: int | None = None


class Account:
    """What is live, what became of the rest, and what is due next.

    `cursor` counts the prompts admitted, `again` are the stale groups whose prompts start again, with their items. `touched` are the
    rollouts that events named since it was last cleared.
    """

    def __init__(self) -> None:
        self.rollouts: dict[int, Seen] = {}
        self.groups: dict[int, Group] = {}
        self.ended: dict[int, str] = {}
        self.tokens = self.tokens_trained = self.admitted = self.trained = 0
        self.tokens_discarded: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self.buried: Counter[Purpose] = Counter()
        self.cursor = self.leases = 0
        self.again: dict[int, int] = {}
        self.published: int | None = None
        self.touched: set[int] = set()

    @property
    def groups_live(self) -> int:
        """Training groups that are not over."""
        return sum(group.event.purpose == "train" for group in self.groups.values())

    @property
    def tokens_live(self) -> int:
        return sum(len(seen.versions) for seen in self.rollouts.values())

    @property
    def queue(self) -> tuple[int, int]:
        """Training rollouts that are complete and that no step has, and their bytes."""
        queued = [seen for seen in self.rollouts.values() if seen.sealed and seen.step is None and seen.group.event.purpose == "train"]
        return len(queued), 8 * sum(len(seen.versions) for seen in queued)

    def members(self, group: Group) -> list[Seen]:
        """Those that have not ended."""
        return [self.rollouts[id] for id in group.members if id in self.rollouts]

    def complete(self, group: Group) -> bool:
        """Whether nothing more is to come for it, and no step has it."""
        return group.step is None and all(seen.verdict is not None for seen in self.members(group))

    def rewards(self, group: Group) -> list[float]:
        """Of the members that have one."""
        return [seen.verdict.reward for seen in self.members(group) if isinstance(seen.verdict, Scored)]

    def untake(self, id: int) -> None:
        """What took this rollout is undone."""
        if (seen := self.rollouts.get(id)) is not None:
            seen.step = seen.group.step = None

    def apply(self, event: e.AnyEvent) -> None:
        """Take the event in."""
        match event:
            case e.Admitted():
                group = self.groups[event.group] = Group(event)
                for member, id in enumerate(group.members):
                    self.rollouts[id] = Seen(id, group, policy.key(event.purpose, event.item, member))
                self.admitted += event.size
                if event.restarts is not None:
                    self.again.pop(event.restarts, None)
                elif event.purpose == "train":
                    self.cursor += 1
            case e.Leased():
                seen = self.rollouts[event.rollout]
                self.leases += 1
                seen.owner, seen.attempt = event.owner, event.attempt
                seen.lease, seen.before = self.leases, len(seen.versions)
            case e.Extended():
                seen = self.rollouts[event.rollout]
                seen.ids += event.ids
                seen.behaviour += event.behaviour
                count = len(event.ids) // 4
                seen.versions += [event.version] * count
                self.tokens += count
            case e.Sealed():
                seen = self.rollouts[event.rollout]
                seen.owner, seen.sealed = "", True
            case e.Recycled():
                seen = self.rollouts[event.rollout]
                seen.owner, seen.failures = "", seen.failures + event.failed
            case e.Buried():
                self.buried[self.rollouts[event.rollout].group.event.purpose] += 1
                self._end(event.rollout, event.reason)
            case e.Late():
                self.tokens += event.tokens
                self.tokens_discarded["late"] += event.tokens
            case e.JudgedAs():
                self.rollouts[event.rollout].verdict = event.verdict
            case e.Taken():
                for group in {id: self.rollouts[id].group for id in event.rollouts}.values():
                    group.step = event.step
                    for seen in self.members(group):
                        seen.step = event.step
                        if isinstance(seen.verdict, NoVerdict):
                            self._end(seen.id, "no_verdict")
            case e.Trained():
                self.tokens_trained += event.trained
                self.tokens_discarded.update(event.discarded)
                self.trained += event.trained > 0
                if not event.trained:
                    self.discarded[max(event.discarded, key=lambda reason: event.discarded[reason], default="empty")] += 1
                self.rollouts.pop(event.rollout)
                self.ended[event.rollout] = "trained"
            case e.Dropped():
                group = self.groups.pop(event.group)
                for seen in self.members(group):
                    self._end(seen.id, event.reason)
                    self.touched.add(seen.id)
                if event.again:
                    self.again[event.group] = group.event.item
            case e.Published():
                self.published = event.version
                for number in [n for n, group in self.groups.items() if group.step is not None and group.step < event.version]:
                    del self.groups[number]
            case e.Checkpointed():
                pass
        self.touched.update([event.rollout] if hasattr(event, "rollout") else getattr(event, "rollouts", ()))

    def _end(self, id: int, reason: str) -> None:
        seen = self.rollouts.pop(id)
        self.ended[id] = f"discarded as {reason}"
        self.discarded[reason] += 1
        if seen.versions:
            self.tokens_discarded[reason] += len(seen.versions)


def gone_on(events: Sequence[e.AnyEvent], undone: Container[int]) -> tuple[Account, list[tuple[int, list[int]]]]:
    """The account that a life begins with: of `events` but those whose numbers (from 1) are undone, and with nothing taken; and what has to
    be taken again, by step."""
    account, due = Account(), list[tuple[int, list[int]]]()
    for number, event in enumerate(events, 1):
        if number not in undone:
            account.apply(event)
    for event in events:
        if isinstance(event, e.Taken) and event.rollouts[0] in account.rollouts:
            for id in event.rollouts:
                account.untake(id)
            if (event.step, event.rollouts) not in due:
                due.append((event.step, event.rollouts))
    return account, sorted(due, key=lambda taking: taking[0])
