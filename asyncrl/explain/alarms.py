"""Alarms: a step that is not well, by its cause. Invariant: an alarm names one cause and says what
to do about it; a step in its bands has none.

Two causes drive two policies apart. Where engine and trainer compute the same weights differently,
tokens of lag 0 differ already; age adds to that with every version. So the numbers by lag tell them
apart: what is GROWTH times worse at higher lags is age, what is not was there before any. Bins of
few tokens or rollouts say nothing. No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from asyncrl.staleness.bins import of_lags

GROWTH = 2.0
"""Old tokens must be this many times worse than young ones for their age to be the cause."""

FEW = {"tokens": 64, "rollouts": 8}
"""A bin of lags with fewer of these is not judged by itself: means of exponentials over a handful
are noise."""


class Thresholds(Protocol):
    """Bounds of a step that is well. The settings `staleness.alarm_*` are such bounds.

    >>> from types import SimpleNamespace
    >>> bounds: Thresholds = SimpleNamespace(
    ...     alarm_k3=0.1, alarm_masked=0.5, alarm_ess=0.1, alarm_proximal=0.1
    ... )
    >>> alarms({"k3": 0.05, "ess": 0.9}, trained=90, discarded={"stale": 10}, thresholds=bounds)
    ()
    """

    @property
    def alarm_k3(self) -> float:
        """Largest mean k3 of a token, in nats."""
        ...

    @property
    def alarm_masked(self) -> float:
        """Largest share (0, 1] of tokens that is left out of the loss."""
        ...

    @property
    def alarm_ess(self) -> float:
        """Smallest effective share [0, 1) of the rollouts."""
        ...

    @property
    def alarm_proximal(self) -> float:
        """Largest share (0, 1] of tokens whose proximal log-probability is not known."""
        ...


class Alarm(NamedTuple):
    """Something wrong with a step: `name` is the cause, in one word for metrics and logs;
    `sentence` says what was seen, why, and what to do.

    >>> from types import SimpleNamespace
    >>> bounds = SimpleNamespace(
    ...     alarm_k3=0.1, alarm_masked=0.5, alarm_ess=0.1, alarm_proximal=0.1
    ... )
    >>> (alarm,) = alarms({}, trained=10, discarded={"stale": 90}, thresholds=bounds)
    >>> alarm.name
    'masked_stale'
    """

    name: str
    sentence: str


class _Trend(NamedTuple):
    """One number at the lowest lag there is, and its mean over all higher lags; None where there is
    none."""

    lag: int | None
    young: float
    old: float | None

    @property
    def fresh(self) -> float | None:
        """The number at lag 0."""
        return self.young if self.lag == 0 else None

    @property
    def grows(self) -> bool:
        """True if age is most of it."""
        return self.old is not None and self.old > GROWTH * self.young


def alarms(
    metrics: Mapping[str, float],
    trained: int,
    discarded: Mapping[str, int],
    thresholds: Thresholds,
) -> tuple[Alarm, ...]:
    """Alarms of one step, none where all is well.

    `metrics` are the trainer's: `k3`, `ess`, `proximal_unknown_fraction`, and by lag (named by
    `asyncrl.staleness.bins.at_lag`) `tokens`, `k3`, `kept_fraction`, `rollouts` and `ess`; what it
    did not measure is taken to be well. `trained` and `discarded` are the tokens of the step by
    what became of them. The bands are `alarm_k3`, `alarm_masked`, `alarm_ess` and `alarm_proximal`;
    a log-probability that is no number is never in its band.
    """
    return (
        *_divergence(metrics, thresholds.alarm_k3),
        *_masked(metrics, trained, discarded, thresholds.alarm_masked),
        *_sample_size(metrics, thresholds.alarm_ess),
        *_unknown(metrics, thresholds.alarm_proximal),
        *_nonfinite(discarded),
    )


def _trend(metrics: Mapping[str, float], values: Mapping[int, float], unit: str) -> _Trend:
    """Of `values` by lag, weighted by how many tokens or rollouts (`unit`) there are at each."""
    counts = {
        lag: count
        for lag, count in of_lags(metrics, unit).items()
        if count >= FEW[unit] and lag in values
    }
    if not counts:
        return _Trend(None, 0.0, None)
    lag, *older = counts
    total = sum(counts[lag] for lag in older)
    return _Trend(
        lag, values[lag], sum(values[lag] * counts[lag] for lag in older) / total if older else None
    )


def _divergence(metrics: Mapping[str, float], limit: float) -> list[Alarm]:
    k3, trend = metrics.get("k3", 0.0), _trend(metrics, of_lags(metrics, "k3"), "tokens")
    seen, compare = (
        f"k3 is {k3:.3g} and may be {limit:g}",
        "compare their kernels, dtype and temperature",
    )
    over, found = k3 > limit, list[Alarm]()
    if trend.fresh is not None and trend.fresh > limit:
        sentence = (
            f"Engine and trainer disagree about the same weights: k3 is {trend.fresh:.3g} at "
            f"lag 0 and may be {limit:g}; {compare}."
        )
        found.append(Alarm("mismatch", sentence))
    elif over and trend.old is not None and not trend.grows:
        sentence = (
            f"Engine and trainer disagree whatever the age: {seen}, but {_split(trend)}; {compare}."
        )
        found.append(Alarm("mismatch", sentence))
    if over and trend.grows:
        remedy = "lower staleness.depth or staleness.max_lag, or the learning rate"
        found.append(
            Alarm(
                "staleness",
                f"The policy has moved away from what it trains on: {seen}, {_split(trend)}; "
                f"{remedy}.",
            )
        )
    if over and not found:
        remedy = (
            "train at max_lag 0: what is left there is a mismatch of kernels, dtype or temperature"
        )
        found.append(
            Alarm(
                "divergence",
                f"Engine and trainer are apart, by age or by mismatch: {seen}, all of it "
                f"{_at(trend)}; {remedy}.",
            )
        )
    return found


def _split(trend: _Trend) -> str:
    return f"{trend.young:.3g} at lag {trend.lag} and {trend.old:.3g} above"


def _at(trend: _Trend) -> str:
    return "in few tokens" if trend.lag is None else f"at lag {trend.lag}"


def _masked(
    metrics: Mapping[str, float], trained: int, discarded: Mapping[str, int], limit: float
) -> list[Alarm]:
    left_out = sum(discarded.values())
    if left_out <= limit * (trained + left_out):
        return []
    reason = max(discarded, key=lambda reason: discarded[reason])
    seen = (
        f"{left_out / (trained + left_out):.0%} of the step's tokens are left out, where "
        f"{limit:.0%} may be, most of them "
        f"({discarded[reason] / left_out:.0%}) as {reason}"
    )
    return [Alarm(f"masked_{reason}", f"{seen}: {_remedy(metrics, reason)}.")]


def _remedy(metrics: Mapping[str, float], reason: str) -> str:
    match reason:
        case "stale":
            return (
                "they waited for more than max_lag versions; lower staleness.depth, set a "
                "staleness.window, or raise staleness.max_lag"
            )
        case "nonfinite":
            return (
                "their log-probabilities are no numbers; look for overflow in the model or "
                "the engine"
            )
        case "truncated":
            return (
                "their responses were cut at rollout.max_new_tokens, and rollout.truncated masks "
                "them; raise max_new_tokens, or set truncated to penalize"
            )
        case "median":
            return (
                "they are the median of their group, which mc_grpo does not train; raise "
                "rollout.group_size"
            )
    rejected = {lag: 1 - kept for lag, kept in of_lags(metrics, "kept_fraction").items()}
    trend = _trend(metrics, rejected, "tokens")
    if trend.old is None:
        return (
            f"the ratio of engine and trainer leaves its bounds {_at(trend)}; look at k3, "
            "and widen the bounds only if that is small"
        )
    shares = f"{trend.young:.0%} are rejected at lag {trend.lag} and {trend.old:.0%} above"
    if trend.grows:
        return (
            f"{shares}, so it is their age; lower staleness.depth or staleness.max_lag, or "
            "widen the bounds"
        )
    return (
        f"{shares}, so it is not their age; compare kernels, dtype and temperature of engine "
        "and trainer"
    )


def _sample_size(metrics: Mapping[str, float], limit: float) -> list[Alarm]:
    ess = metrics.get("ess", 1.0)
    if ess >= limit:
        return []
    # As a number that is worse where it is larger: how many rollouts it takes to make one.
    trend = _trend(
        metrics, {lag: 1 / share for lag, share in of_lags(metrics, "ess").items()}, "rollouts"
    )
    seen = (
        f"Few rollouts make the whole gradient: the effective sample size is {ess:.2g} of "
        f"the rollouts, where {limit:g} must be"
    )
    if trend.grows:
        name, cause = (
            "ess_staleness",
            f"{1 / trend.young:.2g} at lag {trend.lag} and less above; lower staleness.max_lag "
            "or set train.ess_base",
        )
    elif trend.fresh is not None and 1 / trend.fresh < limit:
        name, cause = (
            "ess_mismatch",
            f"{1 / trend.fresh:.2g} at lag 0 already; compare kernels, dtype and temperature of "
            "engine and trainer",
        )
    else:
        name, cause = (
            "ess",
            "at every lag; shorten the rollouts or set train.ess_base, so that the learning rate "
            "follows",
        )
    return [Alarm(name, f"{seen}, {cause}.")]


def _unknown(metrics: Mapping[str, float], limit: float) -> list[Alarm]:
    share = metrics.get("proximal_unknown_fraction", 0.0)
    if share <= limit:
        return []
    return [
        Alarm(
            "proximal_unknown",
            f"{share:.0%} of the step's tokens have no proximal log-probability of their own "
            f"version, where {limit:.0%} may have none, and nothing clips the ratio of these; set "
            "staleness.proximal to snapshot, or, where on_stale is train, raise staleness.max_lag, "
            "so that the weights of their versions are held.",
        )
    ]


def _nonfinite(discarded: Mapping[str, int]) -> list[Alarm]:
    if not (count := discarded.get("nonfinite", 0)):
        return []
    return [
        Alarm(
            "nonfinite",
            f"{count} tokens have a log-probability that is no number and are left out; look for "
            "overflow in the model or the engine, "
            "and for a token that the trainer gives no probability.",
        )
    ]
