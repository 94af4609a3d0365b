"""Ends of rollouts and groups, which several transitions share."""

from __future__ import annotations

from asyncrl.algorithms.advantages.below import differ_below
from asyncrl.algorithms.advantages.rewards_to_go import differ_to_go
from asyncrl.experience.audit import Facts
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode_transitions import forget_calls
from asyncrl.experience.group import Group
from asyncrl.experience.ledger import Books
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.state import ExperienceState
from asyncrl.messages import Scored


def discard(
    state: ExperienceState,
    rollout: Rollout,
    reason: str,
    status: RolloutStatus = RolloutStatus.DISCARDED,
) -> None:
    """End a live rollout untrained, and discard its tokens under `reason`."""
    group = state.groups[rollout.group]
    if rollout.episode is not None:
        forget_calls(state, rollout)
    if group.split == "train" and rollout.tokens and not rollout.sealed:
        state.audit.generated(audit_facts(group, rollout))
    state.work_index.move(group, rollout, status)
    books_of(state, rollout).end(0, {reason: rollout.release()})
    rollout.holder = ""
    del state.rollouts[rollout.id]
    state.calls.pop(rollout.id, None)


def books_of(state: ExperienceState, rollout: Rollout) -> Books:
    """The accounts that a rollout is in."""
    return state.ledger if rollout.own else state.ledger.foreign


def member_finished(state: ExperienceState, group: Group) -> None:
    """Note that a member was judged or buried, or that a group does not grow. What completes the
    group makes it one visit of its prompt."""
    if group.split == "train" and group.complete:
        own = [m for m in group.own_members if m.parent is None]  # forks are no tries of their own
        solved = sum(isinstance(m.verdict, Scored) and m.verdict.exact for m in own)
        facts = group.facts
        equal = len(set(facts.rewards)) < 2
        state.history.record(
            group.prompt_index,
            [m.verdict.reward for m in own if isinstance(m.verdict, Scored)],
            len(own),
            solved,
            differ=not equal,
            differ_to_go=equal and differ_to_go(facts.rewards, facts.turns),
            differ_below=equal and differ_below(facts.rewards, facts.turns, facts.above),
        )
        if group.source == "pool":
            state.pool.keep(group)
    complete_or_over(state, group)


def complete_or_over(state: ExperienceState, group: Group) -> None:
    """Update a group after a member was judged, buried or discarded: it may have ended, or be
    ready."""
    forget_if_over(state, group)
    if group.id in state.groups:
        state.work_index.offer(group)


def forget_if_over(state: ExperienceState, group: Group) -> None:
    """Remove a group that has ended, unless a step of it has an unpublished version. A group with
    all members buried stays until it is dropped by name."""
    published = state.version or 0
    over = group.ended and any(
        member.status is not RolloutStatus.BURIED for member in group.members
    )
    if over and all(member.step is None or member.step < published for member in group.members):
        forget(state, group)


def forget(state: ExperienceState, group: Group) -> None:
    """Remove a group from the live ones."""
    state.begun.discard(group.id)
    del state.groups[group.id]
    state.groups_live -= group.split == "train"


def audit_facts(group: Group, rollout: Rollout) -> Facts:
    """The audit's facts of a rollout whose generation has ended."""
    spans, attempts = rollout.spans, rollout.attempt
    if (episode := rollout.episode) is not None:
        spans = [span for call in episode.calls for span in call.spans]
        attempts = episode.attempt
    first, last = (
        (spans[0].version, spans[-1].version)
        if spans
        else (group.admitted_version, group.admitted_version)
    )
    return Facts(
        length=rollout.tokens,
        age=max(0, last - group.admitted_version),
        attempts=attempts,
        version=first,
    )


def refuse_unnamed(reason: str) -> None:
    """Raise ImpossibleEvent for an empty reason."""
    if not reason:
        raise ImpossibleEvent("tokens need a named reason to be discarded, and this one is empty")
