"""The state that a run goes on from after a crash. Invariant: nothing that was generated or judged
is lost, and nothing is trained twice.

Training starts again from a checkpoint. What happened to experience since then stands: prompts
admitted, tokens streamed, verdicts given, groups dropped. What happened to the weights is gone, so
what was taken for a step since then is undone, and *prescribed*: the same rollouts are taken for
the same steps, in the same order and as many at a time. So the redone steps compute what they had
computed, every version is again what it was, and the versions that stamped later tokens tell the
truth. While anything is prescribed, nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.experience import events as e
from asyncrl.experience.state import Experience


def recovered(base: Experience, events: Iterable[e.AnyEvent]) -> Experience:
    """The state after `events`, of which only those that made experience count: `base` is the state
    that the checkpoint belongs to, or one recovered from it before. It is taken. Raises Refused
    where the events do not follow from it."""
    base.give_back()
    for event in events:
        match event:
            case e.Taken(step, rollouts):
                base.prescribe(step, rollouts)  # a step redone before this crash had taken the same
            case e.Published(version):
                base.close(version)
            case e.Trained() | e.StoredForReplay() | e.Replayed() | e.Checkpointed():
                pass
            case _:
                base.apply(event)
    return base
