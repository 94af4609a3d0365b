"""The facts of a run over a time, and a condition on them. Pure: no clock, no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from asyncrl.explain.recent_outcomes import RecentOutcomes
from asyncrl.messages import LastRank, StartCounts


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one step, about the last seconds, or about the run so far. What is not known is
    left out, and is taken to be well.

    Of a step: `metrics` are the trainer's and those of the responses that were looked at for it.
    Its tokens were `trained`, or `left_out` for a reason. `rewards` are the mean rewards so far, by
    the version that each step made; `accuracy` is the share of right answers to `prompts` held-out
    prompts, by version. Of the `answers` that were judged for it, or so far, some got no verdict
    (`unjudged`), most of them for a reason. `last_rank` is the rank of the trainer that others
    waited for.

    Of any time: idle shares are from 0 to 1. Of the `generated` tokens, those that are `discarded`
    are by reason. The last `filtered` groups taught nothing, of which `patience` end the run;
    `max_live` groups may live at a time. The last `unwritten` checkpoints were not written, the
    last of them because of `unwritten_why`. The journal waits for its disk because of
    `journal_why`. Of the last answers the judge gave a share no verdict (`judge_missed`), most of
    them because of `judge_why`. `starts` are those of agents' programs. Of the `tool_replies` to
    calls with tools, `unread_calls` look like calls that cannot be read. `recent` is what came of
    the last answers, groups, calls and attempts.

    >>> RunFacts(generated=10, discarded={"stale": 4}).discarded_share("stale")
    0.4
    """

    metrics: Mapping[str, float] = {}
    trained: int = 0
    left_out: Mapping[str, int] = {}
    rewards: Mapping[int, float] = {}
    accuracy: Mapping[int, float] = {}
    prompts: int = 0
    answers: int = 0
    unjudged: int = 0
    unjudged_reason: str = ""
    last_rank: LastRank | None = None
    idle_trainer: float | None = None
    idle_rollout: float | None = None
    generated: int = 0
    discarded: Mapping[str, int] = {}
    filtered: int = 0
    patience: int = 0
    max_live: int = 0
    unwritten: int = 0
    unwritten_why: str = ""
    journal_why: str = ""
    judge_missed: float = 0.0
    judge_why: str = ""
    starts: StartCounts | None = None
    tool_replies: int = 0
    unread_calls: int = 0
    recent: RecentOutcomes = RecentOutcomes()

    def discarded_share(self, reason: str) -> float:
        """The share of the generated tokens that was discarded for a reason, 0 to 1."""
        return self.discarded.get(reason, 0) / self.generated if self.generated else 0.0


class Finding(NamedTuple):
    """A condition that holds: its cause in one word, for metrics and logs, and a `sentence` that
    says what was measured, why that is, and what to do.

    >>> Finding("stale", "10% of the generated tokens were too old to be trained.").name
    'stale'
    """

    name: str
    sentence: str


class Condition(NamedTuple):
    """One row of the table. `names` are the causes that it tells apart (`masked_*`: one for each
    reason). It holds where what it `measures` leaves `bound`. `settings` are those that help, of
    which each sentence names one. `find(facts, bound)` gives what it finds.

    >>> from asyncrl.explain.conditions.sides import IDLE_SIDES
    >>> [found] = IDLE_SIDES.find(RunFacts(idle_trainer=0.8, idle_rollout=0.1), 0.3)
    >>> found.name
    'trainer_idle'
    """

    names: tuple[str, ...]
    measures: str
    bound: float
    settings: tuple[str, ...]
    find: Callable[[RunFacts, float], Iterable[Finding]]
