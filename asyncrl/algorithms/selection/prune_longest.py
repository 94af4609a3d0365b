"""DART's cap of a response's length: that of the longest right answer to the prompt so far."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.selection.live_group import LiveGroup
from asyncrl.algorithms.selection.prune import Ending, PruneRule


class Longest(PruneRule):
    """A rollout that is asked about with as many tokens as the longest right answer that its prompt
    had when the group was admitted, or more, is cut there, judged and trained. A prompt without a
    right answer has no cap.

    The gradient is that of the task with this cap, without bias, where chunks of engines end at the
    tokens at which it is asked. But no right answer beyond the cap can ever raise it: it stays near
    the length of the first ones.

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> from asyncrl.messages import PromptFacts
    >>> of_66 = LiveMember("live", 66, bytes(4 * 64))
    >>> Longest(0.5).ends(LiveGroup([of_66], 0, PromptFacts(longest=50)))
    Ending(reason='longest', kept=64, chance=0.0)
    """

    kind: ClassVar[str] = "longest"

    def __init__(self, share: float) -> None: ...

    def ends(self, group: LiveGroup) -> Ending | None:
        tokens, cap = len(group.member.ids) // 4, group.prompt.longest
        return Ending("longest", kept=tokens) if 0 < cap <= tokens else None
