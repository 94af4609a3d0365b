"""Rewards from which nothing is learned: all of them 0, or equal within most groups, because
prompts are too easy or too hard. They are told apart, as they need opposite remedies."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.agreement import NO_MORE
from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts

FEW_GROUPS = 16
"""Groups from which on a share of them means something."""
FEW_REWARDS = 64
"""Rewards of which none is above 0 by chance."""
FILTERED = 0.5
"""Share of the last groups that may be filtered."""
FOR_AGENTS = (
    "ask with the task's own prompt (ASYNCRL_PROMPT, episode.messages), or set model.path: the "
    "bundled model has learned that prompt alone, and answers it without another word"
)
"""The remedy if an agent gets no reward at all."""


def known(facts: RunFacts) -> bool:
    """True if enough of the last groups are known to say why they are filtered."""
    return facts.recent.groups >= FEW_GROUPS


def _no_signal(facts: RunFacts, limit: float) -> Iterator[Finding]:
    recent = facts.recent
    if recent.rewards >= FEW_REWARDS and recent.zeros == recent.rewards:
        begins = f"None of the last {recent.rewards} rewards is above 0, so nothing can be learned"
        yield Finding(
            "all_zero",
            f"{begins}: read what the agent asks and the model says (asyncrl rollouts). If some "
            f"answers are right, correct the agent's reward or task.verifier; else {FOR_AGENTS}; "
            f"{NO_MORE}."
            if recent.attempts
            else f"{begins}: read what the model says (asyncrl rollouts). If some answers are "
            "right, correct task.verifier; else choose easier prompts (task.params, "
            f"task.curriculum), or give credit for parts (task.reward); {NO_MORE}.",
        )
        return
    share = recent.filtered
    if share is None or not known(facts) or share <= limit:
        return
    ends = f" ({facts.filtered} in a row by now, {facts.patience} end the run)"
    ends = ends if facts.max_live and facts.filtered > facts.max_live else ""
    of = f"{share:.0%} of the last {recent.groups} groups were filtered, "
    most = max(recent.too_easy, recent.too_hard, recent.equal)
    if most == recent.too_hard:
        yield Finding(
            "too_hard",
            f"{of}most of them without a reward above 0: the prompts are too hard; choose easier "
            "ones (task.params, task.curriculum), or a larger rollout.group_size; "
            f"{NO_MORE}{ends}.",
        )
    elif most == recent.too_easy:
        yield Finding(
            "too_easy",
            f"{of}most of them with only right answers: the prompts are too easy; choose harder "
            f"ones (task.params, task.curriculum), or end the run; {NO_MORE}{ends}.",
        )
    else:
        yield Finding(
            "equal_rewards",
            f"{of}as the rewards within each were equal, and neither right nor 0: the verifier "
            "does not tell these answers apart; give credit for parts (task.reward, "
            f"task.verifier); {NO_MORE}{ends}.",
        )


NO_SIGNAL = Condition(
    names=("all_zero", "too_hard", "too_easy", "equal_rewards"),
    measures="share of the last groups that was filtered; rewards of 0 among the last 256",
    bound=FILTERED,
    settings=(
        "task.verifier",
        "task.params",
        "task.curriculum",
        "task.reward",
        "rollout.group_size",
        "model.path",
    ),
    find=_no_signal,
)
