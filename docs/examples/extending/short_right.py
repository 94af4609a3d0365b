"""short_right.py: the shortest right answers, and any of the others."""

import random
from collections.abc import Sequence

from asyncrl.algorithms.selection.judged_group import JudgedMember


class ShortRight:
    """Half of the right answers, the shortest first, and as many of the others as are missing."""

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        right = [at for at, member in enumerate(members) if member.right]
        others = [at for at, member in enumerate(members) if not member.right]
        short = sorted(right, key=lambda at: members[at].tokens)[: (len(right) + 1) // 2]
        return (short + draw.sample(others, len(others)))[:count]
