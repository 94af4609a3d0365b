"""Transitions of the state: one function for each event. Invariant: an event that cannot have
happened raises ImpossibleEvent and changes nothing.

Each function checks everything before it changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from asyncrl.algorithms.advantages.below import differ_below
from asyncrl.algorithms.advantages.rewards_to_go import differ_to_go
from asyncrl.experience import events as e
from asyncrl.experience.audit import Facts
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.episode_transitions import (
    EPISODE_TRANSITIONS,
    bury_call,
    forget_calls,
    leased_call,
    refuse_unfinished,
    seal_episode,
)
from asyncrl.experience.ledger import Books
from asyncrl.experience.live_members import beginning_of
from asyncrl.experience.rollout import ENDED, Group, Rollout
from asyncrl.experience.state import ExperienceState
from asyncrl.messages import Finish, Scored


def _admitted(state: ExperienceState, event: e.Admitted) -> None:
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


def _forked(state: ExperienceState, event: e.Forked) -> None:
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
        _member_finished(state, group)


def _grown(state: ExperienceState, event: e.Grown) -> None:
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
        _member_finished(state, group)


def _imported(state: ExperienceState, event: e.Imported) -> None:
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
        _member_finished(state, group)


def _leased(state: ExperienceState, event: e.Leased) -> None:
    call = state.find_call(event.rollout, RolloutStatus.WAITING)
    if event.attempt != call.attempt + 1:
        raise ImpossibleEvent(
            f"rollout {call.id} was leased {call.attempt} times, so its next attempt "
            f"is not {event.attempt}"
        )
    if not event.holder:
        raise ImpossibleEvent(f"rollout {call.id} was leased without a holder")
    if not state.groups[call.group].prompt:
        raise ImpossibleEvent(f"rollout {call.id} was leased, but its prompt has no token")
    state.work_index.move(state.groups[call.group], call, RolloutStatus.LEASED)
    call.attempt, call.holder = event.attempt, event.holder


def _extended(state: ExperienceState, event: e.Extended) -> None:
    call = leased_call(state, event.rollout, event.attempt)
    pinned = state.groups[call.group].version
    if pinned is not None and event.version != pinned:
        raise ImpossibleEvent(
            f"rollout {call.id} is pinned to version {pinned}, but got tokens of version "
            f"{event.version}"
        )
    state.ledger.tokens.enter(
        call.extend(event.version, event.start, event.ids, event.behaviour, event.routing)
    )


def _routed(state: ExperienceState, event: e.RoutingKnown) -> None:
    call = leased_call(state, event.rollout, event.attempt)
    call.route(event.start, event.tokens, event.routing)


def _sealed(state: ExperienceState, event: e.Sealed) -> None:
    refuse_unfinished(event.rollout, event.finish)
    rollout = state.rollouts.get(event.rollout)
    if rollout is not None and rollout.episode is not None:
        rollout = seal_episode(state, event)
    else:
        rollout = _leased_rollout(state, event)
    _complete(state, rollout, event.finish)


def _complete(state: ExperienceState, rollout: Rollout, finish: Finish) -> None:
    """Let a rollout wait for a verdict."""
    state.sealings += 1
    rollout.holder, rollout.finish, rollout.sealed = "", finish, state.sealings
    group = state.groups[rollout.group]
    state.work_index.move(group, rollout, RolloutStatus.SEALED)
    state.calls.pop(rollout.id, None)  # an episode was none
    if group.split == "train":
        state.audit.generated(_facts(group, rollout))


def _requeued(state: ExperienceState, event: e.Requeued) -> None:
    call = leased_call(state, event.rollout, event.attempt)
    if not call.remaining:
        raise ImpossibleEvent(
            f"rollout {call.id} has its {call.max_new_tokens} tokens: it must be sealed as "
            "'length', not requeued"
        )
    state.work_index.move(state.groups[call.group], call, RolloutStatus.WAITING)
    call.holder = ""
    call.failures += event.failed


def _buried(state: ExperienceState, event: e.Buried) -> None:
    _named(event.reason)
    if isinstance(call := state.calls.get(event.rollout), AgentCall):
        bury_call(state, call, event.reason)
        return
    rollout = state.find(
        event.rollout, RolloutStatus.WAITING, RolloutStatus.LEASED, RolloutStatus.BEGUN
    )
    _discard(state, rollout, event.reason, RolloutStatus.BURIED)
    _member_finished(state, state.groups[rollout.group])


def _spared(state: ExperienceState, event: e.Spared) -> None:
    rollout = _prunable(state, event.rollout)
    if not rollout.looked < event.tokens <= rollout.tokens:
        raise ImpossibleEvent(
            f"rollout {rollout.id} has {rollout.tokens} tokens, and a rule was asked about "
            f"{rollout.looked} of them before, and then about {event.tokens}"
        )
    if not 0 < event.chance <= 1:  # NaN, too
        raise ImpossibleEvent(
            f"rollout {rollout.id} goes on with a chance of {event.chance}: it is over 0, and 1 at "
            "most"
        )
    rollout.looked = event.tokens
    rollout.chance *= event.chance


def _pruned(state: ExperienceState, event: e.Pruned) -> None:
    _named(event.reason)
    rollout = _prunable(state, event.rollout)
    if not 0 <= event.kept <= rollout.tokens:
        raise ImpossibleEvent(
            f"rollout {rollout.id} has {rollout.tokens} tokens, and {event.kept} of them are kept"
        )
    rollout.pruned = True
    state.ledger.pruned[event.reason] = state.ledger.pruned.get(event.reason, 0) + 1
    if not event.kept:
        _discard(state, rollout, event.reason, RolloutStatus.BURIED)
        _member_finished(state, state.groups[rollout.group])
        return
    state.ledger.tokens.discard(rollout.cut(event.kept), event.reason)
    _complete(state, rollout, "length")


def _prunable(state: ExperienceState, number: int) -> Rollout:
    """The rollout that a rule may end. Raises ImpossibleEvent for one that it may not."""
    rollout = state.find(number, RolloutStatus.WAITING, RolloutStatus.LEASED)
    if state.groups[rollout.group].split != "train" or rollout.episode is not None:
        raise ImpossibleEvent(
            f"rollout {rollout.id} is an agent's, or of an evaluation: no rule may end it"
        )
    return rollout


def _late_tokens(state: ExperienceState, event: e.LateTokens) -> None:
    if event.tokens < 1:
        raise ImpossibleEvent(f"{event.tokens} late tokens are not a positive number")
    state.ledger.tokens.enter(event.tokens)
    state.ledger.tokens.discard(event.tokens, "late")


def _judged(state: ExperienceState, event: e.Judged) -> None:
    rollout = state.find(event.rollout, RolloutStatus.SEALED)
    group = state.groups[rollout.group]
    if isinstance(event.verdict, Scored):
        figures = event.verdict.figures.values()
        numbers = [event.verdict.reward, *event.verdict.parts, *figures]
        if not all(map(math.isfinite, numbers)):
            raise ImpossibleEvent(
                f"rollout {rollout.id} was scored {numbers}: only finite rewards are verdicts"
            )
        if not event.verdict.fits(rollout.tokens):
            raise ImpossibleEvent(
                f"rollout {rollout.id} of {rollout.tokens} tokens has errors at "
                f"{event.verdict.errors}"
            )
        if not group.comparable(event.verdict):
            raise ImpossibleEvent(
                f"rollout {rollout.id} was scored by {len(event.verdict.parts)} rewards, but "
                "others of its group were not"
            )
    state.judgements += 1
    rollout.judged, rollout.verdict = state.judgements, event.verdict
    if isinstance(event.verdict, Scored) and group.split == "train" and rollout.own:
        if event.verdict.exact:
            state.history.answered(group.prompt_index, rollout.shared_tokens + rollout.tokens)
        if rollout.looked:
            state.history.judge(beginning_of(group, rollout, rollout.looked), event.verdict.exact)
    state.work_index.move(group, rollout, RolloutStatus.JUDGED)
    _member_finished(state, group)


def _taken(state: ExperienceState, event: e.Taken) -> None:
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
            _discard(state, member, "no_verdict")
    for rollout in left_out:
        rollout.left_out = True
        _discard(state, rollout, "not_chosen")
    state.step = event.step


def _trained(state: ExperienceState, event: e.Trained) -> None:
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
        _named(reason)
    group = state.groups[rollout.group]
    if event.trained and rollout.own:
        state.audit.trained(_facts(group, rollout), event.trained / rollout.tokens)
    rollout.release()
    _books(state, rollout).end(event.trained, event.discarded)
    state.work_index.move(
        group, rollout, RolloutStatus.TRAINED if event.trained else RolloutStatus.DISCARDED
    )
    del state.rollouts[rollout.id]


def _stored_for_replay(state: ExperienceState, event: e.StoredForReplay) -> None:
    if event.group not in state.begun:
        raise ImpossibleEvent(f"group {event.group} was not taken: there is nothing to replay")
    group = state.groups[event.group]
    if any(member.step is not None and member.step >= event.until for member in group.members):
        raise ImpossibleEvent(
            f"group {group.id} would be replayed until step {event.until}, but is trained then for "
            "the first time"
        )
    state.replay_buffer.keep(group, event.until)


def _replayed(state: ExperienceState, event: e.Replayed) -> None:
    if not event.groups:
        raise ImpossibleEvent(f"step {event.step} replays no group")
    state.replay_buffer.replay(event.step, event.groups)


def _discarded(state: ExperienceState, event: e.Discarded) -> None:
    rollout = state.find(event.rollout, RolloutStatus.JUDGED)
    _named(event.reason)
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
    _discard(state, rollout, event.reason)
    _complete_or_over(state, group)


def _dropped(state: ExperienceState, event: e.Dropped) -> None:
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
    _named(event.reason)
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
            _discard(state, member, event.reason)
    if event.restart:
        state.restarts[group.id] = group.prompt_index
    _forget(state, group)


def _published(state: ExperienceState, event: e.Published) -> None:
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
        _forget_if_over(state, state.groups[number])


def _checkpointed(state: ExperienceState, event: e.Checkpointed) -> None:
    state.checkpoint = event


def apply(state: ExperienceState, event: e.AnyEvent) -> None:
    """Apply an event to the state. Raises ImpossibleEvent, with the state unchanged, for an event
    that cannot have happened."""
    _TRANSITIONS[type(event)](state, event)


# ------------------------------------------------------------------------------- what they share


def _join(state: ExperienceState, group: Group, members: tuple[Rollout, ...]) -> None:
    """Add new members of a group to the live rollouts."""
    for member in members:
        state.rollouts[member.id] = member
        if member.episode is None:
            state.calls[member.id] = member
        state.work_index.enter(group, member)
    state.next_rollout += len(members)
    state.ledger.rollouts.enter(len(members))


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


def _leased_rollout(state: ExperienceState, event: e.Sealed) -> Rollout:
    """The rollout of one turn whose lease this event ends."""
    call = leased_call(state, event.rollout, event.attempt)
    if not isinstance(call, Rollout):
        raise ImpossibleEvent(f"call {call.id} is not a rollout: it is answered, not sealed")
    return call


def _discard(
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
        state.audit.generated(_facts(group, rollout))
    state.work_index.move(group, rollout, status)
    _books(state, rollout).end(0, {reason: rollout.release()})
    rollout.holder = ""
    del state.rollouts[rollout.id]
    state.calls.pop(rollout.id, None)


def _books(state: ExperienceState, rollout: Rollout) -> Books:
    """The accounts that a rollout is in."""
    return state.ledger if rollout.own else state.ledger.foreign


def _member_finished(state: ExperienceState, group: Group) -> None:
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
    _complete_or_over(state, group)


def _complete_or_over(state: ExperienceState, group: Group) -> None:
    """Update a group after a member was judged, buried or discarded: it may have ended, or be
    ready."""
    _forget_if_over(state, group)
    if group.id in state.groups:
        state.work_index.offer(group)


def _forget_if_over(state: ExperienceState, group: Group) -> None:
    """Remove a group that has ended, unless a step of it has an unpublished version. A group with
    all members buried stays until it is dropped by name."""
    published = state.version or 0
    over = group.ended and any(
        member.status is not RolloutStatus.BURIED for member in group.members
    )
    if over and all(member.step is None or member.step < published for member in group.members):
        _forget(state, group)


def _forget(state: ExperienceState, group: Group) -> None:
    """Remove a group from the live ones."""
    state.begun.discard(group.id)
    del state.groups[group.id]
    state.groups_live -= group.split == "train"


def _facts(group: Group, rollout: Rollout) -> Facts:
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


def _named(reason: str) -> None:
    """Raise ImpossibleEvent for an empty reason."""
    if not reason:
        raise ImpossibleEvent("tokens need a named reason to be discarded, and this one is empty")


_TRANSITIONS: dict[type, Callable[[ExperienceState, Any], None]] = {
    e.Admitted: _admitted,
    e.Forked: _forked,
    e.Grown: _grown,
    e.Imported: _imported,
    e.Leased: _leased,
    e.Extended: _extended,
    e.RoutingKnown: _routed,
    e.Sealed: _sealed,
    **EPISODE_TRANSITIONS,
    e.Requeued: _requeued,
    e.Buried: _buried,
    e.Spared: _spared,
    e.Pruned: _pruned,
    e.LateTokens: _late_tokens,
    e.Judged: _judged,
    e.Taken: _taken,
    e.Trained: _trained,
    e.StoredForReplay: _stored_for_replay,
    e.Replayed: _replayed,
    e.Discarded: _discarded,
    e.Dropped: _dropped,
    e.Published: _published,
    e.Checkpointed: _checkpointed,
}
