"""The reasons why a run ends by itself."""

from __future__ import annotations

from asyncrl.actors.coordinator.common_failure import CommonFailure, Reason
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.actors.coordinator.stepping import Stepping
from asyncrl.algorithms.selection.acceptance import below_floor
from asyncrl.config.losses import credit_of, drops_equal
from asyncrl.explain.conditions.disks import RESUMES
from asyncrl.explain.conditions.signal import FOR_AGENTS
from asyncrl.explain.conditions.waste import EASIER


def ending(parts: Components) -> Outcome | None:
    """The outcome of a run that is over; None if it continues.

    It is over when a part has ended it, when nothing more can be learned and undone steps are
    redone, when the last checkpoint cannot be written, or when every step is taken, saved,
    published and evaluated.
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
            f"the last checkpoint was not written: {stepping.unsaved}, {RESUMES}",
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
    config, now = parts.config, parts.clock.now()
    patience = config.rollout.filter_patience
    if reason := _nothing_succeeds(parts, now):
        return reason
    if parts.admission.unfit >= patience:
        return f"the last {parts.admission.unfit} prompts {_unfit(parts)}"
    answers = parts.scoring.failures
    if answers.may_pass(now):
        return ""
    if stepping.filtered >= patience:
        filtered = f"the last {stepping.filtered} groups were all filtered"
        if (common := answers.common()) is not None:
            return _all_failed(common, filtered, _OF_VERIFIERS)
        return f"{filtered}, so nothing can be learned{_complaint(answers)}: {_easier(parts)}"
    if drops_equal(config):
        recent, signal = parts.store.experience.history.recent, credit_of(config.train).signal
        if poor := below_floor(recent, config.rollout.accept_floor, patience, signal=signal):
            return f"{poor}{_complaint(answers)}: {_easier(parts)}"
    return ""


def _easier(parts: Components) -> str:
    """The remedy if too few groups have a signal."""
    recent = parts.store.outcomes.recent
    return FOR_AGENTS if recent.attempts and recent.zeros == recent.rewards else EASIER


_OF_VERIFIERS = (
    "correct the verifier (task.verifier), or provide what it needs; a verifier that cannot "
    "read an answer must return 0.0 for it"
)


def _nothing_succeeds(parts: Components, now: float) -> str:
    """The reason why every request, episode or answer so far has failed, and later ones will; empty
    if there is none."""
    for failures, all_of_them, remedy in (
        (
            parts.chunks.failures,
            "engines refused or failed all of the first {} requests",
            "check the model, its tokenizer and the engine's settings",
        ),
        (
            parts.playing.failures,
            "all of the first {} attempts of agents failed",
            "correct the agent (agent.run), or provide what it needs",
        ),
        (
            parts.scoring.failures,
            "all of the first {} answers got no verdict",
            _OF_VERIFIERS,
        ),
    ):
        if (reason := failures.hopeless(now)) is not None:
            return _all_failed(reason, all_of_them.format(failures.failed), remedy)
    return ""


def _all_failed(reason: Reason, what: str, remedy: str) -> str:
    return f"{reason.text.removeprefix('raised: ').rstrip('.')} ({what}): {remedy}"


def _complaint(answers: CommonFailure) -> str:
    """A sentence part with the most frequent reason why answers got no verdict; empty if all got
    one."""
    for reason, count in answers.counts.items():
        return f" ({answers.failed} answers without a verdict, {count} of them: {reason})"
    return ""


def _unfit(parts: Components) -> str:
    """A sentence part about prompts that cannot be answered, and what to do."""
    if parts.admission.misfit == "prompt_too_long":
        return (
            "left no room for an answer of rollout.max_new_tokens in engine.context_tokens = "
            f"{parts.config.engine.context_tokens}: enlarge it"
        )
    if parts.admission.misfit == "images_full":
        return f"had images without room: {parts.admission.unreadable}, and resume"
    if parts.admission.misfit == "prompt_unreadable":
        return (
            f"could not be read; the reason for the last one: {parts.admission.unreadable}; "
            "check the task and the chat template"
        )
    return (
        f"could not be answered ({parts.admission.misfit}): check task.template and the "
        "model's tokenizer"
    )


def _complete(parts: Components, stepping: Stepping) -> bool:
    """True if the last version is saved, with its models, published and evaluated."""
    return (
        stepping.saved == stepping.version == parts.publishing.committed
        and stepping.models_left
        and not parts.publishing.busy
        and parts.evaluation.running is None
        and not parts.evaluation.due(stepping.version, True)
    )
