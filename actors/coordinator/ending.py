"""The reasons for which a run ends by itself."""

from __future__ import annotations

from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.actors.coordinator.stepping import Stepping
from asyncrl.algorithms.selection.acceptance import below_floor
from asyncrl.config.losses import drops_equal
from asyncrl.explain.conditions.disks import RESUMES
from asyncrl.explain.conditions.waste import EASIER


def ending(parts: Components) -> Outcome | None:
    """The outcome of a run that is over; None if it continues.

    It is over when a part has ended it, when no more can be learned and undone steps are redone,
    when the last checkpoint cannot be written, or when every step is taken, saved, published and
    evaluated.
    """
    stepping = parts.stepping
    if parts.outcome is not None or stepping is None:
        return parts.outcome
    if not stepping.redoing and (reason := _nothing_to_learn(parts, stepping)):
        return Outcome(False, reason)
    last = stepping.finished or stepping.starved
    if last and stepping.unsaved:
        return Outcome(
            False,
            f"the last checkpoint was not written: {stepping.unsaved}: {RESUMES}",
        )
    if not (last and _complete(parts, stepping)):
        return None
    steps = parts.config.train.steps
    if stepping.finished:
        return Outcome(True, f"all {steps} steps are done")
    return Outcome(
        True,
        f"the prompts were used up after {stepping.version} of {steps} steps (task.epochs = "
        f"{parts.config.task.epochs})",
    )


def _nothing_to_learn(parts: Components, stepping: Stepping) -> str:
    """The reason why no work can be trained any more; empty if there is none."""
    config, complaint = parts.config, parts.scoring.complaint
    patience = config.rollout.filter_patience
    if stepping.filtered >= patience:
        return (
            f"the last {stepping.filtered} groups were all filtered, so nothing can be "
            f"learned{complaint()}: {EASIER}"
        )
    if drops_equal(config):
        recent, to_go = parts.store.experience.history.recent, config.train.credit == "to_go"
        if poor := below_floor(recent, config.rollout.accept_floor, patience, to_go=to_go):
            return f"{poor}{complaint()}: {EASIER}"
    if parts.admission.unfit >= patience:
        return f"the last {parts.admission.unfit} prompts {_unfit(parts)}"
    return ""


def _unfit(parts: Components) -> str:
    """Words for prompts that cannot be answered, and what to do."""
    if parts.admission.misfit == "prompt_too_long":
        return (
            "left no room for an answer of rollout.max_new_tokens in engine.context_tokens = "
            f"{parts.config.engine.context_tokens}: enlarge it"
        )
    return (
        f"could not be answered ({parts.admission.misfit}): look at task.template and at the "
        "model's tokenizer"
    )


def _complete(parts: Components, stepping: Stepping) -> bool:
    """True if the last version is saved, published and evaluated."""
    return (
        stepping.saved == stepping.version == parts.publishing.committed
        and not parts.publishing.busy
        and parts.evaluation.running is None
        and not parts.evaluation.due(stepping.version, True)
    )
