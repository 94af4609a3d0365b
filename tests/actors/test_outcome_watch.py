"""Outcomes of the last events, against a recount; and a run that is long holds no more."""

from __future__ import annotations

from look_support import ids_of, life

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.outcome_watch import LAST
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import Scored


class _Log(list[e.AnyEvent]):
    appended = durable = 0


def heard(events: list[e.AnyEvent]) -> EventStore:
    store = EventStore(Experience(), _Log())  # type: ignore[arg-type]
    for event in events:
        store.record(event)
    return store


def filtered(number: int, reward: float) -> list[e.AnyEvent]:
    """A group that is filtered by its rollout, or as a whole."""
    alone = life(number, reward=reward)
    return alone if number % 2 else [*alone[:-1], e.Dropped(number, "zero_variance")]


def test_groups_are_told_apart_and_only_the_last_are_counted() -> None:
    rewards = [(0.0, 1.0, 0.25)[number % 3] for number in range(400)]
    lives = [event for n, reward in enumerate(rewards) for event in filtered(n, reward)]
    taken = [*life(400, end=False), e.Taken(0, [400])]
    recent = heard([e.Published(0), *lives, *taken]).outcomes.recent
    last = [*rewards, 1.0][-LAST:]
    assert (recent.rewards, recent.zeros) == (LAST, last.count(0.0))
    assert recent.reward == sum(last) / LAST and recent.exact == last.count(1.0) / LAST
    assert recent.groups == LAST and recent.filtered == (LAST - 1) / LAST
    assert (recent.too_hard, recent.too_easy, recent.equal) == (
        last.count(0.0),
        last.count(1.0) - 1,
        last.count(0.25),
    )


def test_failed_calls_and_attempts_are_counted_by_kind() -> None:
    ids = ids_of("ab")
    events: list[e.AnyEvent] = [e.Admitted(0, 0, 1, "evaluation", 3, ids, 99, played=True)]
    call = 1
    for attempt, (kind, tool) in enumerate([("timeout", ""), ("raised", "run"), ("", "run")], 1):
        events += [
            e.Begun(0, "agents-0", attempt),
            e.Called(0, attempt, call, None, ids + ids_of(str(attempt)), attempt, 9, 1.0),
            e.Leased(call, "rollout-0", 1),
            e.Extended(call, 1, 0, 0, ids, ids),
            e.Answered(call, 1, "stop"),
            *([e.ToolFailed(0, attempt, call, tool)] if tool else []),
            e.Left(0, attempt, kind, failed=True) if kind else e.Sealed(0, attempt, "stop"),
        ]
        call += 1
    recent = heard([*events, e.Judged(0, Scored(0.0)), e.Dropped(0, "evaluation")]).outcomes.recent
    assert (recent.calls, recent.failed_tools) == (3, {"run": 2})
    assert (recent.attempts, recent.failed_attempts) == (3, {"timeout": 1, "raised": 1})
    assert (recent.rewards, recent.groups) == (0, 0), "of training answers alone"
