"""Checks of foreign answers. Invariant: they join a group that waits for nothing else, come from
where the settings say, unchanged, and are booked apart from what the run has sampled."""

from __future__ import annotations

from collections import Counter

from asyncrl.experience import events as e
from asyncrl.messages import Finish, ForeignAnswer
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_rollouts import ReferenceGroup
from asyncrl.simulation.fake_foreign import FakeForeign


def check_imports(run: CheckedRun, event: e.Admitted) -> None:
    """Check how many foreign answers may join a training group."""
    foreign = run.config.foreign
    due = 0 if foreign.source == "none" else foreign.members
    source = {"none": "own", "runs": "run"}.get(foreign.source, foreign.source)
    run.hold(
        "foreign",
        (event.imports, event.source) == (due, source),
        "{} may have others than {} imports of {}",
        event,
        due,
        source,
    )


def imported(run: CheckedRun, event: e.Imported) -> None:
    """Check that answers join a group when they may, as many as there are, and what they are."""
    group = run.reference.groups.get(event.group)
    run.hold("foreign", group is not None, "{} is of a group that is not live", event)
    if group is None:
        return
    waits = group.may_grow or not run.reference.finished(group) or bool(group.steps)
    run.hold(
        "foreign",
        not waits and group.imports > 0,
        "{} came before its verdicts, after its growth was decided upon, or a second time",
        event,
    )
    of_pool = run.config.foreign.source == "pool"
    found = Counter(map(repr, (_from_pool if of_pool else _from_file)(run, group)))
    joined = Counter(map(repr, event.answers))
    own = sum(id in group.rewards for id in group.members)
    due = min(run.config.foreign.members, found.total())
    run.hold(
        "foreign",
        joined <= found and joined.total() == (due if own >= run.config.rollout.k_min else 0),
        "{} answers join group {}, of {} in the file, where {} of its own have rewards: {}",
        joined.total(),
        event.group,
        found.total(),
        own,
        event.answers,
    )
    verdicts = group.event.prompt, group.event.key, group.admitted_version, own
    asked, before = run.imports.setdefault(event.group, (verdicts, joined))
    run.hold(
        "foreign",
        asked != verdicts
        or before == joined,  # a verdict that the disk did not have may be another
        "group {} had other foreign answers before a crash: {}, and now {}",
        event.group,
        before,
        joined,
    )


def _from_pool(run: CheckedRun, group: ReferenceGroup) -> list[ForeignAnswer]:
    """The prompt's last success, where no own answer is right and it is not too old."""
    last = run.reference.pool.get(group.event.prompt_index)
    if last is None or group.solved:
        return []
    oldest = min(last.versions)
    if (group.admitted_version or 0) - oldest > run.config.foreign.max_age:
        return []
    finish: Finish = "length" if last.cut else "stop"
    ids, behaviour = bytes(last.ids), bytes(last.behaviour)
    return [ForeignAnswer("pool", f"rollout {last.id}", oldest, ids, behaviour, finish)]


def _from_file(run: CheckedRun, group: ReferenceGroup) -> list[ForeignAnswer]:
    """The answers of the file, as old as they are by the version of the group's admission."""
    began = group.admitted_version or 0
    return [
        ForeignAnswer(a.source, a.origin, max(0, began + a.version), a.ids, a.behaviour, a.finish)
        for a in FakeForeign(run.config).of(group.event.prompt)
    ]
