"""Transitions of the state: one function for each event. Invariant: an event that cannot have
happened raises ImpossibleEvent and changes nothing.

Each function checks everything before it changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.episode_transitions import (
    EPISODE_TRANSITIONS,
    bury_call,
    leased_call,
    refuse_unfinished,
    seal_episode,
)
from asyncrl.experience.group_transitions import admitted, dropped, forked, grown, imported
from asyncrl.experience.live_members import beginning_of
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.rollout_ends import audit_facts, discard, member_finished, refuse_unnamed
from asyncrl.experience.state import ExperienceState
from asyncrl.experience.step_transitions import (
    discarded,
    published,
    replayed,
    stored_for_replay,
    taken,
    trained,
)
from asyncrl.messages import Finish, Scored


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
        state.audit.generated(audit_facts(group, rollout))


def _requeued(state: ExperienceState, event: e.Requeued) -> None:
    call = leased_call(state, event.rollout, event.attempt)
    if not event.reason:
        raise ImpossibleEvent(f"rollout {call.id} was requeued without a reason")
    if not call.remaining:
        raise ImpossibleEvent(
            f"rollout {call.id} has its {call.max_new_tokens} tokens: it must be sealed as "
            "'length', not requeued"
        )
    state.work_index.move(state.groups[call.group], call, RolloutStatus.WAITING)
    call.holder = ""
    call.failures += event.failed


def _buried(state: ExperienceState, event: e.Buried) -> None:
    refuse_unnamed(event.reason)
    if isinstance(call := state.calls.get(event.rollout), AgentCall):
        bury_call(state, call, event.reason)
        return
    rollout = state.find(
        event.rollout, RolloutStatus.WAITING, RolloutStatus.LEASED, RolloutStatus.BEGUN
    )
    discard(state, rollout, event.reason, RolloutStatus.BURIED)
    member_finished(state, state.groups[rollout.group])


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
    refuse_unnamed(event.reason)
    rollout = _prunable(state, event.rollout)
    if not 0 <= event.kept <= rollout.tokens:
        raise ImpossibleEvent(
            f"rollout {rollout.id} has {rollout.tokens} tokens, and {event.kept} of them are kept"
        )
    rollout.pruned = True
    state.ledger.pruned[event.reason] = state.ledger.pruned.get(event.reason, 0) + 1
    if not event.kept:
        discard(state, rollout, event.reason, RolloutStatus.BURIED)
        member_finished(state, state.groups[rollout.group])
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
    member_finished(state, group)


def _checkpointed(state: ExperienceState, event: e.Checkpointed) -> None:
    state.checkpoint = event


def apply(state: ExperienceState, event: e.AnyEvent) -> None:
    """Apply an event to the state. Raises ImpossibleEvent, with the state unchanged, for an event
    that cannot have happened."""
    _TRANSITIONS[type(event)](state, event)


def _leased_rollout(state: ExperienceState, event: e.Sealed) -> Rollout:
    """The rollout of one turn whose lease this event ends."""
    call = leased_call(state, event.rollout, event.attempt)
    if not isinstance(call, Rollout):
        raise ImpossibleEvent(f"call {call.id} is not a rollout: it is answered, not sealed")
    return call


_TRANSITIONS: dict[type, Callable[[ExperienceState, Any], None]] = {
    e.Admitted: admitted,
    e.Forked: forked,
    e.Grown: grown,
    e.Imported: imported,
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
    e.Taken: taken,
    e.Trained: trained,
    e.StoredForReplay: stored_for_replay,
    e.Replayed: replayed,
    e.Discarded: discarded,
    e.Dropped: dropped,
    e.Published: published,
    e.Checkpointed: _checkpointed,
}
