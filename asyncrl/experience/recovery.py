"""The state from which a run resumes after a crash. Invariant: no generated token and no verdict is
lost, and nothing is trained twice.

Training resumes from a checkpoint. Later changes of experience stay: prompts admitted, tokens
streamed, verdicts given, groups dropped. Later changes of the weights are lost. So the takings of
later steps are undone, and *prescribed*: the same rollouts are taken for the same steps, in the
same order and as many at a time. The redone steps therefore compute the same versions again, and
the versions of later tokens remain true. While a step is prescribed, nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.experience import Experience
from asyncrl.experience.state import ExperienceState, in_training


def recovered(base: Experience, events: Iterable[e.AnyEvent]) -> Experience:
    """The state after `events`, of which only those that changed experience count. `base` is
    modified: it is the state of the checkpoint, or one recovered from it before. Raises
    ImpossibleEvent where the events do not follow it."""
    _undo_open_steps(base)
    published = base.version  # the last one at the event
    for event in events:
        match event:
            case e.Taken(step, rollouts):
                # a step that was redone before this crash took the same
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
    """Set rollouts that are taken but not trained back to judged, and prescribe them for their
    step, before all others that are prescribed."""
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
    """Prescribe these live rollouts for `step`, the last prescribed one or a later one; it is
    idempotent."""
    taking = [state.find(number, RolloutStatus.JUDGED) for number in rollouts]
    if state.steps.prescribe(step, [rollout.id for rollout in taking]):
        for rollout in taking:
            group = state.groups[rollout.group]
            if group.complete and not group.begun:
                state.work_index.withdraw(group)
            state.work_index.promise(rollout, step)
