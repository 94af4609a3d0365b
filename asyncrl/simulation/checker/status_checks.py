"""The status of a run, as people and the page see it, against a recount of its events. Invariant:
each number that is said of work is that of the reference."""

from __future__ import annotations

import math
from collections import Counter

from asyncrl.actors.coordinator.collect_status import collect_status
from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.explain.run_status import NAMED, RunStatus
from asyncrl.explain.summary import ForeignTotals, RolloutTotals, TokenTotals
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceRollout


def compare_status(run: CheckedRun, coordinator: Coordinator) -> None:
    """Compare the status at this moment with the reference."""
    mine, said = run.reference, collect_status(coordinator.parts)
    due = {number for _, rollouts in run.prescribed for number in rollouts}
    stages = Counter(map(_stage, mine.rollouts.values()))
    stages.update(map(_stage_of_call, mine.agents.calls.values()))
    run.hold("status", stages == said.rollouts, "the work is {}, not {}", stages, said.rollouts)
    train = [group for group in mine.groups.values() if group.event.split == "train"]
    complete = sum(
        mine.complete(group) and not group.steps and due.isdisjoint(group.members)
        for group in train
    )
    groups = said.groups.live, said.groups.complete
    run.hold(
        "status",
        (len(train), complete) == groups,
        "{} groups are live and {} complete, not {}",
        len(train),
        complete,
        groups,
    )
    lost, ended = sorted((+mine.tokens_discarded).items()), sorted((+mine.discarded).items())
    own = sum(seen.own for seen in mine.rollouts.values())
    pruned = dict(sorted((+mine.pruning.counts).items()))
    tokens = TokenTotals(mine.tokens, mine.tokens_trained, dict(lost), mine.tokens_live)
    rollouts = RolloutTotals(mine.admitted, mine.trained, dict(ended), own, pruned)
    left = mine.foreign.keys() - {"imported", "trained"}
    foreign = ForeignTotals(
        mine.foreign["imported"],
        mine.foreign["trained"],
        {reason: mine.foreign[reason] for reason in sorted(left) if mine.foreign[reason]},
        sum(seen.tokens for seen in mine.rollouts.values() if not seen.own),
    )
    for due_total, said_total in (
        (tokens, said.tokens),
        (rollouts, said.ledger),
        (foreign, said.foreign),
    ):
        run.hold("status", due_total == said_total, "it says {}, not {}", said_total, due_total)
    _compare_actors(run, said)


def _compare_actors(run: CheckedRun, said: RunStatus) -> None:
    mine = run.reference
    leases = Counter(call.holder for call in mine.calls() if call.holder)
    taken = sum(seen.step is not None for seen in mine.rollouts.values())
    for actor in said.actors:
        held = {"rollout": leases[actor.name], "trainer": taken}.get(actor.role)
        run.hold(
            "status",
            not actor.here or held in (None, actor.holds),
            "{} is said to hold {}, and holds {}",
            actor.name,
            actor.holds,
            held,
        )
    awaited = [one.seconds for one in said.awaited]
    run.hold(
        "status",
        len(awaited) == min(NAMED, leases.total()) and awaited == sorted(awaited, reverse=True),
        "of {} leases those since {} s are named",
        leases.total(),
        awaited,
    )
    for one in said.awaited:
        call = mine.call(one.rollout)
        facts = call and (call.holder, call.attempt, len(call.versions))
        run.hold(
            "status",
            facts == (one.holder, one.attempt, one.tokens)
            and 0 <= one.seconds <= run.clock()
            and 0 < one.deadline_s < math.inf,
            "lease {} is of {}",
            one,
            facts,
        )


def _stage(seen: ReferenceRollout) -> str:
    if seen.step is not None:
        return "taken"
    if seen.sealed:
        return "sealed" if seen.verdict is None else "judged"
    if seen.episode is not None:
        return "begun" if seen.episode.status == "played" else "waiting"
    return "leased" if seen.holder else "waiting"


def _stage_of_call(call: ReferenceAgentCall) -> str:
    if call.over:
        return "answered"
    if call.holder:
        return "leased"
    return "waiting" if call.used else "unclaimed"
