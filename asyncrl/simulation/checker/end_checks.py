"""Checks of how rollouts and groups end, and of the versions that are published and saved. Each is
called when its event is appended, before the reference takes the event in."""

from __future__ import annotations

import math

from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored
from asyncrl.simulation.checker.checked_run import CheckedRun, live_rollout
from asyncrl.simulation.checker.reference_choices import choices, reward


def trained(run: CheckedRun, event: e.Trained) -> None:
    seen = live_rollout(run, event.rollout, event)
    step = seen.step
    run.hold("once", step is not None, "rollout {} was trained, and no step had taken it", seen.id)
    if step is None:
        return
    really = run.trained_by.get(step + 1, set())
    run.hold(
        "once",
        seen.id in really,
        "rollout {} is booked as trained in step {}, which did not train it",
        seen.id,
        step,
    )
    if seen.episode is not None:
        stale, fresh, cut, wrong = (sum(of[value] for of in seen.given) for value in range(4))
        _became(run, event, fresh, {"stale": stale, "truncated": cut, "error": wrong})
        return
    most = run.max_lag if seen.own else run.config.foreign.max_age
    fresh = sum(step - version <= most for version in seen.versions)
    left_out = {"stale": len(seen.versions) - fresh}
    if run.masks_cut and seen.cut:
        left_out["truncated"], fresh = fresh, 0
    else:
        wrong = sum(step - seen.versions[place] <= most for place in seen.wrong())
        left_out["error"], fresh = wrong, fresh - wrong
    _became(run, event, fresh, left_out)


def _became(run: CheckedRun, event: e.Trained, fresh: int, left_out: dict[str, int]) -> None:
    """Check what became of a rollout's tokens: so many are trained, and these left out, by
    reason."""
    left_out = {reason: count for reason, count in left_out.items() if count}
    run.hold(
        "ledger",
        (event.trained, event.discarded) == (fresh, left_out),
        "rollout {}: {} and not {} {}",
        event.rollout,
        event,
        fresh,
        left_out,
    )


def stored_for_replay(run: CheckedRun, event: e.StoredForReplay) -> None:
    group = run.reference.groups.get(event.group)
    run.hold(
        "once",
        group is not None and event.group not in run.reference.kept,
        "{} keeps what is not there, or is kept",
        event,
    )
    if group is not None:
        taken = set(group.steps) == set(group.compared)
        # by turn, groups of equal rewards may have a signal: the reference knows no turns
        differ = len(set(group.compared.values())) > 1 or run.config.train.credit != "episode"
        run.hold(
            "whole",
            taken and differ,
            "{} keeps {} of {}",
            event,
            group.steps,
            group.rewards,
        )
        oldest = min(seen.oldest for seen in run.reference.members(group) if seen.own)
        most = run.config.staleness.max_lag
        run.hold(
            "lag",
            event.until - oldest <= most,
            "{} is of version {}, and its lag would be too large",
            event,
            oldest,
        )


def replayed(run: CheckedRun, event: e.Replayed) -> None:
    groups = set(event.groups)
    run.hold(
        "once",
        len(groups) == len(event.groups) and groups <= run.reference.kept.keys(),
        "{} trains again what is not kept",
        event,
    )
    run.hold("order", len(groups) <= run.config.train.replay_groups, "{} are too many", event)
    run.hold(
        "order",
        event.step == max(run.lineage),
        "step {} trains again, and version {} is the last",
        event.step,
        max(run.lineage),
    )
    late = [
        number
        for number in groups & run.reference.kept.keys()
        if run.reference.kept[number][0] < event.step
    ]
    run.hold(
        "lag", not late, "step {} trains groups {} again, whose time is over", event.step, late
    )


def discarded(run: CheckedRun, event: e.Discarded) -> None:
    seen = live_rollout(run, event.rollout, event)
    group, config = seen.group, run.config
    run.hold(
        "once",
        seen.step is None,
        "rollout {} was discarded, and step {} has it",
        seen.id,
        seen.step,
    )
    run.hold(
        "whole",
        config.train.unit == "rollout",
        "rollout {} was discarded alone, and whole groups are trained",
        seen.id,
    )
    run.hold(
        "whole",
        group.event.split == "train" and seen.verdict is not None,
        "rollout {} was discarded without a verdict",
        seen.id,
    )
    others, k = len(group.others(seen.id)), config.rollout.k_min
    score = seen.verdict.reward if isinstance(seen.verdict, Scored) else math.nan
    justified = {
        "no_verdict": isinstance(seen.verdict, NoVerdict),
        "k_min": run.reference.complete(group) and others < k,
        "zero_variance": config.rollout.filter == "zero_variance"
        and others >= k
        and _close(run.baseline(seen), score),
        "stale": run.stale([seen], run.open_step),
        "truncated": run.masks_cut and seen.cut,
    }
    _named(run, event.reason, justified)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _named(run: CheckedRun, reason: str, justified: dict[str, bool]) -> None:
    run.hold(
        "nothing leaves without a name", reason in justified, "{!r} is no reason to leave", reason
    )
    run.hold(
        "nothing leaves without a name",
        justified.get(reason, False),
        "something left as {}, and it is not so",
        reason,
    )


def dropped(run: CheckedRun, event: e.Dropped) -> None:
    group = run.reference.groups.get(event.group)
    run.hold("once", group is not None, "group {} was dropped, and is not live", event.group)
    if group is None:
        return
    config, rewards = run.config, list(group.rewards.values())
    run.hold(
        "once", not group.steps, "group {} was dropped, and is taken: {}", event.group, group.steps
    )
    scored = [seen for seen in run.reference.members(group) if isinstance(seen.verdict, Scored)]
    complete = run.reference.complete(group)
    kept = [*choices(config, scored)] if complete and scored else []
    justified = {
        "evaluation": group.event.split == "evaluation",
        "k_min": complete
        and len(group.own_rewards) < (config.rollout.k_min if config.train.unit == "group" else 1),
        "zero_variance": complete
        and config.rollout.filter == "zero_variance"
        and config.train.advantage != "reinforce_pp"
        and (
            len(set(rewards)) == 1
            or any(len({reward(seen) for seen in choice}) == 1 for choice in kept)
        ),
        "stale": any(run.stale(choice, run.open_step) for choice in kept),
        "truncated": run.masks_cut and any(all(seen.cut for seen in choice) for choice in kept),
    }
    _named(run, event.reason, justified)
    again = event.reason == "stale" and config.staleness.on_stale == "restart"
    run.hold(
        "prompts",
        event.restart == again,
        "{} does not say rightly whether its prompt starts again",
        event,
    )


def published(run: CheckedRun, event: e.Published) -> None:
    made = event.version in run.lineage
    run.hold(
        "publication",
        made,
        "version {} was published, and {} is the trainer's",
        event.version,
        max(run.lineage),
    )
    last = run.reference.published or 0
    run.hold(
        "publication",
        event.version >= last,
        "version {} was published after version {}",
        event.version,
        last,
    )


def checkpointed(run: CheckedRun, event: e.Checkpointed) -> None:
    run.hold(
        "order",
        event.version in run.lineage,
        "a checkpoint of version {}, which does not exist",
        event.version,
    )
    run.hold(
        "whole",
        event.version in run.written,
        "the checkpoint of version {} is said to be complete, and was not written",
        event.version,
    )
