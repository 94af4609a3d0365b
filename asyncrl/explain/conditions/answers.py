"""The answers of a policy: many get no verdict, or none of a judge that is away; most responses
never end; the reward rises while accuracy falls; an episode gives a model its own replies back with
other tokens.

Invariant: chance alone seldom raises the third one: both differences are more than a number of
their standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, variance

from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.explain.conditions.off_policy import FEW

WINDOW = 8
"""Steps whose mean reward stands for a moment."""
RECENT = 4 * WINDOW
"""Steps after which an evaluation of what one began with is known."""
LEAST = 3
"""Steps of the least window that says anything."""
ERRORS = 2.0
"""Standard errors that a reward must rise and an accuracy must fall."""
TRUNCATED = 0.5
"""Share of a step's responses that may be cut at their budget."""
UNJUDGED = 0.1
"""Share of the answers that may get no verdict: they cost generation, and are not trained."""
REWRITTEN = 0.1
"""Share of later calls that may have a reply with other tokens than were sampled in their context:
an agent that edits one reply in ten is no accident of the chat template."""


def rewards_to_keep(
    rewards: Mapping[int, float], accuracy: Mapping[int, float]
) -> dict[int, float]:
    """The rewards that an alarm may still look at: those after the best evaluation, those around
    the last one, and the RECENT last ones. A run has any number of steps.

    >>> kept = rewards_to_keep(dict.fromkeys(range(1, 121), 0.5), {0: 0.3, 20: 0.9, 60: 0.8})
    >>> sorted(kept) == [*range(21, 29), *range(53, 69), *range(89, 121)]
    True
    """
    windows = [(max(rewards, default=0) - RECENT, RECENT)]
    if accuracy:
        best = max(accuracy, key=lambda version: (accuracy[version], version))
        windows += [(best, WINDOW), (max(accuracy) - WINDOW, 2 * WINDOW)]
    return {
        version: reward
        for version, reward in rewards.items()
        if any(0 < version - start <= length for start, length in windows)
    }


def _never_ends(facts: RunFacts, limit: float) -> list[Finding]:
    share = facts.metrics.get("truncated", 0.0)
    if share <= limit or facts.metrics.get("responses", 0.0) < FEW["rollouts"]:
        return []
    return [
        Finding(
            "never_ends",
            f"{share:.0%} of the responses were cut at their budget (the bound is {limit:.0%}): "
            "raise rollout.max_new_tokens if right answers are longer; else set task.reward = "
            "'exact', or rollout.truncated = 'penalize'.",
        )
    ]


def _reward_against_accuracy(facts: RunFacts, limit: float) -> list[Finding]:
    """Compare the last evaluation with the best one before it, and the steps just after that one
    with those just before the last. Responses of a step are sampled by about the version that it
    starts from."""
    rewards, accuracy = facts.rewards, facts.accuracy
    if len(accuracy) < 2 or not facts.prompts:
        return []
    last = max(accuracy)
    best = max((version for version in accuracy if version != last), key=lambda v: (accuracy[v], v))
    window = min(WINDOW, (last - best) // 2)
    then = [rewards[v] for v in range(best + 1, best + 1 + window) if v in rewards]
    now = [rewards[v] for v in range(last + 1 - window, last + 1) if v in rewards]
    if min(len(then), len(now)) < LEAST:
        return []
    fall = accuracy[best] - accuracy[last]
    rise = fmean(now) - fmean(then)
    of_fall = sum(share * (1 - share) for share in (accuracy[best], accuracy[last]))
    of_rise = variance(then) / len(then) + variance(now) / len(now)
    if fall <= limit * math.sqrt(of_fall / facts.prompts) or rise <= limit * math.sqrt(of_rise):
        return []
    return [
        Finding(
            "reward_without_accuracy",
            f"The reward rises while accuracy falls: from version {best} to {last} the mean reward "
            f"went from {fmean(then):.3g} to {fmean(now):.3g} and held-out accuracy from "
            f"{accuracy[best]:.3g} to {accuracy[last]:.3g}: what is rewarded is not what is "
            "wanted; set task.reward = 'exact', or look at what the verifier gives credit for.",
        )
    ]


def _rewritten(facts: RunFacts, limit: float) -> list[Finding]:
    share = facts.metrics.get("rewritten", 0.0)
    if share <= limit or facts.metrics.get("responses", 0.0) < FEW["rollouts"]:
        return []
    return [
        Finding(
            "rewritten",
            f"{share:.0%} of the calls after an episode's first have a reply in their context "
            f"with other tokens than were sampled (the bound is {limit:.0%}): such a call shares "
            "less with earlier ones, and costs more to train. If the chat template does it "
            "(some drop earlier thoughts), set agent.history = 'as_sampled'; else the agent edits "
            "replies.",
        )
    ]


def _no_verdict(facts: RunFacts, limit: float) -> list[Finding]:
    if facts.answers < FEW["rollouts"] or facts.unjudged <= limit * facts.answers:
        return []
    return [
        Finding(
            "no_verdict",
            f"{facts.unjudged / facts.answers:.0%} of the answers got no verdict (the bound is "
            f"{limit:.0%}), most of them for this reason: {facts.unjudged_reason}; "
            + (
                _AWAY
                if facts.unjudged_reason.startswith("judge ")
                else "correct the verifier (task.verifier): one that cannot read an answer must "
                "return 0.0 for it; if it needs longer, raise task.verdict_s."
            ),
        )
    ]


_AWAY = (
    "make sure that the server of judge.url runs and is not overloaded; if it refuses so many "
    "requests, lower judge.requests_per_minute."
)


def _judge_away(facts: RunFacts, limit: float) -> list[Finding]:
    if facts.judge_missed <= limit:
        return []
    return [
        Finding(
            "judge_away",
            f"The judge gave no verdict on more than {limit:.0%} of the last answers "
            f"({facts.judge_why}), which are not trained: {_AWAY}",
        )
    ]


ANSWERS = (
    Condition(
        names=("no_verdict",),
        measures="share of the answers without a verdict",
        bound=UNJUDGED,
        settings=("task.verifier", "task.verdict_s", "judge.url"),
        find=_no_verdict,
    ),
    Condition(
        names=("judge_away",),
        measures="share of the last 32 answers to which the judge gave no verdict",
        bound=UNJUDGED,
        settings=("judge.url", "judge.requests_per_minute"),
        find=_judge_away,
    ),
    Condition(
        names=("never_ends",),
        measures="share of a step's responses that were cut at their budget",
        bound=TRUNCATED,
        settings=("rollout.max_new_tokens", "task.reward", "rollout.truncated"),
        find=_never_ends,
    ),
    Condition(
        names=("reward_without_accuracy",),
        measures="standard errors by which the reward rose and accuracy fell since the best "
        "evaluation",
        bound=ERRORS,
        settings=("task.reward",),
        find=_reward_against_accuracy,
    ),
    Condition(
        names=("rewritten",),
        measures="share of a step's later calls with a reply in other tokens",
        bound=REWRITTEN,
        settings=("agent.history",),
        find=_rewritten,
    ),
)
