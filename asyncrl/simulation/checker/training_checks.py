"""Checks of what the learner was really given, and of each version that it made."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from asyncrl.ipc.messages import MicroBatch, Sample
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_state import Filling, ReferenceRollout


def check_batch(
    run: CheckedRun, batch: MicroBatch, ids: memoryview, behaviour: memoryview, mask: memoryview
) -> None:
    """Check a micro-batch that the learner is given."""
    at = place = 0
    run.hold(
        "order",
        batch.step == max(run.lineage),
        "step {} is given to a trainer of version {}",
        batch.step,
        max(run.lineage),
    )
    handed, again = (
        run.handed.setdefault(batch.step, {}),
        run.reference.replayed.get(batch.step, {}),
    )
    for sample in batch.samples:
        seen = run.reference.rollouts.get(sample.rollout) or again.get(sample.rollout)
        if seen is None:
            return run.violated(
                "once",
                f"rollout {sample.rollout} is trained, and was "
                f"{run.reference.ended.get(sample.rollout)}",
            )
        before = [version for version, trained in run.trained_by.items() if seen.id in trained]
        once = seen.id not in handed and (seen.id in again or not before)
        run.hold("once", once, "rollout {} is trained twice: it is in version {}", seen.id, before)
        prompt, end = (
            4 * sample.prompt_tokens,
            4 * (sample.prompt_tokens + sample.response_tokens),
        )
        size = 4 * sample.response_tokens
        whole = (
            bytes(ids[at : at + prompt]) == seen.group.event.prompt
            and bytes(ids[at + prompt : at + end]) == bytes(seen.ids)
            and bytes(behaviour[4 * place : 4 * place + size]) == bytes(seen.behaviour)
        )
        given = sample.prompt_tokens
        spans = [(span.version, span.start - given, span.end - given) for span in sample.spans]
        whole = whole and spans == seen.spans()
        run.hold(
            "parallel", whole, "what is trained of rollout {} is not what was sampled", seen.id
        )
        for version, start, until in seen.spans():
            weights = run.lineage.get(version)
            if weights is None:
                return run.violated(
                    "version truth",
                    f"rollout {seen.id} has tokens of version {version}, which was not made",
                )
            true, true_behaviour = policy.sampled(weights, run.draws(seen), start, until)
            same = bytes(seen.ids[4 * start : 4 * until]) == true.tobytes()
            same = same and bytes(seen.behaviour[4 * start : 4 * until]) == true_behaviour.tobytes()
            run.hold(
                "version truth",
                same,
                "rollout {}: version {} does not sample [{}, {}) so",
                seen.id,
                version,
                start,
                until,
            )
        lets = bytes(mask[place : place + sample.response_tokens])
        may = 2 if run.masks_cut and seen.cut else 1
        wrong = seen.wrong() if may == 1 else set()
        due = bytes(
            (3 if place in wrong else may) * (batch.step - version <= run.max_lag)
            for place, version in enumerate(seen.versions)
        )
        run.hold(
            "lag",
            lets == due,
            "rollout {} in step {}: versions {}, mask {}",
            seen.id,
            batch.step,
            seen.versions,
            lets.hex(),
        )
        _check_rewards(run, batch, sample, seen)
        finish = "length" if seen.cut else "stop"
        run.hold(
            "parallel",
            sample.finish == finish,
            "rollout {} ended by {}, and its sample by {}",
            seen.id,
            finish,
            sample.finish,
        )
        handed[seen.id] = due.count(1)
        at, place = at + end, place + sample.response_tokens
    return None


def _check_rewards(
    run: CheckedRun, batch: MicroBatch, sample: Sample, seen: ReferenceRollout
) -> None:
    rewards, given = seen.group.rewards, batch.rewards[sample.group]
    counts = {len(parts) for parts in batch.parts.get(sample.group, [[]])}
    parts_due = run.rewards.parts + bool(run.rewards.parts and run.band)
    run.hold(
        "verdicts",
        len(counts) == 1 and (counts == {parts_due} or run.refused > 0),
        "group {} has rewards of {} parts",
        sample.group,
        counts,
    )
    run.hold(
        "verdicts",
        rewards.get(seen.id) == sample.reward,
        "rollout {} is trained with {}",
        seen.id,
        sample.reward,
    )
    its = sample.member is not None and given[sample.member] == sample.reward
    run.hold(
        "verdicts",
        its,
        "the reward of rollout {} is not the {}th of {}",
        seen.id,
        sample.member,
        given,
    )
    if run.config.train.unit == "group":
        scored = [rewards[id] for id in sorted(rewards)]
        run.hold(
            "verdicts",
            given == scored and sample.baseline is None,
            "group {} is trained with {}",
            sample.group,
            given,
        )
        return
    run.hold(
        "verdicts",
        Counter(given) <= Counter(rewards.values()),
        "rollout {} is trained beside {}",
        seen.id,
        given,
    )
    due = run.baseline(seen)
    same = sample.baseline is not None and math.isclose(
        sample.baseline, due, rel_tol=1e-9, abs_tol=1e-12
    )
    run.hold(
        "baseline",
        same,
        "rollout {} is compared with {}, not with {}",
        seen.id,
        sample.baseline,
        due,
    )


def check_scores(
    run: CheckedRun,
    step: int,
    sample: Sample,
    scores: NDArray[np.float32],
    mask: NDArray[np.uint8],
) -> None:
    """Check the proximal log-probabilities of a sample that is trained: each token that enters the
    loss has that of the version that sampled it. A token that came late, and whose lag is larger
    than `max_lag`, may have none: the weights of so old a version are not held."""
    again = run.reference.replayed.get(step, {})
    seen = run.reference.rollouts.get(sample.rollout) or again.get(sample.rollout)
    if seen is None or run.violation:
        return
    ids = np.frombuffer(bytes(seen.ids), np.int32)
    due = [
        policy.scores(run.lineage[version], ids[start:end], start)
        for version, start, end in seen.spans()
    ]
    lag = step - np.array(seen.versions)
    old = np.isnan(scores) & (lag > max(1, run.config.staleness.max_lag))
    trained = (mask == 1) & ~old
    exact = np.concatenate([np.zeros(0, np.float32), *due])[trained] == scores[trained]
    run.hold(
        "proximal",
        bool(exact.all()),
        "rollout {} is trained in step {} with spans {}, of which it does not know {}",
        seen.id,
        step,
        seen.spans(),
        np.flatnonzero(trained)[~exact].tolist(),
    )


def check_step(run: CheckedRun, version: int, weights: int) -> None:
    """Check a version that the learner has made, and add it to the lineage."""
    before = run.undone_weights.pop(version, weights)
    dependent = any(version in seen.versions for seen in run.reference.rollouts.values())
    free = version > run.closed and not dependent
    run.hold(
        "redo",
        before == weights or free,
        "version {} was made again, and is another; tokens of it are live",
        version,
    )
    begun = not run.here or version - 1 in run.here
    run.hold(
        "order",
        begun,
        "version {} was made before engines had version {}, which it starts from",
        version,
        version - 1,
    )
    again = set(run.reference.replayed.get(version - 1, {}))
    handed = set(run.handed.pop(version - 1, {}))
    run.hold(
        "once",
        again <= handed,
        "version {} was to be trained on {} again, and had {}",
        version,
        again,
        handed,
    )
    run.trained_by[version] = handed - again
    filling = run.reference.steps.get(version - 1, Filling())
    resting = (
        run.config.task.curriculum == "unsolved" and run.config.task.epochs > 0
    )  # what is left of the prompts may be passed over
    over = (resting or run.prompts.train_item(run.reference.cursor) is None) and not (
        run.reference.restarts or run.reference.rollouts_untaken
    )
    enough = run.closes(filling) or version <= run.closed or (filling.rollouts > 0 and over)
    run.hold(
        "order",
        enough,
        "version {} was made from {} rollouts with {} tokens",
        version,
        filling.rollouts,
        filling.tokens,
    )
    taken = {seen.id for seen in run.reference.rollouts.values() if seen.step == version - 1}
    run.hold(
        "order",
        taken == run.trained_by[version],
        "version {} has {}, not {}",
        version,
        run.trained_by[version],
        taken,
    )
    run.lineage[version] = weights
