"""Sizes of groups: how many rollouts a prompt has at first, and whether a group grows.

Invariant: a group is asked about once all its members are judged or buried, and the rule sees what
the journal has of it; so a resumed run decides as it would have before the crash. No group is
larger than `rollout.group_size_max`, because keys of other groups begin there.
"""

from __future__ import annotations

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.config import Config
from asyncrl.config.asked_rules import first_size, grown_size
from asyncrl.config.flow import max_group_size
from asyncrl.config.selection_names import SIZINGS, grows
from asyncrl.config.strategies import blamed
from asyncrl.experience.events import Grown
from asyncrl.experience.group import Group
from asyncrl.experience.judged_members import judged_members


class GroupSizes:
    """The rule that `rollout.sizing` names. `most` is the size that no group exceeds."""

    def __init__(self, store: EventStore, config: Config) -> None:
        self._store, self._name = store, config.rollout.sizing
        self.most = max_group_size(config)
        with blamed("sizing", self._name):
            rule = SIZINGS.find(self._name)(config.rollout.group_size, self.most)
        self._rule = rule
        self._growing: GrowingSizing | None = rule if grows(rule) else None

    @property
    def grown_to(self) -> int:
        """`most` where groups may grow, else 0."""
        return self.most if self._growing is not None else 0

    def first(self, prompt_index: int) -> int:
        """Rollouts with which the next group of a prompt starts. Raises StrategyError for an
        invalid number, or one beyond `most`."""
        history = self._store.experience.history
        return first_size(self._name, self._rule, history, prompt_index, self.most)

    def decide(self) -> None:
        """Decide for each group whose members are all judged or buried whether it grows. Raises
        StrategyError for an invalid number, or one below its present size or beyond `most`."""
        experience = self._store.experience
        for group in experience.undecided():
            size = self._grown(group)
            self._store.record(Grown(group.id, size, experience.next_rollout))

    def _grown(self, group: Group) -> int:
        """Rollouts that a group is to have. One without a reward does not grow, nor does one that
        was admitted under another rule."""
        present, members = len(group.members), judged_members(group)
        if self._growing is None or not members:
            return present
        facts = GrowingGroup(present, members, group.prompt_facts)
        return grown_size(self._name, self._growing, facts, min(self.most, group.most))
