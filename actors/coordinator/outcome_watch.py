"""Watches the outcomes of answers, groups, agents' calls and attempts. Pure: it is told of each
event.

Invariant: it holds the last LAST of each kind, however long the run is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Literal

from asyncrl.experience import events as e
from asyncrl.experience.group import Group
from asyncrl.experience.state import ExperienceState
from asyncrl.explain.recent_outcomes import RecentOutcomes
from asyncrl.messages import Scored

LAST = 256
"""Events of a kind that are looked at."""
TOOLS = 64
"""Characters of a tool's name."""
NOT_FILTERED = frozenset({"stale", "no_verdict", "k_min", "truncated", "not_chosen"})
"""Reasons other than a filter's why a judged rollout or group is dropped."""

Fate = Literal["taken", "too_easy", "too_hard", "equal"]


class OutcomeWatch:
    """Outcomes of the last events. `hear` comes before an event is applied.

    >>> from asyncrl.experience.experience import Experience
    >>> watch, experience = OutcomeWatch(), Experience()
    >>> for event in (
    ...     e.Admitted(0, 0, 1, "train", 5, bytes(4), 16, played=True),
    ...     e.Begun(0, "agents-0", 1),
    ...     e.Left(0, 1, "timeout", failed=True),
    ... ):
    ...     watch.hear(event, experience)
    ...     experience.apply(event)
    >>> watch.recent.attempts, watch.recent.failed_attempts
    (1, {'timeout': 1})
    """

    def __init__(self) -> None:
        self._rewards = deque[tuple[float, bool]](maxlen=LAST)
        self._groups = dict[int, Fate]()
        self._calls = dict[int, str]()
        self._attempts = deque[str](maxlen=LAST)
        self._counted: RecentOutcomes | None = None  # while nothing has come since

    def hear(self, event: e.AnyEvent, state: ExperienceState) -> None:
        """Note an event that is about to be applied to `state`."""
        if (note := _NOTES.get(type(event))) is not None:
            note(self, event, state)
            self._counted = None

    @property
    def recent(self) -> RecentOutcomes:
        """Counts over the last of each kind."""
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def _count(self) -> RecentOutcomes:
        rewards, fates = [reward for reward, _ in self._rewards], Counter(self._groups.values())
        return RecentOutcomes(
            rewards=len(rewards),
            zeros=sum(reward <= 0 for reward in rewards),
            reward=sum(rewards) / len(rewards) if rewards else None,
            exact=sum(exact for _, exact in self._rewards) / len(rewards) if rewards else None,
            groups=len(self._groups),
            too_easy=fates["too_easy"],
            too_hard=fates["too_hard"],
            equal=fates["equal"],
            calls=len(self._calls),
            failed_tools=_counts(self._calls.values()),
            attempts=len(self._attempts),
            failed_attempts=_counts(self._attempts),
        )

    def _judged(self, event: e.Judged, state: ExperienceState) -> None:
        rollout = state.rollouts.get(event.rollout)
        if rollout is None or not rollout.own or state.groups[rollout.group].split != "train":
            return
        if isinstance(verdict := event.verdict, Scored):
            self._rewards.append((verdict.reward, verdict.exact))

    def _discarded(self, event: e.Discarded, state: ExperienceState) -> None:
        rollout = state.rollouts.get(event.rollout)
        if rollout is not None and event.reason not in NOT_FILTERED:
            group = state.groups[rollout.group]
            _put(self._groups, group.id, _fate(group))

    def _dropped(self, event: e.Dropped, state: ExperienceState) -> None:
        group = state.groups.get(event.group)
        if group is not None and group.split == "train" and event.reason not in NOT_FILTERED:
            _put(self._groups, group.id, _fate(group))

    def _taken(self, event: e.Taken, state: ExperienceState) -> None:
        for number in event.rollouts:
            if (rollout := state.rollouts.get(number)) is not None:
                _put(self._groups, rollout.group, "taken")

    def _answered(self, event: e.Answered, state: ExperienceState) -> None:
        _put(self._calls, event.call, "")

    def _tool_failed(self, event: e.ToolFailed, state: ExperienceState) -> None:
        if event.call in self._calls:
            self._calls[event.call] = event.tool[:TOOLS]

    def _sealed(self, event: e.Sealed, state: ExperienceState) -> None:
        rollout = state.rollouts.get(event.rollout)
        if rollout is not None and rollout.episode is not None:
            self._attempts.append("")

    def _left(self, event: e.Left, state: ExperienceState) -> None:
        if event.failed:
            self._attempts.append(event.reason)

    def _buried(self, event: e.Buried, state: ExperienceState) -> None:
        rollout = state.rollouts.get(event.rollout)
        if rollout is not None and rollout.episode is not None:
            self._attempts.append(event.reason)


_NOTES: dict[type, Callable[[OutcomeWatch, Any, ExperienceState], None]] = {
    e.Judged: OutcomeWatch._judged,
    e.Discarded: OutcomeWatch._discarded,
    e.Dropped: OutcomeWatch._dropped,
    e.Taken: OutcomeWatch._taken,
    e.Answered: OutcomeWatch._answered,
    e.ToolFailed: OutcomeWatch._tool_failed,
    e.Sealed: OutcomeWatch._sealed,
    e.Left: OutcomeWatch._left,
    e.Buried: OutcomeWatch._buried,
}


def _put(last: dict[int, Any], number: int, value: Any) -> None:
    """Note a number's first outcome, and forget the oldest ones beyond the limit."""
    last.setdefault(number, value)
    if len(last) > LAST:
        del last[next(iter(last))]


def _fate(group: Group) -> Fate:
    verdicts = [m.verdict for m in group.own_members if isinstance(m.verdict, Scored)]
    if all(verdict.exact for verdict in verdicts):
        return "too_easy"
    if all(verdict.reward <= 0 for verdict in verdicts):
        return "too_hard"
    return "equal"


def _counts(names: Any) -> dict[str, int]:
    """Counts of the names, the most frequent first."""
    return dict(Counter(filter(None, names)).most_common())
