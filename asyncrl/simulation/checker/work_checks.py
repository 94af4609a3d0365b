"""Lists of the coordinator, against a recount: work that is due, in its order, leases, and engines
by their room. Invariant: a list kept up to date at each change is what one made at this moment
would be.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.experience.call import RolloutStatus
from asyncrl.messages import Split
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceCall, ReferenceRollout

ALL = 1 << 40
"""More than there is."""


def check_work(run: CheckedRun, invariant: str) -> None:
    """Compare the calls that wait for an engine, the episodes that wait for an agent, the answers
    that wait for a verdict, and the complete ones that may fork."""
    mine, theirs = run.reference, run.store.experience
    rollouts = mine.rollouts.values()
    for split in get_args(Split):
        of_split = [seen for seen in rollouts if seen.group.event.split == split]
        calls = [call for call in mine.calls() if call.group.event.split == split and call.waits]
        waiting = [
            (not seen.episode.attempt, seen.group.members[0], seen.id)
            for seen in of_split
            if seen.episode is not None and seen.episode.status == "waiting"
        ]
        for what, due, listed in (
            ("calls", sorted(map(_order, calls)), theirs.to_lease(split, ALL)),
            ("episodes", sorted(waiting), theirs.to_begin(split, ALL)),
        ):
            found = [each.id for each in listed]
            run.hold(
                invariant,
                [id for *_, id in due] == found,
                "the {} {} wait in this order, not {}",
                what,
                due,
                found,
            )
    sealed = [seen for seen in rollouts if seen.sealed and seen.step is None]
    judging = {rollout.id for rollout in theirs.to_judge()}
    unjudged = {seen.id for seen in sealed if seen.verdict is None}
    run.hold(invariant, unjudged == judging, "{} wait for a verdict, not {}", unjudged, judging)
    statuses = theirs.statuses()
    run.hold(
        invariant,
        statuses[RolloutStatus.SEALED] == len(unjudged) and min(statuses.values(), default=1) > 0,
        "{} rollouts are sealed, and counted are {}",
        len(unjudged),
        statuses,
    )


def _order(call: ReferenceCall) -> tuple[bool, int, int]:
    """Resumable ones first, then new ones, each those of the oldest group first."""
    oldest = call.group.members[0] if isinstance(call, ReferenceRollout) else call.id
    return not call.attempt, oldest, call.id


def check_leases(run: CheckedRun, table: LeaseTable) -> None:
    """Compare the leases that are out: the attempt of each, and the tokens that there were
    before."""
    due = {call.id: (call.attempt, call.before) for call in run.reference.calls() if call.holder}
    found = {id: (lease.attempt, lease.tokens) for id, lease in table._held.items()}
    run.hold("leases", due == found, "the leases {} are out, not {}", due, found)


def check_pool(run: CheckedRun, pool: EnginePool) -> None:
    """Recount the engines: their slots, versions and rollouts, and each service by the room that
    is left for it."""
    engines = list(pool)
    works = [engine for engine in engines if not (engine.draining or engine.closed)]
    serving = Counter[tuple[object, int, str]]()
    for engine in works:
        if engine.version is not None:
            serving.update((of, _room(engine, of[0]), engine.name) for of in _services(engine))
    listed = Counter(
        (service, room, name)
        for service, by_room in pool._serving.items()
        for room, names in by_room.items()
        for name in names
    )
    run.hold("slots", serving == listed, "engines serve {}, and listed are {}", serving, listed)
    due = (
        sum(engine.slots for engine in works),
        Counter(engine.version for engine in engines),
        {split: sum(len(engine.held[split]) for engine in engines) for split in get_args(Split)},
        {engine.name for engine in engines if engine.draining},
    )
    counted = (
        pool.slots,
        pool._versions,
        {split: pool.held[split] for split in get_args(Split)},
        set(pool._draining),
    )
    run.hold("slots", due == counted, "engines are {}, and counted are {}", due, counted)


def _services(engine: EngineHandle) -> list[tuple[Split, int | None]]:
    """The services of an engine that may work: those of the versions that it keeps, and of the
    current one unless it is told to serve another."""
    versions: list[int | None] = [*engine.kept]
    if not engine.committing:
        versions.append(None)
    return [(split, version) for version in versions for split in get_args(Split)]


def _room(engine: EngineHandle, split: Split) -> int:
    """A quarter more rollouts than slots, so that the next one lies ready."""
    return engine.slots + engine.slots // 4 - len(engine.held[split])
