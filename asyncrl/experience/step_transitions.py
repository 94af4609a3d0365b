"""Transitions of training: what steps take, train, replay and leave out, and their versions.

Each function checks everything before it changes anything.
"""

from __future__ import annotations

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.rollout_ends import (
    audit_facts,
    books_of,
    complete_or_over,
    discard,
    forget_if_over,
    refuse_unnamed,
)
from asyncrl.experience.state import ExperienceState
from asyncrl.messages import Scored


def taken(state: ExperienceState, event: e.Taken) -> None:
    if event.step < max(state.step or 0, state.version or 0):
        raise ImpossibleEvent(
            f"step {event.step} is over: the last one is {state.step}, and version "
            f"{state.version} is published"
        )
    rollouts = [state.find(number, RolloutStatus.JUDGED) for number in event.rollouts]
    if not rollouts or len(set(event.rollouts)) < len(rollouts):
        raise ImpossibleEvent(
            f"step {event.step} takes rollouts {event.rollouts}: it needs at least one, and each "
            "once"
        )
    for rollout in rollouts:
        if state.groups[rollout.group].split != "train" or not isinstance(rollout.verdict, Scored):
            raise ImpossibleEvent(
                f"rollout {rollout.id} cannot be trained: it is of an evaluation, or has no reward"
            )
        group = state.groups[rollout.group]
        if group.may_grow or group.imports or not group.settled:
            raise ImpossibleEvent(
                f"rollout {rollout.id} is of group {group.id}, which may grow: nothing of it is "
                "taken before"
            )
        if any(span.version > event.step for span in rollout.spans):
            raise ImpossibleEvent(
                f"rollout {rollout.id} has tokens of a version that only step {event.step} or a "
                "later one makes"
            )
    left_out = _left_out(state, event)
    state.steps.take(event.step, event.rollouts)
    for rollout in rollouts:
        group = state.groups[rollout.group]
        if group.complete and not group.begun:
            state.work_index.withdraw(group)
        state.work_index.move(group, rollout, RolloutStatus.TAKEN)
        rollout.step = event.step
        state.begun.add(group.id)
    for group in {rollout.group: state.groups[rollout.group] for rollout in rollouts}.values():
        for member in group.unscored if group.complete else ():
            discard(state, member, "no_verdict")
    for rollout in left_out:
        rollout.left_out = True
        discard(state, rollout, "not_chosen")
    state.step = event.step


def trained(state: ExperienceState, event: e.Trained) -> None:
    rollout = state.find(event.rollout, RolloutStatus.TAKEN)
    if event.trained < 0 or min(event.discarded.values(), default=0) < 0:
        raise ImpossibleEvent(
            f"rollout {rollout.id} has a negative count of tokens: {event.trained} trained, "
            f"{event.discarded} discarded"
        )
    if event.trained + sum(event.discarded.values()) != rollout.tokens:
        raise ImpossibleEvent(
            f"rollout {rollout.id} has {rollout.tokens} tokens, not {event.trained} trained "
            f"and {event.discarded} discarded"
        )
    for reason in event.discarded:
        refuse_unnamed(reason)
    group = state.groups[rollout.group]
    if event.trained and rollout.own:
        state.audit.trained(audit_facts(group, rollout), event.trained / rollout.tokens)
    rollout.release()
    books_of(state, rollout).end(event.trained, event.discarded)
    state.work_index.move(
        group, rollout, RolloutStatus.TRAINED if event.trained else RolloutStatus.DISCARDED
    )
    del state.rollouts[rollout.id]


def stored_for_replay(state: ExperienceState, event: e.StoredForReplay) -> None:
    if event.group not in state.begun:
        raise ImpossibleEvent(f"group {event.group} was not taken: there is nothing to replay")
    group = state.groups[event.group]
    if any(member.step is not None and member.step >= event.until for member in group.members):
        raise ImpossibleEvent(
            f"group {group.id} would be replayed until step {event.until}, but is trained then for "
            "the first time"
        )
    state.replay_buffer.keep(group, event.until)


def replayed(state: ExperienceState, event: e.Replayed) -> None:
    if not event.groups:
        raise ImpossibleEvent(f"step {event.step} replays no group")
    state.replay_buffer.replay(event.step, event.groups)


def discarded(state: ExperienceState, event: e.Discarded) -> None:
    rollout = state.find(event.rollout, RolloutStatus.JUDGED)
    refuse_unnamed(event.reason)
    if rollout.step is not None:
        raise ImpossibleEvent(
            f"rollout {rollout.id} must be taken again: it is in the weights of versions "
            "that were published"
        )
    group = state.groups[rollout.group]
    if group.split != "train":
        raise ImpossibleEvent(
            f"rollout {rollout.id} is for {group.split}: only its whole group is dropped"
        )
    if group.may_grow or group.imports or not group.settled:
        raise ImpossibleEvent(
            f"rollout {rollout.id} is of group {group.id}, which may grow: only the whole group is "
            "dropped"
        )
    if group.complete and not group.begun:
        state.work_index.withdraw(group)
    discard(state, rollout, event.reason)
    complete_or_over(state, group)


def published(state: ExperienceState, event: e.Published) -> None:
    if event.version < (state.version or 0):
        raise ImpossibleEvent(
            f"version {event.version} cannot be published after version {state.version}"
        )
    if (due := state.steps.due) is not None and due[0] < event.version:
        raise ImpossibleEvent(
            f"version {event.version} cannot be published before step {due[0]} has repeated its "
            "takings"
        )
    for number in state.steps.made(event.version):
        if number in state.rollouts:
            raise ImpossibleEvent(
                f"version {event.version} is published, but rollout {number} is still being "
                "trained for it"
            )
    state.steps.publish(event.version)
    state.version = event.version
    state.replay_buffer.publish(event.version)
    for number in sorted(state.begun):
        forget_if_over(state, state.groups[number])


def _left_out(state: ExperienceState, event: e.Taken) -> list[Rollout]:
    """The rollouts that a taking leaves out. Raises ImpossibleEvent for one that it cannot."""
    left_out = [state.find(number, RolloutStatus.JUDGED) for number in event.left_out]
    taken = {state.rollouts[number].group for number in event.rollouts}
    for rollout in left_out:
        of_taken = rollout.group in taken and state.groups[rollout.group].complete
        if not of_taken or not isinstance(rollout.verdict, Scored) or rollout.step is not None:
            raise ImpossibleEvent(
                f"step {event.step} leaves out rollout {rollout.id}, which has no reward, is due, "
                "or is of no complete group that it takes"
            )
    if len({*event.rollouts, *event.left_out}) < len(event.rollouts) + len(event.left_out):
        raise ImpossibleEvent(
            f"step {event.step} takes rollouts {event.rollouts} and leaves out {event.left_out}: "
            "each may be there once"
        )
    return left_out
