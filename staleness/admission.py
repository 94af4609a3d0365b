"""Admission: how many groups of rollouts may start, and the lag that follows from it.

A rule is a class (`AdmissionPolicy`). It has the limit of live groups, the largest lag that the
limit allows, and the settings that contradict it. `choose_policy` takes the first rule of
`POLICIES` that applies to the settings. The table before a run, the checks of run.toml and the
coordinator ask the same class, so none of them repeats the rule. docs/lag.md has the proof, and the
steps to add a rule.

No torch here: the configuration and the coordinator import this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

from asyncrl.algorithms.advantages.below import differ_below
from asyncrl.algorithms.advantages.rewards_to_go import differ_to_go
from asyncrl.algorithms.selection.prompt_history import Signal, with_signal

MAX_STARTS_PER_GROUP = 4
"""Groups started for one that has to pass the filter, at most, however few pass."""

RATE_OVER = 64
"""Finished groups that `pass_rate` is measured over."""

RATE_PRIOR = 4
"""Passed groups that are added to those: the rate is 1 before any has finished, and moves slowly at
first."""


class AdmissionSettings(NamedTuple):
    """Settings that a rule may read. A field has the name, unit and values of its setting in
    run.toml, but for `max_lag`, which is `sys.maxsize` where tokens of any age are trained, and
    `signal`, which is that of the credit.

    >>> AdmissionSettings(depth=1, batch_groups=16).overprovision
    1.0
    """

    depth: int
    batch_groups: int
    overprovision: float = 1.0
    window: int = 0
    max_lag: int = sys.maxsize
    on_stale: str = "mask"
    filter: str = "none"
    signal: Signal = "rewards"
    unit: str = "group"
    step_tokens: int = 0
    max_new_tokens: int = 1
    sizing: str = "fixed"
    group_size: int = 1
    group_size_max: int = 1


class Contradiction(NamedTuple):
    """Settings that do not go together: their `keys` in run.toml, and the `remedy` as the end of a
    sentence.

    >>> settings = AdmissionSettings(depth=5, batch_groups=16, max_lag=4)
    >>> next(LiveGroups(settings).contradictions()).keys
    ('staleness.depth', 'staleness.max_lag')
    """

    keys: tuple[str, ...]
    remedy: str


class FinishedGroup(Protocol):
    """Part of a group that a rule reads.

    >>> from types import SimpleNamespace
    >>> group: FinishedGroup = SimpleNamespace(rewards=[1.0, 0.0], turns=[[], []], above=[])
    """

    @property
    def rewards(self) -> Sequence[float]:
        """Rewards of its members that have one."""
        ...

    @property
    def turns(self) -> Sequence[Sequence[float]]:
        """The rewards of the turns of each of those; empty for one of a single turn."""
        ...

    @property
    def above(self) -> Sequence[Sequence[Sequence[int]]]:
        """The turns directly above each of those; empty where each lies below the one before."""
        ...


class Visits(Protocol):
    """Part of the history that a rule reads. Of these three groups one passed the filter:

    >>> from types import SimpleNamespace
    >>> visits: Visits = SimpleNamespace(recent=bytes([0, 1, 0]))
    >>> round(pass_rate(visits.recent), 2)
    0.71
    """

    @property
    def recent(self) -> bytes | bytearray:
        """One byte for each group that finished lately, the oldest first: 1 where its rewards
        differ, else marks of what else does (`History.recent`)."""
        ...


class LiveWork(Protocol):
    """Part of the run's state that a rule reads; `asyncrl.experience.state.Experience` has it.
    Everything is of training groups. A rule that counts something else declares it here.

    >>> from types import SimpleNamespace
    >>> live: LiveWork = SimpleNamespace(groups_live=38)
    >>> LiveGroups(AdmissionSettings(depth=1, batch_groups=20)).may_start(live)
    2
    """

    @property
    def history(self) -> Visits: ...

    @property
    def groups_live(self) -> int:
        """Groups that are leased, waiting for a lease or a verdict, ready, or taken for a step
        whose version is not published yet."""
        ...

    @property
    def groups_untaken(self) -> int:
        """Live groups from which no step has taken anything."""
        ...

    @property
    def rollouts_live(self) -> int:
        """Rollouts that are not over, counted as groups are."""
        ...

    def ready(self) -> Sequence[FinishedGroup]:
        """Groups that are complete and not taken."""
        ...


class AdmissionPolicy(Protocol):
    """Rule by which training groups start.

    >>> rule: AdmissionPolicy = choose_policy(AdmissionSettings(depth=1, batch_groups=16))
    >>> rule.formula, rule.max_live
    ('(depth + overprovision) × batch_groups', 32)
    """

    formula: str
    """`max_live` in the words of the settings, for the table printed before a run."""

    def __init__(self, settings: AdmissionSettings) -> None: ...

    @classmethod
    def applies(cls, settings: AdmissionSettings) -> bool:
        """True where these settings ask for this rule."""
        ...

    @property
    def max_live(self) -> int:
        """Groups that may be live, where all of them pass the filter. A step that is closed by
        tokens has at most as many."""
        ...

    @property
    def max_live_filtered(self) -> int:
        """Largest number of groups that are live at one time, replacements of filtered ones
        included: `max_live` or more."""
        ...

    @property
    def worst_lag(self) -> int | None:
        """Largest lag of a token, in versions, before `on_stale` looks at any; None where the order
        of training gives no bound."""
        ...

    def may_start(self, live: LiveWork) -> int:
        """Number of groups that may start now, 0 or more."""
        ...

    def contradictions(self) -> Iterator[Contradiction]:
        """Settings that this rule cannot follow."""
        ...


class LiveGroups:
    """Cap on live groups: `depth` steps that generation runs ahead, and the groups of the open
    step, `overprovision` for each of the `batch_groups` that it needs (APRIL, arXiv 2509.18521).

    Example: depth 1, 16 groups in a step and overprovision 1.5 make 16 + 24 = 40 groups. While 38
    are live, 2 may start.

    >>> settings = AdmissionSettings(depth=1, batch_groups=16, overprovision=1.5, window=3)
    >>> LiveGroups(settings).max_live, LiveGroups(settings).worst_lag
    (40, 2)

    The cap counts what is alive now, and not what was ever started. So filters, crashes and resumes
    leave the bound on lag as it is. Where rollouts are trained one by one it counts rollouts, in
    groups' worth.
    """

    formula = "(depth + overprovision) × batch_groups"

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings

    @classmethod
    def applies(cls, settings: AdmissionSettings) -> bool:
        return True

    @property
    def max_live(self) -> int:
        depth, groups, overprovision, *_ = self.settings
        return depth * groups + math.ceil(overprovision * groups)

    @property
    def max_live_filtered(self) -> int:
        """See the protocol. Few enough that lag stays within `max_lag` if all of them pass."""
        settings, live = self.settings, self.max_live
        if settings.filter == "none" or settings.unit == "rollout":
            return live
        in_time = math.floor((settings.max_lag + 1) * self.smallest_step)
        return max(live, min(MAX_STARTS_PER_GROUP * live, in_time - max(0, settings.window - 1)))

    @property
    def worst_lag(self) -> int | None:
        """`ceil((L + window - 1) / smallest_step) - 1` with L = `max_live_filtered`: the theorem of
        docs/lag.md. 0 where a step needs every live group; None without a window.

        Example: 2 groups in a step, L = 4 and window 3 make ceil(6 / 2) - 1 = 2 versions.
        """
        if not self.settings.window:
            return None
        live, least = self.max_live_filtered, self.smallest_step
        return 0 if least >= live else math.ceil((live + self.settings.window - 1) / least) - 1

    @property
    def widest_window(self) -> int:
        """Widest window that keeps lag within `max_lag`; 0 where none does."""
        in_time = math.floor((self.settings.max_lag + 1) * self.smallest_step)
        return max(0, in_time - self.max_live + 1)

    @property
    def smallest_step(self) -> Fraction:
        """Groups' worth of the smallest step. Where tokens close a step, it has the longest
        rollouts there can be; and `max_live` groups close it, however few tokens they have.

        Example: 100 tokens close a step, of groups of 4 rollouts of at most 10 tokens: it has
        ceil(100 / 40) = 3 groups at least. Of rollouts trained one by one it has ceil(100 / 10) =
        10 at least, which are 10 / 4 groups. Where only 2 groups may be live, it has 2.
        """
        settings = self.settings
        if not settings.step_tokens:
            return Fraction(settings.batch_groups)
        if settings.unit == "rollout":
            rollouts = math.ceil(settings.step_tokens / settings.max_new_tokens)
            return min(Fraction(rollouts, settings.group_size), Fraction(self.max_live))
        fixed = settings.sizing == "fixed"
        members = settings.group_size if fixed else settings.group_size_max
        groups = math.ceil(settings.step_tokens / (members * settings.max_new_tokens))
        return Fraction(min(groups, self.max_live))

    def may_start(self, live: LiveWork) -> int:
        settings, most = self.settings, self.max_live
        if settings.unit == "rollout":
            return max(0, math.floor(most - live.rollouts_live / settings.group_size))
        if settings.filter == "zero_variance":
            ready = sum(map(self._differ, live.ready()))
            passed = live.groups_live - live.groups_untaken + ready
            rate = pass_rate(live.history.recent, settings.signal)
            most = live_to_pass(most, passed, rate, self.max_live_filtered)
        return max(0, most - live.groups_live)

    def _differ(self, group: FinishedGroup) -> bool:
        if self.settings.signal == "below":
            return differ_below(group.rewards, group.turns, group.above)
        if self.settings.signal == "to_go":
            return differ_to_go(group.rewards, group.turns)
        return len(set(group.rewards)) > 1

    def contradictions(self) -> Iterator[Contradiction]:
        settings, lag = self.settings, self.worst_lag
        if settings.depth > settings.max_lag:
            yield Contradiction(
                ("staleness.depth", "staleness.max_lag"),
                "generation that far ahead is too old before it is trained: lower depth to "
                "max_lag, raise max_lag, or set on_stale to train",
            )
        elif settings.on_stale == "drop" and lag is not None and lag > settings.max_lag:
            widest = self.widest_window
            remedy = f"set window to {widest} or less" if widest else "lower depth or overprovision"
            yield Contradiction(
                ("staleness.window", "staleness.max_lag", "staleness.on_stale"),
                f"a group may wait until its lag is {lag}, and would then be dropped: {remedy}, "
                f"or set max_lag to {lag}",
            )
        if settings.max_lag == 0 and settings.overprovision > 1:
            yield Contradiction(
                ("rollout.overprovision", "staleness.max_lag"),
                "groups that a step does not need would be too old for the next: set "
                "overprovision to 1, or raise max_lag",
            )
        if settings.max_lag == 0 and settings.step_tokens:
            yield Contradiction(
                ("train.step_tokens", "staleness.max_lag"),
                "groups that a step does not need would be too old for the next: set step_tokens "
                "to 0, or raise max_lag",
            )
        if settings.unit == "rollout" and settings.sizing != "fixed":
            yield Contradiction(
                ("train.unit", "rollout.sizing"),
                "live rollouts are counted in groups of group_size, so larger groups would break "
                "the lag bound: set unit to group, or sizing to fixed",
            )


POLICIES: tuple[type[AdmissionPolicy], ...] = (LiveGroups,)
"""Every rule. The first one that applies is taken; the last one always applies."""


def choose_policy(settings: AdmissionSettings) -> AdmissionPolicy:
    """Return the rule that the settings ask for."""
    return next(rule(settings) for rule in POLICIES if rule.applies(settings))


def pass_rate(recent: bytes | bytearray, signal: Signal = "rewards") -> float:
    """Share of groups that pass the filter, in (0, 1]: of the last `RATE_OVER` in `recent`, shrunk
    towards 1 by `RATE_PRIOR` groups. One group, filtered, makes 4 / 5."""
    lately = recent[-RATE_OVER:]
    return (with_signal(lately, signal) + RATE_PRIOR) / (len(lately) + RATE_PRIOR)


def live_to_pass(needed: int, passed: int, rate: float, most: int | None = None) -> int:
    """Number of groups that may be live so that `needed` of them pass the filter, where `passed`
    have passed and of the others the share `rate` (0, 1] will.

    It is `passed + (needed - passed) / rate`, rounded up, its second term at most
    `MAX_STARTS_PER_GROUP * (needed - passed)`. Never over `most`, so that lag stays in its bound
    even if all pass; never under `needed`.

    Example: of 16 needed 12 have passed, and half pass: 12 + 4 / 0.5 = 20 groups.
    """
    missing = max(needed - passed, 0)
    started = min(math.ceil(missing / rate), MAX_STARTS_PER_GROUP * missing)
    live = needed - missing + started
    return live if most is None else max(needed, min(live, most))
