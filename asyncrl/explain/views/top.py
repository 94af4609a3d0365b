"""`asyncrl top RUN`: the display of a run that was started elsewhere, until it ends.

It reads `status.json` and the new lines of `metrics.jsonl` once a second. The run does not know of
it. Idle shares and rates are those of the last seconds; lag, queue, pause and what is said of
responses are the last step's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import trio
from rich.console import Console

from asyncrl.explain.conditions.starts import in_words
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.curve import EvaluationPoint, StepPoint
from asyncrl.explain.diagnosis import at_work, diagnose, idle, listed, outside_facts
from asyncrl.explain.display import Display, show_summary
from asyncrl.explain.run_files import RunFiles, curve_of
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.why import OLD_S, why
from asyncrl.messages import Progress, SftUpdate, StatusUpdate
from asyncrl.words import duration

EVERY_S = 1.0
"""Seconds between two looks: a run says as often how it stands."""
LAST_WORDS_S = 30.0
"""Seconds that a run which has ended is given to write its summary."""
DOES = {"init": "starting", "ready": "starting", "run": "training"}
"""Words for the phases of a run; in the others it drains."""


def top(run: Path, console: Console) -> None:
    """Show how a run stands until it ends, and then what it came to. Raises ConfigError for what is
    no run, or one that has not begun and that nobody runs."""
    RunFiles(run)  # a display of what is no run would begin
    with Display(console) as display:
        trio.run(follow, run, display, time.time)
        files = RunFiles(run)
        for sentence in why(files, time.time()):
            display.note(sentence)
    if files.summary is not None:
        show_summary(files.summary, run, console)


async def follow(run: Path, display: Display, now: Callable[[], float]) -> None:
    """Show how a run stands, every second, until nobody runs it any more. `now` is in seconds since
    1970. Raises ConfigError."""
    curve, began, ended_at = curve_of(run), trio.current_time(), math.inf
    step: StepPoint | None = None
    evaluation: EvaluationPoint | None = None
    while True:
        files = RunFiles(run)
        if files.last_status is None and files.lives:
            waited = trio.current_time() - began
            display.progress(Progress("waiting for the run to begin", 0, 0, waited))
            await trio.sleep(EVERY_S)
            continue
        status = files.status
        curve.replaced()
        for point in curve.added():
            if isinstance(point, StepPoint):
                step = point
            else:
                evaluation = point
        age_s = max(0.0, now() - status.at)
        over = files.stalled or status.ok is not None
        alive = goes_on(files, age_s)
        display.update(update_of(status, step, evaluation, age_s if alive and not over else 0.0))
        if not alive:
            return
        if over:
            ended_at = min(ended_at, trio.current_time())
        if trio.current_time() - ended_at >= LAST_WORDS_S:
            return
        await trio.sleep(EVERY_S)


def goes_on(files: RunFiles, age_s: float) -> bool:
    """True if somebody runs a run whose status is so old. The run's lock is asked for only where it
    is likely to be free: a launcher wants it, too."""
    status = files.last_status
    over = files.stalled or status is None or status.ok is not None
    return files.lives if over or age_s > 2 * EVERY_S else True


def update_of(
    status: RunStatus, step: StepPoint | None, evaluation: EvaluationPoint | None, silent_s: float
) -> StatusUpdate:
    """The numbers of the display, from a run status and the last points of the curve; a run that
    goes on has said nothing for `silent_s` since."""
    metrics = step.metrics if step is not None else {}

    return StatusUpdate(
        seconds=status.seconds + silent_s,
        phase=DOES.get(status.phase, "draining") if status.ok is None else "over",
        step=status.step,
        steps=status.steps,
        reward=step.reward if step is not None else None,
        accuracy=evaluation.accuracy if evaluation is not None else None,
        accuracy_version=evaluation.version if evaluation is not None else -1,
        generated_per_s=status.generated_per_s,
        trained_per_s=status.trained_per_s,
        lag_mean=step.lag_mean if step is not None else None,
        lag_max=step.lag_max if step is not None else 0,
        queue_items=step.queue_rollouts if step is not None else 0,
        queue_bytes=step.queue_bytes if step is not None else 0,
        idle_trainer=idle(status, "trainer"),
        idle_rollout=idle(status, "rollout"),
        pause_seconds=step.pause_seconds if step is not None else None,
        note=_note(status, silent_s),
        evaluated=evaluation.figures if evaluation is not None else {},
        accuracy_asked=evaluation.asked if evaluation is not None else 0,
        accuracy_prompts=evaluation.prompts if evaluation is not None else 0,
        accuracy_weights=evaluation.weights if evaluation is not None else "current",
        exact=metrics.get("exact"),
        truncated=metrics.get("truncated"),
        response_tokens=metrics.get("response_tokens"),
        entropy=metrics.get("entropy"),
        alarms=[found.sentence for found in findings(outside_facts(status))],
        judged=status.recent.rewards,
        judged_reward=status.recent.reward,
        judged_exact=status.recent.exact,
        filtered=status.recent.filtered,
        limit=diagnose(status) if status.phase == "run" and status.ok is None else "",
        sft=None if (sft := status.sft) is None else SftUpdate(*sft.shown),
    )


def _note(status: RunStatus, silent_s: float) -> str:
    """Words for what is not as usual."""
    notes = [f"it has not reported for {duration(silent_s)}"] if silent_s > OLD_S else []
    if status.phase == "init" and (
        absent := [actor.name for actor in status.actors if not actor.here and not actor.removed]
    ):
        notes.append(f"waiting for {listed(absent)}")
    if gone := [actor.name for actor in status.actors if actor.removed]:
        notes.append(f"without {listed(gone)}")
    notes += [f"{agents.name} fails" for agents in status.failing]
    if (starts := status.episodes.starts) is not None and starts.waiting:
        notes.append(in_words(starts))
    if status.evaluating is not None:
        notes.append(f"evaluating version {status.evaluating}")
    if busy := at_work(status):
        notes.append(f"the trainer is at one {busy.command} for {duration(busy.seconds)}")
    return ", ".join(notes)
