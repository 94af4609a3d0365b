"""Ends of rollouts before their response is complete: a rule is asked about each (`rollout.prune`).

Invariant: a rollout is asked about at most once for each `rollout.prune_after` of its tokens, by
what the journal has then, and each answer is one event. So a kill at any moment leaves rollouts of
which the resumed run asks again, with the same answer, and no answer that is half given. The last
`rollout.k_min` members of a group go on (one more where rollouts are trained alone): with fewer
nothing of it could be trained.
"""

from __future__ import annotations

import re

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.algorithms.selection.prune import Ending, NoPruning, goes_on
from asyncrl.config import Config
from asyncrl.config.selection_names import PRUNES
from asyncrl.config.strategies import StrategyError, blamed
from asyncrl.experience.call import Call, RolloutStatus
from asyncrl.experience.events import Pruned, Spared
from asyncrl.experience.group import Group
from asyncrl.experience.live_members import live_group
from asyncrl.experience.rollout import Rollout

REASON = re.compile(r"[a-z][a-z_]{0,31}")
"""Reasons that a rule may give."""


class Pruning:
    """The rule that `rollout.prune` names."""

    def __init__(self, store: EventStore, reclaiming: Reclaiming, config: Config) -> None:
        rollout = config.rollout
        self._store, self._reclaiming = store, reclaiming
        self._name, self._after = rollout.prune, rollout.prune_after
        self._weighs = rollout.prune_weight == "inverse"
        self._least = rollout.k_min + (config.train.unit == "rollout")
        self._seed = config.run.seed
        with blamed("prune rule", self._name):
            self._rule = PRUNES.find(self._name)(rollout.prune_share)
        self._on = not isinstance(self._rule, NoPruning) and not config.agent.run
        # rollouts that have got tokens; at first those that another life may have left open
        self._grown = set(store.experience.calls) if self._on else set[int]()

    def extended(self, call: Call) -> None:
        """A call has got tokens."""
        if self._on:
            self._grown.add(call.id)

    def decide(self) -> None:
        """Ask about each rollout that is due, and end those of which the rule says so. Raises
        StrategyError for an answer that cannot be."""
        experience = self._store.experience
        grown, self._grown = sorted(self._grown), set()
        for number in grown:
            rollout = experience.calls.get(number)
            if isinstance(rollout, Rollout) and (tokens := self._due(rollout)):
                self._ask(experience.groups[rollout.group], rollout, tokens)

    def _due(self, rollout: Rollout) -> int:
        """The tokens about which the rule is asked now; 0: about none."""
        tokens = rollout.tokens // self._after * self._after
        train = self._store.experience.groups[rollout.group].split == "train"
        return tokens if train and tokens > rollout.looked else 0

    def _ask(self, group: Group, rollout: Rollout, tokens: int) -> None:
        facts = live_group(group, rollout, tokens, self._store.experience.history)
        with blamed("prune rule", self._name):
            ending = self._rule.ends(facts)
        if ending is not None:
            self._refuse_wrong(ending, group, rollout)
        if ending is None or (not ending.kept and self._last(group)):
            self._store.record(Spared(rollout.id, tokens, 1.0))
            return
        key = group.key + group.place_of(rollout.id)
        if ending.chance and goes_on(ending.chance, self._seed, key, tokens):
            self._store.record(Spared(rollout.id, tokens, ending.chance))
            return
        self._reclaiming.let_go(rollout)
        self._store.record(Pruned(rollout.id, f"pruned_{ending.reason}", ending.kept))

    def _last(self, group: Group) -> bool:
        """True if no member of a group may be ended with nothing kept."""
        left = sum(member.status is not RolloutStatus.BURIED for member in group.members)
        return left <= self._least

    def _refuse_wrong(self, ending: object, group: Group, rollout: Rollout) -> None:
        """Raise StrategyError for an answer that is none, or that has no weight."""
        said = f"the prune rule {self._name!r} says {ending!r} of a rollout of prompt "
        said += f"{group.prompt_index} with {rollout.tokens} tokens"
        if not (
            isinstance(ending, Ending)
            and isinstance(ending.reason, str)
            and REASON.fullmatch(ending.reason)
            and type(ending.kept) is int
            and 0 <= ending.kept <= rollout.tokens
            and isinstance(ending.chance, float | int)
            and 0 <= ending.chance <= 1  # NaN is not
        ):
            raise StrategyError(
                f"{said}; return None, or an Ending with a reason of small letters, kept from 0 to "
                "its tokens and a chance from 0 to 1, and resume the run."
            )
        if self._weighs and not ending.chance:
            raise StrategyError(
                f"{said}, which has no chance to weigh by; return a chance over 0, or set "
                "rollout.prune_weight to none, and resume the run."
            )
