"""Tokens that teach nothing: of groups without a signal, and those that are too old."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.agreement import NO_MORE
from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.explain.conditions.signal import known

FILTERED = 0.5
"""Share of the generated tokens that groups of equal rewards may have."""
STALE = 0.05
"""Share of the generated tokens that may be too old. They cost generation, and not learning: a step
that loses too many is `masked_stale`."""
IN_A_ROW = 1.0
"""Groups in a row that may be filtered, as a multiple of those that live at a time: that many have
been chosen without an answer from the others."""
EASIER = (
    "choose prompts of another difficulty (task.params, task.curriculum), a larger "
    "rollout.group_size, or rollout.filter = none"
)
"""The remedy where groups have no signal."""


def _filtered(facts: RunFacts, limit: float) -> Iterator[Finding]:
    share = facts.discarded_share("zero_variance")
    if share >= limit and not known(facts):
        yield Finding(
            "filtered",
            f"{share:.0%} of the generated tokens are of groups whose rewards are all equal, from "
            f"which nothing is learned; {EASIER}; {NO_MORE}.",
        )


def _filtered_in_a_row(facts: RunFacts, limit: float) -> Iterator[Finding]:
    if facts.filtered > max(1.0, limit * facts.max_live) and not known(facts):
        yield Finding(
            "filtered_in_a_row",
            f"The last {facts.filtered} groups were all filtered ({facts.patience} end the run): "
            "the task is too easy, too hard, or its verifier gives no verdicts; "
            f"{EASIER}; {NO_MORE}.",
        )


def _stale(facts: RunFacts, limit: float) -> Iterator[Finding]:
    if (share := facts.discarded_share("stale")) >= limit:
        yield Finding(
            "stale",
            f"{share:.0%} of the generated tokens were too old to be trained; lower "
            "staleness.depth, or raise staleness.max_lag.",
        )


_SIGNAL = ("task.params", "task.curriculum", "rollout.group_size", "rollout.filter")
WASTE = (
    Condition(
        names=("filtered",),
        measures="share of the generated tokens in groups of equal rewards",
        bound=FILTERED,
        settings=_SIGNAL,
        find=_filtered,
    ),
    Condition(
        names=("filtered_in_a_row",),
        measures="groups filtered in a row, over those that live",
        bound=IN_A_ROW,
        settings=_SIGNAL,
        find=_filtered_in_a_row,
    ),
    Condition(
        names=("stale",),
        measures="share of the generated tokens that is too old",
        bound=STALE,
        settings=("staleness.depth", "staleness.max_lag"),
        find=_stale,
    ),
)
