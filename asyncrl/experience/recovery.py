"""The state that a run goes on from after a crash. Invariant: nothing that was generated or judged
is lost, and nothing is trained twice.

Training starts again from a checkpoint. What happened to experience since then stands: prompts
admitted, tokens streamed, verdicts given, groups dropped. What happened to the weights is gone. So
what was taken for a step since then is undone, and *prescribed*: the same rollouts are taken for
the same steps, in the same order and as many at a time. The redone steps therefore compute what
they had computed, every version is again what it was, and the versions that stamped later tokens
are still true. While anything is prescribed, nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.experience import Experience
from asyncrl.experience.state import ExperienceState, in_training


def recovered(base: Experience, events: Iterable[e.AnyEvent]) -> Experience:
    """The state after `events`, of which only those that made experience count. `base` is changed:
    it is the state that the checkpoint belongs to, or one recovered from it before. Raises
    ImpossibleEvent where the events do not follow from it."""
    _undo_open_steps(base)
    published = base.version  # the last one at the event
    for event in events:
        match event:
            case e.Taken(step, rollouts):
                # a step redone before this crash had taken the same
                _prescribe(base, step, rollouts)
            case e.Published(version):
                base.steps.closed = max(base.steps.closed, version)
                published = version
            case e.Admitted(group):
                base.apply(event)
                base.groups[group].admitted_version = published or 0
            case e.Trained() | e.StoredForReplay() | e.Replayed() | e.Checkpointed():
                pass
            case _:
                base.apply(event)
    return base


def _undo_open_steps(state: ExperienceState) -> None:
    """Rollouts that are taken and not trained are judged again, and prescribed for the step that
    had them, before all that is prescribed."""
    open_steps = dict.fromkeys(
        rollout.step for rollout in state.taken() if rollout.step is not None
    )
    for number in state.steps.undo(open_steps):
        rollout = state.rollouts[number]
        group = state.groups[rollout.group]
        state.work_index.move(group, rollout, RolloutStatus.JUDGED)
        if not any(in_training(member) for member in group.members):
            state.begun.discard(group.id)
    state.step = min(open_steps, default=state.step)


def _prescribe(state: ExperienceState, step: int, rollouts: Iterable[int]) -> None:
    """`step`, the last one that has anything prescribed or a later one, has to take these live
    rollouts; once is enough."""
    taking = [state.find(number, RolloutStatus.JUDGED) for number in rollouts]
    if state.steps.prescribe(step, [rollout.id for rollout in taking]):
        for rollout in taking:
            group = state.groups[rollout.group]
            if group.complete and not group.begun:
                state.work_index.withdraw(group)
            state.work_index.promise(rollout, step)
