"""Holds sealed rollouts until no member of their group is generated any more.

Invariant: what is held is given out once, and as soon as its group has no member to come: each
other one is sealed, or has ended. A member waits no longer than its leases and failures last, which
are bounded, so a group does, too.
"""

from __future__ import annotations

from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.rollout import ENDED, Rollout
from asyncrl.experience.state import ExperienceState


class HeldGroups:
    """Groups that have sealed rollouts, and others to come."""

    def __init__(self, experience: ExperienceState) -> None:
        self._experience = experience
        self._held = set[int]()
        self._looked_for = dict[int, None]()  # those that may be whole, in the order of sealing
        self._ended = 0

    def hold(self, rollout: Rollout) -> None:
        """Hold a sealed rollout."""
        self._held.add(rollout.group)
        self._looked_for[rollout.group] = None

    def settled(self, rollout: Rollout) -> None:
        """Note that a rollout got its verdict in another way: its group may be waiting for no other
        one."""
        if rollout.group in self._held:
            self._looked_for[rollout.group] = None

    def whole(self) -> list[tuple[int, ...]]:
        """The rollouts, sealed and without a verdict, of each held group that has no member to
        come; it is not held any more."""
        ended = sum(self._experience.ledger.rollouts.discarded.values())
        if ended != self._ended:  # one may have been buried, of which nothing else tells
            self._ended = ended
            self._looked_for.update(dict.fromkeys(sorted(self._held)))
        found = list[tuple[int, ...]]()
        for number in self._looked_for:
            group = self._experience.groups.get(number)
            if group is None:  # it was dropped
                self._held.discard(number)
            elif group.settled and all(
                member.sealed or member.status in ENDED for member in group.members
            ):
                self._held.discard(number)
                sealed = (m for m in group.members if m.status is RolloutStatus.SEALED)
                found.append(tuple(member.id for member in sealed))
        self._looked_for.clear()
        return [question for question in found if question]
