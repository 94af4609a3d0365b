"""What must be true of each event when it is appended, before the witness's account takes it in. Invariant: a check looks at the account,
at the weights that were really made, and at nothing that the product keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.coordinator.leases import FLOOR_S
from asyncrl.experience import events as e
from asyncrl.messages import Scored
from asyncrl.simulation import policy
from asyncrl.simulation.account import Seen

if TYPE_CHECKING:
    from asyncrl.simulation.witness import Witness


def _live(w: Witness, id: int, event: e.AnyEvent) -> Seen:
    seen = w.account.rollouts.get(id)
    w.hold("once", seen is not None, "{} is of a rollout that was {}", event, w.account.ended.get(id, "never admitted"))
    if seen is None:
        raise w.violation or AssertionError
    return seen


def admitted(w: Witness, event: e.Admitted) -> None:
    if event.purpose == "train":
        if event.restarts is not None:
            w.hold("prompts", w.account.again.get(event.restarts) == event.item, "{} restarts what does not wait for it", event)
        else:
            due = w.train_item(w.account.cursor)
            w.hold("prompts", event.item == due, "prompt {} was admitted, and the next is {}", event.item, due)
            w.hold("prompts", not w.account.again, "a new prompt came before stale ones that start again: {}", w.account.again)
        w.hold("generation waits for a redo", not w.prescribed, "group {} was admitted before {} was redone", event.group, w.prescribed)
        live = w.account.groups_live + 1
        w.hold("memory", live <= w.bound, "{} groups are live, and at most {} may be", live, w.bound)


def leased(w: Witness, event: e.Leased) -> None:
    seen = _live(w, event.rollout, event)
    w.hold("leases", not seen.owner and not seen.sealed, "rollout {} was leased to {} while {} has it", seen.id, event.owner, seen.owner)
    w.hold("leases", event.attempt == seen.attempt + 1, "rollout {}'s attempt {} follows {}", seen.id, event.attempt, seen.attempt)
    w.hold("generation waits for a redo", not w.prescribed, "rollout {} was leased before {} was redone", seen.id, w.prescribed)


def extended(w: Witness, event: e.Extended) -> None:
    seen = _live(w, event.rollout, event)
    start, count = len(seen.versions), len(event.ids) // 4
    w.hold("leases", bool(seen.owner) and event.attempt == seen.attempt, "tokens of rollout {}, which is not leased so", seen.id)
    w.hold(
        "parallel",
        event.start == start and count > 0 and 4 * count == len(event.ids) == len(event.behaviour),
        "rollout {} holds {} tokens; {} bytes of ids and {} of log-probabilities came for {}",
        seen.id, start, len(event.ids), len(event.behaviour), event.start,
    )  # fmt: skip
    w.hold("publication", event.version in w.here, "version {} sampled tokens before it was published", event.version)
    pinned = seen.group.event.version
    w.hold("version truth", pinned in (None, event.version), "rollout {} is pinned to {}, and {}", seen.id, pinned, event.version)
    weights = w.lineage.get(event.version)
    w.hold("version truth", weights is not None, "version {} sampled tokens, and was never made", event.version)
    if weights is None or w.violation:
        return
    ids, behaviour = policy.sampled(weights, seen.key, start, start + count)
    w.hold("version truth", event.ids == ids.tobytes(), "rollout {}: version {} samples other ids", seen.id, event.version)
    w.hold(
        "version truth",
        event.behaviour == behaviour.tobytes(),
        "rollout {}: version {} has other log-probabilities",
        seen.id,
        event.version,
    )


def sealed(w: Witness, event: e.Sealed) -> None:
    seen = _live(w, event.rollout, event)
    whole = policy.length(seen.key, w.config.rollout.max_new_tokens)
    w.hold("whole", len(seen.versions) == whole, "rollout {} was sealed with {} of {} tokens", seen.id, len(seen.versions), whole)
    w.hold("leases", bool(seen.owner) and not seen.sealed, "rollout {} was sealed, and nobody had it", seen.id)


def recycled(w: Witness, event: e.Recycled) -> None:
    seen = _live(w, event.rollout, event)
    w.hold("leases", bool(seen.owner), "rollout {} was recycled, and nobody had it", seen.id)
    if event.reason == "lease_expired":
        lasted, least = w.clock() - w.leased_at.get(seen.id, 0.0), min(FLOOR_S, w.config.run.lease_s)
        w.hold("leases", lasted > least - 1e-6, "rollout {}'s lease ran out after {} s of at least {}", seen.id, lasted, least)
    _failed(w, seen, event.reason, event.failed)
    last = seen.failures + event.failed < w.config.rollout.attempts
    w.hold("attempts", last, "rollout {} is leased again after {} failed attempts", seen.id, seen.failures + event.failed)


def _failed(w: Witness, seen: Seen, reason: str, failed: bool) -> None:
    """An attempt is failed where it brought no token and its turn at a slot had come; what came back at this moment had been there."""
    slots, brought = w.config.engine.slots, len(seen.versions) > seen.before
    held = [other for other in w.account.rollouts.values() if other.owner == seen.owner and other.lease < seen.lease]
    same, every = w.came_back(seen.owner, seen.lease, reason)
    judged = reason in ("lease_expired", "actor_lost")
    if failed:
        w.hold("attempts", not brought, "rollout {} is said to have failed, and brought tokens", seen.id)
        w.hold("attempts", not judged or len(held) + same < slots, "rollout {} is said to have failed, and had no slot", seen.id)
    elif judged:
        w.hold("attempts", brought or len(held) + every >= slots, "rollout {} had a slot and brought nothing, and has not failed", seen.id)


def buried(w: Witness, event: e.Buried) -> None:
    seen = _live(w, event.rollout, event)
    attempts = w.config.rollout.attempts
    w.hold(
        "attempts", seen.failures + 1 == attempts, "rollout {} was buried after {} failed attempts of {}", seen.id, seen.failures, attempts
    )
    _failed(w, seen, event.reason, failed=True)


def late(w: Witness, event: e.Late) -> None:
    w.hold("ledger", event.tokens > 0, "{} late tokens", event.tokens)


def judged(w: Witness, event: e.JudgedAs) -> None:
    seen = _live(w, event.rollout, event)
    w.hold("once", seen.sealed and seen.verdict is None, "rollout {} was judged, not sealed or judged before", seen.id)
    if isinstance(event.verdict, Scored):
        due = policy.reward(seen.group.event.item, bytes(seen.ids))
        w.hold("verdicts", event.verdict.reward == due, "rollout {} got {}, and deserves {}", seen.id, event.verdict.reward, due)
    else:
        w.hold("verdicts", w.refused > 0, "rollout {} got {}, and nobody had withheld a verdict", seen.id, event.verdict)


def taken(w: Witness, event: e.Taken) -> None:
    groups = {_live(w, id, event).group.event.group: w.account.rollouts[id].group for id in event.rollouts}
    for group in groups.values():
        members = w.account.members(group)
        scored = [seen.id for seen in members if isinstance(seen.verdict, Scored)]
        w.hold("once", group.step is None, "group {} was taken for step {}, and again", group.event.group, group.step)
        w.hold("whole", all(seen.verdict for seen in members), "group {} was taken before all its verdicts", group.event.group)
        w.hold("whole", set(scored) <= set(event.rollouts), "group {} was not taken whole", group.event.group)
        oldest = min((version for seen in members if isinstance(seen.verdict, Scored) for version in seen.versions), default=event.step)
        fit = w.config.staleness.on_stale in ("mask", "train") or event.step - oldest <= w.max_lag
        w.hold("lag", fit, "group {} was taken for step {}, with tokens of version {}", group.event.group, event.step, oldest)
    if w.prescribed:
        due = w.prescribed.pop(0)
        w.hold("redo", due == (event.step, event.rollouts), "{} was taken, and {} had to be taken again", event, due)
    newest = max(w.lineage)
    w.hold("order", event.step in (newest, newest + 1), "step {} takes, and version {} is the last", event.step, newest)


def trained(w: Witness, event: e.Trained) -> None:
    seen = _live(w, event.rollout, event)
    step = seen.step
    w.hold("once", step is not None, "rollout {} was trained, and no step had taken it", seen.id)
    if step is None:
        return
    really = w.trained_by.get(step + 1, set())
    w.hold("once", seen.id in really, "rollout {} is booked as trained in step {}, which did not train it", seen.id, step)
    fresh = sum(step - version <= w.max_lag for version in seen.versions)
    stale = {"stale": len(seen.versions) - fresh} if fresh < len(seen.versions) else {}
    w.hold("ledger", (event.trained, event.discarded) == (fresh, stale), "rollout {}: {} and not {} {}", seen.id, event, fresh, stale)


def dropped(w: Witness, event: e.Dropped) -> None:
    group = w.account.groups.get(event.group)
    w.hold("once", group is not None, "group {} was dropped, and is not live", event.group)
    if group is None:
        return
    members = w.account.members(group)
    w.hold("once", group.step is None, "group {} was dropped, and step {} has it", event.group, group.step)
    rewards = w.account.rewards(group)
    oldest = min((version for seen in members if isinstance(seen.verdict, Scored) for version in seen.versions), default=0)
    justified = {
        "evaluation": group.event.purpose == "evaluation",
        "k_min": len(rewards) < w.config.rollout.k_min,
        "zero_variance": len(set(rewards)) == 1,
        "stale": max(w.lineage) + 1 - oldest > w.max_lag,
    }
    w.hold("whole", justified.get(event.reason, False), "group {} was dropped as {}", event.group, event.reason)
    again = event.reason == "stale" and w.config.staleness.on_stale == "recycle"
    w.hold("prompts", event.again == again, "{} does not say rightly whether its prompt starts again", event)


def published(w: Witness, event: e.Published) -> None:
    made = event.version in w.lineage
    w.hold("publication", made, "version {} was published, and {} is the trainer's", event.version, max(w.lineage))
    last = w.account.published or 0
    w.hold("publication", event.version >= last, "version {} was published after version {}", event.version, last)


def checkpointed(w: Witness, event: e.Checkpointed) -> None:
    w.hold("order", event.version in w.lineage, "a checkpoint of version {}, which does not exist", event.version)
    w.hold("whole", event.version in w.written, "the checkpoint of version {} is said to be complete, and was not written", event.version)


CHECKS: dict[type, Callable[[Witness, Any], None]] = {
    e.Admitted: admitted,
    e.Leased: leased,
    e.Extended: extended,
    e.Sealed: sealed,
    e.Recycled: recycled,
    e.Buried: buried,
    e.Late: late,
    e.JudgedAs: judged,
    e.Taken: taken,
    e.Trained: trained,
    e.Dropped: dropped,
    e.Published: published,
    e.Checkpointed: checkpointed,
}
