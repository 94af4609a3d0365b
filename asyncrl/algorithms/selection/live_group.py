"""A group during generation, as rules see it. Invariant: everything comes from the journal, so a
resumed run shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from asyncrl.algorithms.selection.beginnings import Beginning, JudgedBeginning, beginning
from asyncrl.messages import PromptFacts

State = Literal["live", "sealed", "judged", "ended"]


class LiveMember(NamedTuple):
    """A member of a group, as rules see it: `live` is still generated, `sealed` is complete,
    `judged` has its verdict, `ended` failed or was ended by a rule. It has `tokens` so far. `ids`
    (`int32`) and `behaviour` (`float32`, log-probabilities) are of as many of its first tokens as
    the question is about; `asked`: it was asked about before. `reward` and `right` are of one with
    a reward.

    >>> LiveMember("judged", tokens=12, reward=1.0, right=True).asked
    False
    """

    state: State
    tokens: int = 0
    ids: bytes = b""
    behaviour: bytes = b""
    asked: bool = False
    reward: float | None = None
    right: bool = False


class LiveGroup(NamedTuple):
    """A group; a rule is asked about its member at position `asked`. `prompt` is what was known of
    the prompt at the group's admission, `judged` the last responses of any prompt whose end is
    known, out of `judged_count` in all.

    >>> LiveGroup([LiveMember("judged", 12), LiveMember("live", 4)], asked=1).member.state
    'live'
    """

    members: Sequence[LiveMember]
    asked: int
    prompt: PromptFacts = PromptFacts()
    judged: Sequence[JudgedBeginning] = ()
    judged_count: int = 0

    @property
    def member(self) -> LiveMember:
        """The one that is asked about."""
        return self.members[self.asked]

    def beginning(self, member: LiveMember) -> Beginning:
        """The beginning of a member's response."""
        return beginning(member.ids, member.behaviour, self.prompt.solve_rate)
