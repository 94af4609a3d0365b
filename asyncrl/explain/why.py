"""`asyncrl why RUN`: a few sentences about a run, with the side that is idle and what it waits for.
They follow from one run status, and from whether the run lives.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.explain.conditions.agreement import agreeing_sentences
from asyncrl.explain.curve import StepPoint
from asyncrl.explain.diagnosis import diagnose, idle
from asyncrl.explain.rows import ended_early, foreign_said
from asyncrl.explain.run_disk import takes_no_more
from asyncrl.explain.run_files import RunFiles, game_of
from asyncrl.explain.run_status import LendingStatus, RunStatus, TagCounts
from asyncrl.explain.summary import UNREPORTED, Summary
from asyncrl.words import count, duration, share

OLD_S = 10.0
"""Seconds after which a run status is old; a live run renews it every second."""


def why(files: RunFiles, now: float) -> list[str]:
    """Answer for a run, at `now` (seconds since 1970). Raises ConfigError if there is no run status
    to read."""
    disk = takes_no_more(files.path)
    if files.last_status is None and not files.lives:
        if steps := _steps(files):
            return [_unsaid(files, steps)]
        if disk:
            return [_not_begun(files, disk)]
    found = files.status
    if disk or not files.lives:  # the curve may have had room for steps that the status had not
        found = msgspec.structs.replace(found, step=max(found.step, _steps(files)))
    summary = _summary(files)
    ended = found.ok is None and not files.lives
    if ended and summary is not None and summary.reason != UNREPORTED:
        found = msgspec.structs.replace(
            found, ok=summary.ok, reason=summary.reason, step=max(found.step, summary.steps)
        )
    sentences = answer(
        found,
        lives=files.lives,
        age_s=max(0.0, now - found.at),
        stalled=files.stalled,
        run=files.path,
    )
    if disk and not found.ok:
        sentences.insert(1, f"{disk[0].upper()}{disk[1:]} before it can continue.")
    return sentences


def _steps(files: RunFiles) -> int:
    """The steps that the run's curve has."""
    return max(
        (point.version for point in files.points() if isinstance(point, StepPoint)), default=0
    )


def _unsaid(files: RunFiles, steps: int) -> str:
    """Say what is known of a run that ended without a final status."""
    summary = _summary(files)
    reason = f": {summary.reason}" if summary is not None else ""
    if summary is not None and summary.ok:
        return (
            f"The run ended after {count(steps)} steps{reason}. Its last state is not in "
            f"{files.path}, which may be an incomplete copy."
        )
    return (
        f"The run ended after {count(steps)} steps{reason}. Its last state was not written, maybe "
        f"because the disk is full: make room, and resume it with asyncrl train --resume "
        f"{game_of(files.path)}."
    )


def _not_begun(files: RunFiles, disk: str) -> str:
    """Say what is known of a run that ended before its first status, on a disk that is full."""
    summary = _summary(files)
    reason = f": {summary.reason}" if summary is not None else ""
    return (
        f"The run ended before it began{reason}; {disk}, and begin it with asyncrl train --resume "
        f"{game_of(files.path)}."
    )


def _summary(files: RunFiles) -> Summary | None:
    """The totals of a run that has ended, where they can be read."""
    with suppress(ConfigError):
        return files.summary
    return None


def answer(status: RunStatus, *, lives: bool, age_s: float, stalled: bool, run: Path) -> list[str]:
    """Say in a few sentences how the run stands and, unless it ended well, what it waits or waited
    for. `age_s` is the age of the run status."""
    sentences = [_standing(status, lives, age_s, stalled, run)]
    if status.ok and not stalled:
        return sentences
    if status.phase == "run" and (shares := _shares(status)):
        sentences.append(shares)
    if status.lending is not None and status.lending.loans:
        sentences.append(_lending(status.lending, status.seconds))
    if pruned := status.ledger.pruned:
        of = f"{count(sum(pruned.values()))} of {count(status.ledger.admitted)} rollouts"
        sentences.append(f"A rule has ended {of} early: {ended_early(pruned)}.")
    if status.foreign.imported:
        said = foreign_said(status.foreign, status.tokens.trained)
        sentences.append(f"Foreign tokens, which the policy did not sample: {said}.")
    if status.shared or status.share_failed:
        failed = f", and the folder failed {count(status.share_failed)} times"
        sentences.append(
            f"{count(status.shared)} groups were shared with other runs"
            f"{failed if status.share_failed else ''}."
        )
    sentences += [_preferred(tag, counts) for tag, counts in status.preferred.items()]
    sentences.append(diagnose(status))
    sentences += [
        f"The run continues without {actor.name}, which {actor.removed}."
        for actor in status.actors
        if actor.removed
    ]
    return agreeing_sentences([*sentences, *status.alarms])


def _standing(status: RunStatus, lives: bool, age_s: float, stalled: bool, run: Path) -> str:
    ago = f"{duration(age_s)} ago"
    steps = f"{status.step} of {status.steps} steps"
    if stalled:
        return f"The run stalled after {steps}, {ago}, and was ended: {status.reason}."
    if status.ok:
        return f"The run ended {ago}: {status.reason}."
    if status.ok is False:
        return f"The run failed {ago}, after {steps}: {status.reason}."
    if not lives:
        return (
            f"The run was killed after {steps}, or its coordinator failed (then its log says "
            f"why). Its state {ago} follows; resume it with asyncrl train --resume {game_of(run)}."
        )
    if age_s > OLD_S:
        return (
            "The run's launcher is alive, but its coordinator has not reported for "
            f"{duration(age_s)}: it hangs, is stopped, or waits for the "
            f"disk of {run}. Its last state follows, after {steps}."
        )
    doing = {
        "init": "starts",
        "ready": "starts",
        "run": "trains",
        "drain": "drains",
        "stop": "ends",
    }[status.phase]
    return f"The run {doing}: {steps} in {duration(status.seconds)}, as of {ago}."


def _shares(status: RunStatus) -> str:
    """Say how idle each side is; empty if a side has not reported."""
    trainer, rollout = idle(status, "trainer"), idle(status, "rollout")
    if trainer is None or rollout is None:
        return ""
    return (
        f"Over the last {duration(status.window_s)} the trainer was idle for {share(trainer)} of "
        f"its time, and rollout actors for {share(rollout)}."
    )


def _preferred(tag: str, counts: TagCounts) -> str:
    """Say how many leases of prompts that prefer a tag went to actors that have it."""
    leases = counts.there + counts.elsewhere
    return (
        f"Of {count(leases)} leases of prompts that prefer {tag}, {count(counts.there)} went to "
        "rollout actors with this tag; the others found no room there."
    )


def _lending(lending: LendingStatus, seconds: float) -> str:
    """Say what was lent, and if that is worth it."""
    loans = "1 loan" if lending.loans == 1 else f"{count(lending.loans)} loans"
    lent = share(lending.seconds / max(seconds, 1e-9))
    said = f"The trainer's devices were lent for {lent} of the run, in {loans}"
    last = f"the last ones gained {duration(lending.used_s)} and lost {duration(lending.cost_s)}"
    if not lending.worth:
        return f"{said}, and are not lent now: {last} by the switch."
    return f"{said}; {last} by the switch." if lending.used_s else f"{said}."
