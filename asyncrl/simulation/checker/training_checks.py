"""Checks of what the learner was really given, and of each version that it made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.messages import MicroBatch, Sample
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.fork_checks import check_tree
from asyncrl.simulation.checker.reference_facts import Filling
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceCall,
    ReferenceGroup,
    ReferenceRollout,
)
from asyncrl.simulation.checker.strand_batch_checks import check_strand, check_turns


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
        first = seen.id not in handed or bool(sample.strand)
        once = first and (seen.id in again or not before)
        run.hold("once", once, "rollout {} is trained twice: it is in version {}", seen.id, before)
        end = at + 4 * (sample.prompt_tokens + sample.response_tokens)
        until = place + sample.sampled_tokens
        its_ids, its_mask = bytes(ids[at:end]), bytes(mask[place:until])
        its_behaviour = bytes(behaviour[4 * place : 4 * until])
        if seen.episode is None:
            handed[seen.id] = []
            _check_response(run, batch, sample, seen, its_ids, its_behaviour, its_mask)
        else:
            handed.setdefault(seen.id, list(seen.episode.turns))
            _check_truth(run, seen.episode.turns)
            check_strand(run, batch, sample, seen, its_ids, its_behaviour, its_mask)
        _check_rewards(run, batch, sample, seen)
        at, place = end, until
    for number in {sample.rollout for sample in batch.samples}:
        run.hold(
            "once",
            not handed[number],
            "calls {} of rollout {} are not given",
            [call.id for call in handed[number]],
            number,
        )
    rollouts = {sample.rollout for sample in batch.samples}
    run.hold(
        "order",
        len(ids) // 4 <= micro_tokens(run.config) or len(rollouts) == 1,
        "micro-batch {} of step {} has {} tokens of the rollouts {}",
        batch.index,
        batch.step,
        len(ids) // 4,
        rollouts,
    )
    return None


def _check_response(
    run: CheckedRun,
    batch: MicroBatch,
    sample: Sample,
    seen: ReferenceRollout,
    ids: bytes,
    behaviour: bytes,
    mask: bytes,
) -> None:
    """Check a rollout of one turn."""
    given = sample.prompt_tokens
    spans = [(span.version, span.start - given, span.end - given) for span in sample.spans]
    sources = {span.source == "own" for span in sample.spans}
    run.hold(
        "foreign",
        sources == {seen.own},
        "rollout {} is given as what it is not: {}",
        seen.id,
        sample.spans,
    )
    run.hold(
        "parallel",
        ids == seen.context + seen.ids
        and 4 * given == len(seen.context)
        and behaviour == bytes(seen.behaviour)
        and spans == seen.spans(),
        "what is trained of rollout {} is not what was sampled",
        seen.id,
    )
    if seen.own:
        _check_truth(run, [seen])
    most = run.max_lag if seen.own else run.config.foreign.max_age
    may = 2 if run.masks_cut and seen.cut else 1
    wrong = seen.wrong() if may == 1 else set()
    due = bytes(
        (3 if place in wrong else may) * (batch.step - version <= most)
        for place, version in enumerate(seen.versions)
    )
    run.hold(
        "lag",
        mask == due,
        "rollout {} in step {}: versions {}, mask {}",
        seen.id,
        batch.step,
        seen.versions,
        mask.hex(),
    )
    finish = "length" if seen.cut else "stop"
    run.hold(
        "parallel",
        sample.finish == finish,
        "rollout {} ended by {}, and its sample by {}",
        seen.id,
        finish,
        sample.finish,
    )


def _check_truth(run: CheckedRun, calls: Sequence[ReferenceCall]) -> None:
    """Check that each token is what its version samples."""
    for call in calls:
        for version, start, until in call.spans():
            weights = run.lineage.get(version)
            if weights is None:
                return run.violated(
                    "version truth",
                    f"rollout {call.id} has tokens of version {version}, which was not made",
                )
            true, true_behaviour = policy.sampled(weights, run.draws(call), start, until)
            same = bytes(call.ids[4 * start : 4 * until]) == true.tobytes()
            same = same and bytes(call.behaviour[4 * start : 4 * until]) == true_behaviour.tobytes()
            run.hold(
                "version truth",
                same,
                "rollout {}: version {} does not sample [{}, {}) so",
                call.id,
                version,
                start,
                until,
            )
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
    _check_prompt(run, batch, sample, seen)
    _check_chances(run, batch, sample.group, seen.group)
    if seen.episode is None:
        check_tree(run, batch, sample, seen)
    if run.config.train.unit == "group":
        scored = [*seen.group.compared.values()]
        run.hold(
            "verdicts",
            given == scored and sample.baseline is None,
            "group {} is trained with {}",
            sample.group,
            given,
        )
        if seen.episode is not None and seen.id in run.reference.rollouts:
            check_turns(run, batch, sample.group)
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


def _check_prompt(
    run: CheckedRun, batch: MicroBatch, sample: Sample, seen: ReferenceRollout
) -> None:
    """Check what the learner is told of the prompt: what was known when its group was admitted."""
    given, group = batch.prompts.get(sample.group), seen.group
    due = [*group.prior, *group.posterior, group.longest]
    run.hold(
        "prompts",
        given is not None
        and given.index == group.event.prompt_index
        and all(map(_close, (*given.prior, *given.posterior, given.longest), due)),
        "of the prompt of group {} the learner is told {}, and {} was known",
        sample.group,
        given,
        due,
    )


def _check_chances(run: CheckedRun, batch: MicroBatch, number: int, group: ReferenceGroup) -> None:
    """Check what the learner is told of the chances with which members went on to their end."""
    given = batch.drawn.get(number)
    chances = [group.chances.get(id, 1.0) for id in group.compared]
    due = (len(chances) + group.pruned, chances)
    weighs = run.config.rollout.prune_weight == "inverse"
    plain = not weighs or (not group.pruned and all(chance == 1.0 for chance in chances))
    run.hold(
        "pruning",
        given is None if plain else given is not None and (given.started, given.chances) == due,
        "of group {} the learner is told {}, and it has {}",
        number,
        given,
        due,
    )


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


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
