"""Eligibility of finished work: what can be trained, and why the rest is dropped. Invariant: a
token over `max_lag` enters a loss only where `on_stale` is `train`, and finished work that cannot
be trained is dropped under its reason.

    no_verdict       a rollout that the verifier could not judge
    k_min            a group with fewer than `k_min` verdicts; a rollout of a complete group with
                     fewer than `k_min` others to be compared with
    zero_variance    a group whose rewards are all equal, where that is no signal (with
                     a credit by turn, its returns at every turn); a rollout whose reward is
                     its baseline; another filter drops under its own name
    stale            too old for the step, by any token; where old tokens are masked, by all
    truncated        cut at the budget, all of it, where such responses are masked

A filter sees the whole group. Of what passes, `train.keep` chooses members, and the rest is looked
at as if the group had no others: where a filter drops equal rewards it drops those, too, and only
tokens that would be trained are too old. The members that are left out leave with what is taken,
as `not_chosen`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.algorithms.advantages.baseline import Prior, shrunk
from asyncrl.algorithms.advantages.credit import compared
from asyncrl.algorithms.selection.judged_group import JudgedGroup
from asyncrl.algorithms.selection.keep import KeepAll
from asyncrl.config import Config
from asyncrl.config.asked_rules import kept_places
from asyncrl.config.flow import max_lag
from asyncrl.config.losses import credit_of, filter_of, keep_of
from asyncrl.config.plugins import without_folder
from asyncrl.config.strategies import blamed
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.events import AnyEvent, Discarded, Dropped
from asyncrl.experience.group import Group
from asyncrl.experience.judged_members import judged_members
from asyncrl.experience.rollout import Rollout
from asyncrl.explain.response_sums import ResponseSums
from asyncrl.messages import Scored
from asyncrl.staleness.lag import rollout_lag


class Eligibility:
    """Check of finished work, and record of dropped work.

    `filtered` counts the units without a signal since the last one that was taken. `responses` are
    sums over the work that was checked since the last step, trained or not; `by_task` has them for
    each of several tasks.
    """

    def __init__(
        self,
        store: EventStore,
        config: Config,
        label: Callable[[int], str] = lambda prompt_index: "",
    ) -> None:
        """`label(prompt_index)` names a prompt's task if there are several."""
        self._store = store
        self._label = label
        self._config = config
        self._filter, self._credit = filter_of(config), credit_of(config.train)
        self._keep = keep_of(config.train)
        self._kept: dict[int, list[int]] = {}  # members chosen of groups that wait, by position
        self.filtered = 0
        self.responses = ResponseSums()
        self.by_task: dict[str, ResponseSums] = {}

    def take(self, rollouts: list[Rollout], left_out: Iterable[Rollout] = ()) -> None:
        """Record that these rollouts are trained, and that others of their groups are not."""
        self.filtered = 0
        for rollout in rollouts:
            self._kept.pop(rollout.group, None)
        self._look([*rollouts, *left_out])

    def keep_group(self, group: Group, step: int) -> list[Rollout]:
        """Return the members of a complete group that `step` trains; none if it can train none,
        which drops the group."""
        rollout, restart = self._config.rollout, self._config.staleness.on_stale == "restart"
        if sum(member.own for member in group.scored) < rollout.k_min:
            self._remove(Dropped(group.id, "k_min"), group.scored, filtered=True)
            return []
        if not self._passes(group):
            return self._filter_out(group)
        chosen = self._chosen(group)
        if self._filter.drops_equal and not self._differ(group, chosen):
            return self._filter_out(group)
        own = [member for member in chosen if member.own]  # the rest is masked by its age
        if own and self._stale(own, step):
            self._remove(Dropped(group.id, "stale", restart=restart), group.scored)
        elif self._cut(chosen):
            self._remove(Dropped(group.id, "truncated"), group.scored, filtered=True)
        else:
            return chosen
        return []

    def keep_rollout(self, group: Group, rollout: Rollout, step: int) -> bool:
        """Return True if `step` can train a judged rollout by itself. Else discard it, unless other
        verdicts of its group are still to come."""
        if not isinstance(rollout.verdict, Scored):
            self._remove(Discarded(rollout.id, "no_verdict"), [])
            return False
        if len(group.others(rollout)) < self._config.rollout.k_min:
            if group.complete:
                self._remove(Discarded(rollout.id, "k_min"), [rollout], filtered=True)
        elif not self._passes_alone(group, rollout, rollout.verdict.reward):
            reason = without_folder(self._config.rollout.filter)
            self._remove(Discarded(rollout.id, reason), [rollout], filtered=True)
        elif self._stale([rollout], step):
            self._remove(Discarded(rollout.id, "stale"), [rollout])
        elif self._cut([rollout]):
            self._remove(Discarded(rollout.id, "truncated"), [rollout], filtered=True)
        else:
            return True
        return False

    def drop_unjudged(self) -> None:
        """Drop complete groups of which no member has a verdict: all were buried."""
        for group in self._store.experience.ready():
            if not any(member.status is RolloutStatus.JUDGED for member in group.members):
                self._remove(Dropped(group.id, "k_min"), [], filtered=True)

    def _remove(self, event: AnyEvent, rollouts: list[Rollout], *, filtered: bool = False) -> None:
        """Record that these rollouts are dropped; `filtered` if they had no signal."""
        self.filtered += filtered
        if isinstance(event, Dropped):
            self._kept.pop(event.group, None)
        self._look(rollouts)
        self._store.record(event)

    def _look(self, rollouts: list[Rollout]) -> None:
        """Add these rollouts to the sums, in all and by task, without foreign ones."""
        rollouts = [rollout for rollout in rollouts if rollout.own]
        self.responses = self.responses.merge(ResponseSums.of(rollouts))
        for rollout in rollouts:
            group = self._store.experience.groups[rollout.group]
            if label := self._label(group.prompt_index):
                sums = self.by_task.get(label, ResponseSums())
                self.by_task[label] = sums.merge(ResponseSums.of([rollout]))

    def _filter_out(self, group: Group) -> list[Rollout]:
        """Drop a group that the filter leaves out. Returns that nothing of it is trained."""
        reason = without_folder(self._config.rollout.filter)
        self._remove(Dropped(group.id, reason), group.scored, filtered=True)
        return []

    def _passes(self, group: Group) -> bool:
        """Return True if a group passes the filter."""
        facts = group.facts
        with blamed("credit", self._config.train.credit):
            returns = compared(self._credit, facts.rewards, facts.turns, facts.above)
        with blamed("filter", self._config.rollout.filter):
            return self._filter.keeps(
                JudgedGroup(facts.rewards, returns, facts.parts, facts.lengths)
            )

    def _differ(self, group: Group, chosen: list[Rollout]) -> bool:
        """Return True if the chosen members that advantages compare have different rewards, or are
        all members, which the filter has checked."""
        facts = group.facts_of(chosen)
        if len(facts.rewards) == len(group.rewards):
            return True
        with blamed("credit", self._config.train.credit):
            columns = compared(self._credit, facts.rewards, facts.turns, facts.above)
        return any(min(column) != max(column) for column in columns)

    def _chosen(self, group: Group) -> list[Rollout]:
        """The members that are trained, as `train.keep` chooses them. The rule is asked once about
        a group in each life, and its draws depend on the seed and the group's place in the data, so
        a later life gets the same choice. Raises StrategyError for an invalid choice."""
        scored = group.scored
        if isinstance(self._keep, KeepAll):
            return scored
        if (places := self._kept.get(group.id)) is None:
            name, wanted = self._config.train.keep, self._config.train.keep_members
            draw = random.Random(f"{self._config.run.seed}/keep/{group.key}")
            places = kept_places(name, self._keep, judged_members(group), wanted, draw)
            self._kept[group.id] = places
        return [scored[place] for place in places]

    def _passes_alone(self, group: Group, rollout: Rollout, reward: float) -> bool:
        """Return True if a rollout that is trained alone passes the filter."""
        with blamed("filter", self._config.rollout.filter):
            return self._filter.keeps_alone(reward, baseline(group, rollout, self._config))

    def _cut(self, rollouts: list[Rollout]) -> bool:
        """Return True if no token of the rollouts would enter the loss, because all were cut at
        their budget."""
        return self._config.rollout.truncated == "mask" and all(r.truncated for r in rollouts)

    def _stale(self, rollouts: list[Rollout], step: int) -> bool:
        """Return True if the rollouts are too old for `step`.

        Example: with `max_lag` 2 a rollout of versions 3, 4 and 5 is stale for step 6 by its tokens
        of version 3 (lag 3). Where old tokens are masked it is not: it is stale for step 8, when
        the youngest have a lag of 3.
        """
        most, on_stale = max_lag(self._config), self._config.staleness.on_stale
        if on_stale == "mask":
            return all(
                step - max((span.version for span in rollout.spans), default=step) > most
                for rollout in rollouts
            )
        return any(rollout_lag(rollout.spans, step) > most for rollout in rollouts)


def baseline(group: Group, rollout: Rollout, config: Config) -> float:
    """Return the baseline of a rollout that is trained alone: the mean over the first `k_min`
    judged of the others and over earlier visits to the prompt. It does not depend on the rollout
    itself (`asyncrl.algorithms.advantages.baseline`)."""
    return shrunk(
        group.others(rollout), config.rollout.k_min, Prior(*group.prior), config.train.prior_visits
    )
