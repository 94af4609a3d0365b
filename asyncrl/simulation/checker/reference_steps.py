"""Recount of what each step did with its tokens, from the events of all lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from asyncrl.experience import events as e


def of_steps(events: Iterable[e.AnyEvent]) -> dict[int, tuple[int, Counter[str]]]:
    """By step the tokens of the run's own that were trained, and those that were discarded by
    reason. A step that a crash undid counts as it was redone."""
    step_of, foreign = dict[int, int](), set[int]()
    ends = dict[int, dict[int, e.Trained]]()
    for event in events:
        match event:
            case e.Imported():
                foreign.update(range(event.first, event.first + len(event.answers)))
            case e.Taken():
                step_of.update(dict.fromkeys(event.rollouts, event.step))
            case e.Trained() if event.rollout not in foreign:
                ends.setdefault(step_of[event.rollout], {})[event.rollout] = event
    return {
        step: (
            sum(event.trained for event in trained.values()),
            +sum((Counter(event.discarded) for event in trained.values()), Counter[str]()),
        )
        for step, trained in ends.items()
    }
