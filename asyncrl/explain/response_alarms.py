"""Alarms about what a policy answers: most responses never end; the reward rises while accuracy
falls; what an episode's model said comes back to it otherwise.

Invariant: chance alone raises neither often: what differs must differ by more than twice its
standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, variance

from asyncrl.explain.alarms import FEW, Alarm

WINDOW = 8
"""Steps whose mean reward stands for a moment."""
RECENT = 4 * WINDOW
"""Steps after which an evaluation of what one began with is known."""
LEAST = 3
"""Steps of the least window that says anything."""


def response_alarms(
    metrics: Mapping[str, float],
    most_truncated: float,
    rewards: Mapping[int, float],
    accuracy: Mapping[int, float],
    prompts: int,
) -> tuple[Alarm, ...]:
    """Alarms of one step. `metrics` has its number of `responses` and the share of `truncated`
    ones, of which `most_truncated` may be. `rewards` are mean rewards by the version that the step
    made, and `accuracy` is the share of right answers to `prompts` held-out prompts by version.

    >>> (alarm,) = response_alarms({"responses": 64, "truncated": 0.9}, 0.5, {}, {}, 0)
    >>> alarm.name
    'never_ends'
    """
    return (
        *_never_ends(metrics, most_truncated),
        *_reward_against_accuracy(rewards, accuracy, prompts),
    )


def history_alarms(metrics: Mapping[str, float], most_rewritten: float) -> tuple[Alarm, ...]:
    """The alarm about the history of a step's episodes. `metrics` has the number of `responses`,
    their mean number of `turns`, and the share of the calls behind the first one in whose context a
    reply was `rewritten`, of which `most_rewritten` may be.

    >>> (alarm,) = history_alarms({"responses": 64, "turns": 3.0, "rewritten": 0.5}, 0.1)
    >>> alarm.name
    'rewritten'
    """
    share = metrics.get("rewritten", 0.0)
    if share <= most_rewritten or metrics["responses"] < FEW["rollouts"]:
        return ()
    return (
        Alarm(
            "rewritten",
            f"{share:.0%} of the calls behind an episode's first one are given a reply with other "
            f"tokens than were sampled, where {most_rewritten:.0%} may be: such a call shares less "
            "with those before it, and costs more to train. If the chat template does it (some "
            "drop earlier thoughts), set agent.history = 'as_sampled'; else the agent edits "
            "replies.",
        ),
    )


def rewards_to_keep(
    rewards: Mapping[int, float], accuracy: Mapping[int, float]
) -> dict[int, float]:
    """The rewards that an alarm may still look at: those after the best and the last evaluation,
    and the RECENT last ones. A run has any number of steps.

    >>> kept = rewards_to_keep(dict.fromkeys(range(1, 101), 0.5), {0: 0.3, 20: 0.9, 60: 0.8})
    >>> sorted(kept) == [*range(21, 29), *range(61, 101)]
    True
    """
    newest = max(rewards, default=0)
    ends = {newest - RECENT: RECENT}
    if accuracy:
        best = max(accuracy, key=lambda version: (accuracy[version], version))
        ends |= {best: WINDOW, max(accuracy): WINDOW}
    return {
        version: reward
        for version, reward in rewards.items()
        if any(0 < version - start <= length for start, length in ends.items())
    }


def _never_ends(metrics: Mapping[str, float], limit: float) -> list[Alarm]:
    share = metrics.get("truncated", 0.0)
    if share <= limit or metrics["responses"] < FEW["rollouts"]:
        return []
    return [
        Alarm(
            "never_ends",
            f"{share:.0%} of the responses do not end and were cut at their budget, where "
            f"{limit:.0%} may be: raise rollout.max_new_tokens if right answers are longer; else "
            "set task.reward = 'exact', or rollout.truncated = 'penalize'.",
        )
    ]


def _reward_against_accuracy(
    rewards: Mapping[int, float], accuracy: Mapping[int, float], prompts: int
) -> list[Alarm]:
    """Compare the last evaluation with the best one before it, and the steps just after that one
    with those just before the last. Responses of a step are sampled by about the version that it
    starts from."""
    if len(accuracy) < 2 or not prompts:
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
    of_fall = sum(share * (1 - share) for share in (accuracy[best], accuracy[last])) / prompts
    of_rise = variance(then) / len(then) + variance(now) / len(now)
    if fall <= 2 * math.sqrt(of_fall) or rise <= 2 * math.sqrt(of_rise):
        return []
    return [
        Alarm(
            "reward_without_accuracy",
            f"The reward rises while accuracy falls: from version {best} to {last} the mean reward "
            f"went from {fmean(then):.3g} to {fmean(now):.3g} and held-out accuracy from "
            f"{accuracy[best]:.3g} to {accuracy[last]:.3g}: what is rewarded is not what is "
            "wanted; set task.reward = 'exact', or look at what the verifier gives credit for.",
        )
    ]
