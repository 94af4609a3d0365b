"""The distance between what is trained and what sampled it, in one step. Invariant: a finding names
one cause and says what to do about it; a step within its bounds has none. A log-probability that is
no number is never within them.

Two causes drive two policies apart. Where engine and trainer compute the same weights differently,
tokens of lag 0 differ already; age adds to that with every version. So the numbers by lag tell them
apart: what is GROWTH times worse at higher lags is age, what is not was there before any. Bins of
few tokens or rollouts say nothing. No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.staleness.bins import of_lags

K3 = 0.1
"""Mean k3 of a step, nats a token: current and behaviour policy are further apart over it."""
MASKED = 0.5
"""Share of a step's tokens that may be left out."""
ESS = 0.1
"""Effective share of a step's rollouts that it must have."""
UNKNOWN = 0.1
"""Share of a step's tokens that may have the current policy in place of their proximal one."""
GROWTH = 2.0
"""Old tokens must be this many times worse than young ones for their age to be the cause."""

FEW = {"tokens": 64, "rollouts": 8}
"""A bin of lags with fewer of these is not judged by itself: means of exponentials over a handful
are noise."""

COMPARE = (
    "compare their kernels, their dtype (model.dtype) and their temperature (rollout.temperature)"
)
"""The suspects where engine and trainer compute different log-probabilities."""


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


def _divergence(facts: RunFacts, limit: float) -> list[Finding]:
    metrics = facts.metrics
    k3, trend = metrics.get("k3", 0.0), _trend(metrics, of_lags(metrics, "k3"), "tokens")
    seen = f"k3 is {k3:.3g}, over its bound of {limit:g}"
    over, found = k3 > limit, list[Finding]()
    if trend.fresh is not None and trend.fresh > limit:
        sentence = (
            f"Engine and trainer disagree about the same weights: k3 is {trend.fresh:.3g} at "
            f"lag 0, over its bound of {limit:g}; {COMPARE}."
        )
        found.append(Finding("mismatch", sentence))
    elif over and trend.old is not None and not trend.grows:
        sentence = (
            f"Engine and trainer disagree at every age: {seen}, but {_split(trend)}; {COMPARE}."
        )
        found.append(Finding("mismatch", sentence))
    if over and trend.grows:
        remedy = "lower staleness.depth, staleness.max_lag or train.lr"
        found.append(
            Finding(
                "staleness",
                f"The policy has moved away from what it trains on: {seen}, {_split(trend)}; "
                f"{remedy}.",
            )
        )
    if over and not found:
        remedy = (
            "to find out, train with staleness.max_lag = 0: what is left then is a mismatch of "
            "kernels, dtype or temperature"
        )
        found.append(
            Finding(
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


def _masked(facts: RunFacts, limit: float) -> list[Finding]:
    metrics, trained, discarded = facts.metrics, facts.trained, facts.left_out
    left_out = sum(discarded.values())
    if left_out <= limit * (trained + left_out):
        return []
    reason = max(discarded, key=lambda reason: discarded[reason])
    seen = (
        f"{left_out / (trained + left_out):.0%} of the step's tokens are left out (the bound is "
        f"{limit:.0%}), most of them ({discarded[reason] / left_out:.0%}) as {reason}"
    )
    return [Finding(f"masked_{reason}", f"{seen}: {_remedy(metrics, reason)}.")]


def _remedy(metrics: Mapping[str, float], reason: str) -> str:
    match reason:
        case "stale":
            return (
                "they are more than staleness.max_lag versions old; lower staleness.depth, set a "
                "staleness.window, or raise staleness.max_lag"
            )
        case "nonfinite":
            return (
                "their log-probabilities are not numbers; look for overflow in the model or the "
                "engine (model.dtype)"
            )
        case "truncated":
            return (
                "their responses were cut at rollout.max_new_tokens, and rollout.truncated masks "
                "them; raise rollout.max_new_tokens, or set truncated = 'penalize'"
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
            f"the ratio of engine and trainer leaves its bounds {_at(trend)}; look at k3, and "
            "widen the bounds of staleness.correction only if it is small"
        )
    shares = f"{trend.young:.0%} are rejected at lag {trend.lag} and {trend.old:.0%} above"
    if trend.grows:
        return (
            f"{shares}, so it is their age; lower staleness.depth or staleness.max_lag, or "
            "widen the bounds of staleness.correction"
        )
    return f"{shares}, so engine and trainer disagree at every age; {COMPARE}"


def _sample_size(facts: RunFacts, limit: float) -> list[Finding]:
    metrics = facts.metrics
    ess = metrics.get("ess", 1.0)
    if ess >= limit:
        return []
    # As a number that is worse where it is larger: how many rollouts it takes to make one.
    trend = _trend(
        metrics, {lag: 1 / share for lag, share in of_lags(metrics, "ess").items()}, "rollouts"
    )
    seen = (
        f"Few rollouts make the whole gradient: the effective sample size is {ess:.2g} of the "
        f"rollouts, below its bound of {limit:g}"
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
            f"{1 / trend.fresh:.2g} at lag 0 already, so engine and trainer disagree; {COMPARE}",
        )
    else:
        name, cause = (
            "ess",
            "at every lag; shorten the rollouts (rollout.max_new_tokens), or set train.ess_base, "
            "so that the learning rate follows",
        )
    return [Finding(name, f"{seen}, {cause}.")]


def _unknown(facts: RunFacts, limit: float) -> list[Finding]:
    share = facts.metrics.get("proximal_unknown_fraction", 0.0)
    if share <= limit:
        return []
    return [
        Finding(
            "proximal_unknown",
            f"{share:.0%} of the step's tokens have no proximal log-probability of their own "
            f"version (the bound is {limit:.0%}), and nothing clips their ratio; set "
            "staleness.proximal = 'snapshot', or, where staleness.on_stale is 'train', raise "
            "staleness.max_lag, so that the trainer holds the weights of their versions.",
        )
    ]


def _nonfinite(facts: RunFacts, limit: float) -> list[Finding]:
    if (count := facts.left_out.get("nonfinite", 0)) <= limit:
        return []
    return [
        Finding(
            "nonfinite",
            f"{count} tokens have a log-probability that is not a number, and are left out; look "
            "for overflow in the model or the engine (model.dtype), and for a token to which the "
            "trainer gives no probability.",
        )
    ]


OFF_POLICY = (
    Condition(
        names=("mismatch", "staleness", "divergence"),
        measures="distance of current and behaviour policy (mean k3 of a step, nats a token)",
        bound=K3,
        settings=(
            "model.dtype",
            "rollout.temperature",
            "staleness.depth",
            "staleness.max_lag",
            "train.lr",
        ),
        find=_divergence,
    ),
    Condition(
        names=("masked_*",),
        measures="share of a step's tokens that is left out of the loss",
        bound=MASKED,
        settings=(
            "staleness.depth",
            "staleness.window",
            "staleness.max_lag",
            "staleness.correction",
            "model.dtype",
            "rollout.temperature",
            "rollout.max_new_tokens",
            "rollout.truncated",
            "rollout.group_size",
        ),
        find=_masked,
    ),
    Condition(
        names=("ess", "ess_staleness", "ess_mismatch"),
        measures="effective share of a step's rollouts",
        bound=ESS,
        settings=(
            "staleness.max_lag",
            "train.ess_base",
            "model.dtype",
            "rollout.temperature",
            "rollout.max_new_tokens",
        ),
        find=_sample_size,
    ),
    Condition(
        names=("proximal_unknown",),
        measures="share of a step's tokens without a proximal log-probability of their version",
        bound=UNKNOWN,
        settings=("staleness.proximal", "staleness.max_lag"),
        find=_unknown,
    ),
    Condition(
        names=("nonfinite",),
        measures="tokens of a step whose log-probability is not a number",
        bound=0.0,
        settings=("model.dtype",),
        find=_nonfinite,
    ),
)
