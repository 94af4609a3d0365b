"""Forks of rollouts while they are generated: a rule is asked about each (`rollout.fork`).

Invariant: a rollout is asked about at each `rollout.fork_after` tokens of its response, one place
after another, by the journalled tokens before that place alone, whether or not it went on since.
What it may give away is its own, so no answer depends on another rollout, or on the time. So a kill
at any moment leaves rollouts of which the resumed run asks again, and gets the same answers. A
rollout whose response is complete is told that it forks no more; before that its group is not.
"""

from __future__ import annotations

from array import array

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.algorithms.selection.fork import ForkPoint
from asyncrl.config import Config
from asyncrl.config.selection_names import FORKS
from asyncrl.config.strategies import StrategyError, blamed
from asyncrl.experience.call import Call
from asyncrl.experience.events import Forked
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout


class Forking:
    """The rule that `rollout.fork` names."""

    def __init__(self, store: EventStore, config: Config) -> None:
        rollout = config.rollout
        self._store, self._name, self._every = store, rollout.fork, rollout.fork_after
        with blamed("fork rule", self._name):
            self._rule = FORKS.find(self._name)(self._every)
        self._on = rollout.fork != "off"
        # rollouts that have got tokens; at first those that another life may have left open
        self._extended = set(store.experience.calls) if self._on else set[int]()
        self._asked: dict[int, int] = {}  # the last place that a rollout was asked about

    def extended(self, call: Call) -> None:
        """A call has got tokens."""
        if self._on:
            self._extended.add(call.id)

    def decide(self) -> None:
        """Ask about each rollout that is due, and fork those that the rule chooses. Raises
        StrategyError for an invalid answer."""
        experience = self._store.experience
        due = self._extended.union(rollout.id for rollout in experience.unsettled())
        self._extended = set()
        for number in sorted(due):
            rollout = experience.rollouts.get(number)
            if rollout is not None and rollout.forks:
                self._ask(experience.groups[rollout.group], rollout)
        if len(self._asked) > 2 * len(experience.calls):
            self._asked = {n: at for n, at in self._asked.items() if n in experience.calls}

    def _ask(self, group: Group, rollout: Rollout) -> None:
        start = rollout.shared_tokens
        end = start + rollout.tokens
        asked = self._asked.get(rollout.id, _last_place(group, rollout))
        places = range(asked // self._every * self._every + self._every, end, self._every)
        if places:  # else its tokens are not copied: it may have got a few since
            ids = array("i", rollout.shared + bytes(rollout.ids))
            logprobs = array("f", bytes(rollout.behaviour))
        for at in places:
            point = ForkPoint(ids[:at], logprobs[: at - start], group.prompt_facts)
            with blamed("fork rule", self._name):
                forks = self._rule.forks(point)
            if not isinstance(forks, bool):
                raise StrategyError(
                    f"the fork rule {self._name!r} says {forks!r} of a rollout of prompt "
                    f"{group.prompt_index} after {at} tokens; return True or False, and resume the "
                    "run."
                )
            self._asked[rollout.id] = at
            if forks:
                self._record(rollout, at)
            if not rollout.forks:
                return
        if rollout.sealed:
            self._record(rollout, 0)

    def _record(self, rollout: Rollout, at: int) -> None:
        self._store.record(Forked(rollout.id, at, self._store.experience.next_rollout))


def _last_place(group: Group, rollout: Rollout) -> int:
    """The last place where a rollout forked or began as a fork; 0 for neither."""
    forks = [member.shared_tokens for member in group.members if member.parent == rollout.id]
    return max(forks, default=rollout.shared_tokens)
