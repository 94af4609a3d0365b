"""Transitions of groups: which members they have, from the admission to the end.

Each function checks everything before it changes anything.
"""

from __future__ import annotations

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import ENDED, Rollout
from asyncrl.experience.rollout_ends import discard, forget, member_finished, refuse_unnamed
from asyncrl.experience.state import ExperienceState


def admitted(state: ExperienceState, event: e.Admitted) -> None:
    if (event.group, event.first) != (state.next_group, state.next_rollout):
        raise ImpossibleEvent(
            f"group {event.group} from rollout {event.first} was admitted, but the next are group "
            f"{state.next_group} and rollout {state.next_rollout}"
        )
    group = Group.of(
        event,
        state.ordinals[event.split],
        state.history.prior(event.prompt_index),
        state.version or 0,
        state.history.posterior(event.prompt_index),
        state.history.longest(event.prompt_index),
    )
    if event.restarts is not None and state.restarts.get(event.restarts) != event.prompt_index:
        raise ImpossibleEvent(
            f"group {event.group} restarts prompt {event.prompt_index} of group "
            f"{event.restarts}, which does not wait for a restart"
        )
    state.groups[group.id] = group
    _join(state, group, group.members)
    if event.restarts is None:
        state.prompts[event.split] += 1
        if event.split == "train":
            state.history.admit(event.prompt_index, event.cursor)
    else:
        del state.restarts[event.restarts]
    state.ordinals[event.split] += 1
    state.groups_live += event.split == "train"
    state.next_group += 1
    if event.split == "train":
        state.history.sized(groups=1, rollouts=event.size)


def forked(state: ExperienceState, event: e.Forked) -> None:
    parent = state.find(
        event.rollout,
        RolloutStatus.WAITING,
        RolloutStatus.LEASED,
        RolloutStatus.SEALED,
        RolloutStatus.JUDGED,
    )
    group = state.groups[parent.group]
    if (
        not parent.forks
        or event.first != state.next_rollout
        or (not event.at and not parent.sealed)
    ):
        raise ImpossibleEvent(
            f"rollout {parent.id}, {parent.status.value}, cannot fork to rollout {event.first}, or "
            f"end its forks: it may not, or the next is {state.next_rollout}"
        )
    if event.at:
        more = group.fork(event, parent)
        _join(state, group, (more,))
    else:
        parent.forks = False
    if not parent.forks:
        state.work_index.settle(parent)
    if not event.at:
        member_finished(state, group)


def grown(state: ExperienceState, event: e.Grown) -> None:
    group = state.groups.get(event.group)
    if group is None or not group.undecided:
        raise ImpossibleEvent(
            f"group {event.group} cannot grow: it is over or complete, or waits for verdicts"
        )
    if not len(group.members) <= event.size <= group.most:
        raise ImpossibleEvent(
            f"group {group.id} of {len(group.members)} rollouts cannot have {event.size}: at least "
            f"as many, and at most {group.most}"
        )
    if event.first != state.next_rollout:
        raise ImpossibleEvent(
            f"group {group.id} grows from rollout {event.first}, but the next is "
            f"{state.next_rollout}"
        )
    state.work_index.decide(group)
    if more := group.grow(event):
        _join(state, group, more)
        state.history.sized(groups=0, rollouts=len(more))
    else:
        member_finished(state, group)


def imported(state: ExperienceState, event: e.Imported) -> None:
    group = state.groups.get(event.group)
    if group is None or not group.importing:
        raise ImpossibleEvent(
            f"group {event.group} cannot take in foreign answers: it is over or complete, or waits "
            "for verdicts"
        )
    if event.first != state.next_rollout or len(event.answers) > group.imports:
        raise ImpossibleEvent(
            f"group {group.id} takes in {len(event.answers)} foreign answers from rollout "
            f"{event.first} on; it may have {group.imports}, and the next is {state.next_rollout}"
        )
    if any(answer.version > state.closed for answer in event.answers):
        raise ImpossibleEvent(
            f"group {group.id} takes in an answer that is younger than version {state.closed}, "
            "which was published last"
        )
    more = group.take_in(event, state.sealings)
    state.work_index.close_imports(group)
    state.sealings += len(more)
    state.next_rollout += len(more)
    state.ledger.foreign.rollouts.enter(len(more))
    for member in more:
        state.rollouts[member.id] = member
        state.work_index.enter(group, member)
        state.ledger.foreign.tokens.enter(member.tokens)
    if not more:
        member_finished(state, group)


def dropped(state: ExperienceState, event: e.Dropped) -> None:
    group = state.groups.get(event.group)
    if group is None:
        raise ImpossibleEvent(
            f"group {event.group} is not live: it was never admitted, or has ended"
        )
    if group.id in state.begun:
        raise ImpossibleEvent(
            f"group {group.id} was taken, at least in part: only the trainer's report can end it"
        )
    if group.begun:
        raise ImpossibleEvent(
            f"group {group.id} must be taken again: it is in the weights of versions that "
            "were published"
        )
    refuse_unnamed(event.reason)
    if event.restart and group.split != "train":
        raise ImpossibleEvent(
            f"group {group.id} is for {group.split}: only a training prompt restarts"
        )
    if group.undecided:
        state.work_index.decide(group)
    elif group.importing:
        state.work_index.close_imports(group)
    elif group.complete:
        state.work_index.withdraw(group)
    for member in group.members:
        if member.status not in ENDED:
            discard(state, member, event.reason)
    if event.restart:
        state.restarts[group.id] = group.prompt_index
    forget(state, group)


def _join(state: ExperienceState, group: Group, members: tuple[Rollout, ...]) -> None:
    """Add new members of a group to the live rollouts."""
    for member in members:
        state.rollouts[member.id] = member
        if member.episode is None:
            state.calls[member.id] = member
        state.work_index.enter(group, member)
    state.next_rollout += len(members)
    state.ledger.rollouts.enter(len(members))
