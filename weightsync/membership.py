"""The processes of a publication's process group."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Membership(msgspec.Struct, frozen=True):
    """The processes of a collective: the trainer with rank 0, then `members` (indices of rollout
    actors) in their fixed order.

    Every change makes a new epoch, because a process group cannot change; an epoch's number is
    never used twice.
    """

    epoch: int = 0
    members: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        """Processes in the group, the trainer included."""
        return len(self.members) + 1

    def rank(self, member: int) -> int:
        """The member's rank, from 1. Raises ValueError when it is no member."""
        return self.members.index(member) + 1

    def joined(self, member: int) -> Membership:
        """With one more member. Raises ValueError when it is one already: a restarted member must
        leave before it joins again."""
        if member in self.members:
            raise ValueError(
                f"engine {member} is in epoch {self.epoch} already; it must leave before it "
                "joins again"
            )
        return Membership(self.epoch + 1, (*self.members, member))

    def left(self, member: int) -> Membership:
        """Without this member; the same membership if it is not one."""
        if member not in self.members:
            return self
        return Membership(self.epoch + 1, tuple(m for m in self.members if m != member))

    def only(self, members: Iterable[int]) -> Membership:
        """These of its members, in its order, in a new epoch.

        Example: of epoch 7 with members 0, 1, 2 and 3, `only([3, 1])` is epoch 8 with members 1
        and 3.
        """
        some = frozenset(members)
        return Membership(self.epoch + 1, tuple(m for m in self.members if m in some))

    def renewed(self) -> Membership:
        """The same members in a new epoch: after a failed publication, whose group may be
        broken."""
        return Membership(self.epoch + 1, self.members)
