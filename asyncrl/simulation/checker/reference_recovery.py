"""The reference after a restart: what a crash undid, and what must be taken again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from asyncrl.experience import events as e
from asyncrl.simulation.checker.reference_state import ReferenceState


def gone_on(
    events: Sequence[e.AnyEvent], undone: Container[int]
) -> tuple[ReferenceState, list[tuple[int, list[int]]]]:
    """The state that a life begins with: that of `events`, but for those whose numbers (from 1) are
    undone, and with nothing taken; and the rollouts that have to be taken again, by step."""
    state = ReferenceState()
    for number, event in enumerate(events, 1):
        if number not in undone:
            state.apply(event)
        elif isinstance(event, e.Published):
            state.served, state.newest = event.version, max(state.newest, event.version)
    due = taken_again(events, state.rollouts)
    for _, rollouts in due:
        for id in rollouts:
            state.untake(id)
    return state, due


def taken_again(events: Iterable[e.AnyEvent], live: Container[int]) -> list[tuple[int, list[int]]]:
    """The rollouts that have to be taken again after a crash, by step: those that are `live` of all
    that were taken. A step that was redone before has taken the same."""
    due = list[tuple[int, list[int]]]()
    for event in events:
        if not isinstance(event, e.Taken) or event.rollouts[0] not in live:
            continue
        if (event.step, event.rollouts) not in due:
            due.append((event.step, event.rollouts))
    return sorted(due, key=lambda taking: taking[0])
