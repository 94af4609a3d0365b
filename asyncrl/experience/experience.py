"""The heart: experience as a fold of events. Invariants 1-4 and 8: the ledger balances, a rollout
ends once and is trained at most once, arrays stay parallel, and folding the same events gives the
same state.

    events.py       what can happen
    state.py        the fields, and the questions: what is due
    transitions.py  what each event changes
    recovery.py     the state after a crash

`Experience.apply` returns nothing: queries of the state tell what is due next.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.experience import transitions
from asyncrl.experience.events import AnyEvent
from asyncrl.experience.state import ExperienceState


class Experience(ExperienceState):
    """The state, changed by events.

    Example: a prompt is admitted as a group of two rollouts, and both wait for a lease.

    >>> from asyncrl.experience.events import Admitted
    >>> experience = Experience()
    >>> experience.apply(Admitted(0, 0, 2, "train", 5, b"\\7\\0\\0\\0", 16))
    >>> [rollout.id for rollout in experience.to_lease("train", 9)]
    [0, 1]
    """

    def apply(self, event: AnyEvent) -> None:
        """Apply an event. Raises ImpossibleEvent, with the state unchanged, for an event that
        cannot have happened."""
        transitions.apply(self, event)


def fold(events: Iterable[AnyEvent]) -> Experience:
    """The state after these events. Raises ImpossibleEvent at the first that cannot have
    happened."""
    experience = Experience()
    for event in events:
        experience.apply(event)
    return experience
