"""Transitions for events of agents. Invariant: as in `transitions.py`, an event that cannot have
happened raises ImpossibleEvent and changes nothing."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

from asyncrl.experience import events as e
from asyncrl.experience.call import Call, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall, Episode
from asyncrl.experience.image_marks import HASH
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.state import ExperienceState

COMPLETE = ("stop", "length")
"""Finish reasons of complete responses."""


def _begun(state: ExperienceState, event: e.Begun) -> None:
    rollout = state.find(event.rollout, RolloutStatus.WAITING)
    if (episode := rollout.episode) is None:
        raise ImpossibleEvent(f"rollout {rollout.id} is not an agent's: it is leased, not begun")
    if event.attempt != episode.attempt + 1:
        raise ImpossibleEvent(
            f"rollout {rollout.id} was begun {episode.attempt} times, so its next attempt is not "
            f"{event.attempt}"
        )
    if not event.holder:
        raise ImpossibleEvent(f"rollout {rollout.id} was begun without a holder")
    state.work_index.move(state.groups[rollout.group], rollout, RolloutStatus.BEGUN)
    episode.attempt, episode.holder = event.attempt, event.holder


def _called(state: ExperienceState, event: e.Called) -> None:
    rollout, episode = _played(state, event)
    if event.call != state.next_rollout:
        raise ImpossibleEvent(f"the next call is {state.next_rollout}, and this is {event.call}")
    if any(call.key == event.key and _lives(call) for call in episode.calls):
        raise ImpossibleEvent(f"rollout {rollout.id} already has a call of the key {event.key}")
    if len(event.given) & 3 or not (event.given or event.after):
        raise ImpossibleEvent(
            f"call {event.call} was given {len(event.given)} bytes, which are empty or not whole "
            "int32"
        )
    if event.after is not None:
        parent = episode.find(event.after[0])
        most = len(episode.context(parent)) // 4 + parent.tokens
        if not 0 < event.after[1] <= most:
            raise ImpossibleEvent(
                f"call {event.call} shares {event.after[1]} tokens with call {parent.id}, which "
                f"has {most}"
            )
    _refuse_unknown_images(episode, event)
    if not 0 < event.max_new_tokens <= rollout.max_new_tokens:
        raise ImpossibleEvent(
            f"call {event.call} may have {event.max_new_tokens} tokens, of {rollout.max_new_tokens}"
        )
    if not 0 <= event.temperature < math.inf:
        raise ImpossibleEvent(f"call {event.call} has the temperature {event.temperature}")
    call = AgentCall(
        id=event.call,
        group=rollout.group,
        max_new_tokens=event.max_new_tokens,
        rollout=rollout.id,
        after=event.after,
        given=event.given,
        key=event.key,
        temperature=event.temperature,
        role=event.role,
    )
    episode.images += event.images
    episode.calls.append(call)
    episode.used.append(call.id)
    state.calls[call.id] = call
    state.work_index.enter(state.groups[rollout.group], call)
    state.next_rollout += 1


def _refuse_unknown_images(episode: Episode, event: e.Called) -> None:
    known = [*episode.images, *event.images]
    if len(known) > len(set(known)) or not all(map(HASH.fullmatch, event.images)):
        raise ImpossibleEvent(f"call {event.call} has an image twice, or one that is no hash")
    if min(array("i", event.given), default=0) < -len(known):
        raise ImpossibleEvent(f"call {event.call} was given an image that its episode has not")


def _answered(state: ExperienceState, event: e.Answered) -> None:
    call = leased_call(state, event.call, event.attempt)
    refuse_unfinished(event.call, event.finish)
    if not isinstance(call, AgentCall):
        raise ImpossibleEvent(f"rollout {call.id} is not an agent's: it is sealed, not answered")
    state.work_index.move(state.groups[call.group], call, RolloutStatus.ANSWERED)
    call.holder, call.finish = "", event.finish


def _reused(state: ExperienceState, event: e.Reused) -> None:
    rollout, episode = _played(state, event)
    call = episode.find(event.call)
    if call.id in episode.used or not _lives(call):
        raise ImpossibleEvent(
            f"the agent of rollout {rollout.id} already made call {call.id}, or it is buried"
        )
    episode.used.append(call.id)
    call.role = event.role
    if call.status is RolloutStatus.UNCLAIMED:
        state.work_index.move(state.groups[rollout.group], call, RolloutStatus.WAITING)


def _cut(state: ExperienceState, event: e.Cut) -> None:
    rollout, episode = _played(state, event)
    call = episode.find(event.call)
    if call.id not in episode.used or not (call.status is RolloutStatus.WAITING or call.finish):
        raise ImpossibleEvent(
            f"call {call.id} is {call.status.value}, or not of this attempt: it cannot be cut"
        )
    if not episode.needed(call) <= event.tokens <= call.tokens:
        raise ImpossibleEvent(
            f"call {call.id} has {call.tokens} tokens, of which other contexts need "
            f"{episode.needed(call)}: it cannot be cut to {event.tokens}"
        )
    if call.status is RolloutStatus.WAITING:
        state.work_index.move(state.groups[rollout.group], call, RolloutStatus.ANSWERED)
    call.finish = ""
    state.ledger.tokens.discard(call.cut(event.tokens), "unused")


def _noted(state: ExperienceState, event: e.Noted) -> None:
    rollout, episode = _played(state, event)
    if not event.name or event.name in episode.notes:
        raise ImpossibleEvent(
            f"rollout {rollout.id} already has a note {event.name!r}, or it has no name"
        )
    episode.notes[event.name] = event.value


def _rewarded(state: ExperienceState, event: e.Rewarded) -> None:
    rollout, episode = _played(state, event)
    if not math.isfinite(event.reward):
        raise ImpossibleEvent(f"rollout {rollout.id} was given {event.reward}, which is no reward")
    if event.call is not None and event.call not in episode.used:
        raise ImpossibleEvent(
            f"the agent of rollout {rollout.id} gave a reward to call {event.call}, which it did "
            "not make"
        )
    if event.call in episode.rewards:
        raise ImpossibleEvent(f"rollout {rollout.id} already has this reward")
    episode.rewards[event.call] = event.reward
    if event.call is not None and event.key:
        episode.keys[event.call] = event.key


def _tool_failed(state: ExperienceState, event: e.ToolFailed) -> None:
    rollout, episode = _played(state, event)
    if not event.tool or event.call not in episode.used or event.call in episode.failed:
        raise ImpossibleEvent(
            f"call {event.call} of rollout {rollout.id} cannot fail: it failed before, or is not "
            "of this attempt, or its tool has no name"
        )
    episode.failed[event.call] = event.tool


def _left(state: ExperienceState, event: e.Left) -> None:
    rollout, episode = _played(state, event)
    if not event.reason:
        raise ImpossibleEvent(f"the agent of rollout {rollout.id} left for a reason without a name")
    _refuse_leased(rollout, episode)
    group = state.groups[rollout.group]
    for call in episode.calls:
        if call.status is RolloutStatus.WAITING:
            state.work_index.move(group, call, RolloutStatus.UNCLAIMED)
    episode.holder, episode.used, episode.rewards, episode.failed = "", [], {}, {}
    episode.keys = {}
    episode.failures += event.failed
    state.work_index.move(group, rollout, RolloutStatus.WAITING)


EPISODE_TRANSITIONS: dict[type, Callable[[ExperienceState, Any], None]] = {
    e.Begun: _begun,
    e.Called: _called,
    e.Answered: _answered,
    e.Cut: _cut,
    e.Reused: _reused,
    e.Noted: _noted,
    e.Rewarded: _rewarded,
    e.ToolFailed: _tool_failed,
    e.Left: _left,
}


# --------------------------------------------------------------------- what other transitions share


def leased_call(state: ExperienceState, number: int, attempt: int) -> Call:
    """The call, or the rollout of one turn, that is leased for the `attempt`-th time."""
    call = state.find_call(number, RolloutStatus.LEASED)
    if attempt != call.attempt:
        raise ImpossibleEvent(
            f"rollout {number} is leased for the {call.attempt}th time, and this is of "
            f"attempt {attempt}"
        )
    return call


def refuse_unfinished(number: int, finish: str) -> None:
    """Raise ImpossibleEvent for a finish that does not complete a response."""
    if finish not in COMPLETE:
        raise ImpossibleEvent(
            f"rollout {number} was sealed as {finish!r}: a response is complete by "
            "'stop' or by 'length'"
        )


def seal_episode(state: ExperienceState, event: e.Sealed) -> Rollout:
    """End an episode: keep the calls that its agent used in the rollout, and discard the rest as
    `orphaned`. Returns the rollout."""
    rollout, episode = _played(state, event)
    _refuse_leased(rollout, episode)
    orphaned = sum(call.tokens for call in episode.calls if call.id not in episode.used)
    forget_calls(state, rollout)
    rollout.gather()
    state.ledger.tokens.discard(orphaned, "orphaned")
    return rollout


def bury_call(state: ExperienceState, call: AgentCall, reason: str) -> None:
    """Bury a call that failed for good, and discard its tokens. They stay as context of later
    calls."""
    if call.status in (RolloutStatus.ANSWERED, RolloutStatus.BURIED):
        raise ImpossibleEvent(f"call {call.id} is {call.status.value}: it cannot fail any more")
    episode = state.rollouts[call.rollout].episode
    assert episode is not None, "a sealed episode has no calls"
    state.work_index.move(state.groups[call.group], call, RolloutStatus.BURIED)
    call.given += call.ids
    call.holder = ""
    state.ledger.tokens.discard(call.release(), reason)
    del state.calls[call.id]
    if call.id in episode.used:
        episode.used.remove(call.id)
    episode.rewards.pop(call.id, None)
    episode.failed.pop(call.id, None)
    episode.keys.pop(call.id, None)


def forget_calls(state: ExperienceState, rollout: Rollout) -> None:
    """Remove the calls of an episode from the live ones."""
    assert rollout.episode is not None
    for call in rollout.episode.calls:
        if _lives(call):
            state.work_index.leave(state.groups[rollout.group], call)
            del state.calls[call.id]


def _played(
    state: ExperienceState,
    event: e.Called | e.Cut | e.Reused | e.Noted | e.Rewarded | e.ToolFailed | e.Left | e.Sealed,
) -> tuple[Rollout, Episode]:
    """The rollout that an agent plays in the attempt that the event names, and its episode."""
    rollout = state.find(event.rollout, RolloutStatus.BEGUN)
    assert rollout.episode is not None, "only episodes are begun"
    if event.attempt != rollout.episode.attempt:
        raise ImpossibleEvent(
            f"rollout {rollout.id} is played for the {rollout.episode.attempt}th time, and this is "
            f"of attempt {event.attempt}"
        )
    return rollout, rollout.episode


def _refuse_leased(rollout: Rollout, episode: Episode) -> None:
    """Raise ImpossibleEvent while an engine holds a call of this episode."""
    for call in episode.calls:
        if call.status is RolloutStatus.LEASED:
            raise ImpossibleEvent(
                f"rollout {rollout.id} is not played any more, but {call.holder} still has its "
                "call "
                f"{call.id}"
            )


def _lives(call: AgentCall) -> bool:
    """True if the call is not buried."""
    return call.status is not RolloutStatus.BURIED
