"""Checks of one call: of its leases, its tokens and its end. Invariant: what engines with those
weights sample is sampled again here."""

from __future__ import annotations

from asyncrl.experience import events as e
from asyncrl.simulation import policy
from asyncrl.simulation.checker.reference_rollouts import ReferenceCall
from asyncrl.simulation.observer import WorldObserver


def check_lease(run: WorldObserver, call: ReferenceCall, event: e.Leased) -> None:
    """Check that a call may be leased."""
    run.hold(
        "leases",
        call.waits,
        "rollout {} was leased to {}, and does not wait: {!r} has it, or it is over",
        call.id,
        event.holder,
        call.holder,
    )
    run.hold(
        "leases",
        event.attempt == call.attempt + 1,
        "rollout {}'s attempt {} follows {}",
        call.id,
        event.attempt,
        call.attempt,
    )


def check_tokens(
    run: WorldObserver, call: ReferenceCall, event: e.Extended, draws: int, weights: int | None
) -> None:
    """Check tokens against the lease, and with what a version of these `weights` samples of these
    `draws`; None: that was never made."""
    start, count = len(call.versions), len(event.ids) // 4
    run.hold(
        "leases",
        bool(call.holder) and event.attempt == call.attempt,
        "tokens of rollout {}, which is not leased so",
        call.id,
    )
    run.hold(
        "parallel",
        event.start == start and count > 0 and 4 * count == len(event.ids) == len(event.behaviour),
        "rollout {} holds {} tokens; {} bytes of ids and {} of log-probabilities came for {}",
        call.id, start, len(event.ids), len(event.behaviour), event.start,
    )  # fmt: skip
    run.hold(
        "version truth",
        weights is not None,
        "version {} sampled tokens, and was never made",
        event.version,
    )
    if weights is None or run.violation:
        return
    ids, behaviour = policy.sampled(weights, draws, start, start + count)
    run.hold(
        "version truth",
        event.ids == ids.tobytes(),
        "rollout {}: version {} samples other ids",
        call.id,
        event.version,
    )
    run.hold(
        "version truth",
        event.behaviour == behaviour.tobytes(),
        "rollout {}: version {} has other log-probabilities",
        call.id,
        event.version,
    )


def check_whole(run: WorldObserver, call: ReferenceCall, draws: int, budget: int) -> None:
    """Check that a call is complete, and was with an engine."""
    whole = policy.length(draws, budget)
    run.hold(
        "whole",
        len(call.versions) == whole and bool(call.holder),
        "rollout {} is complete with {} of {} tokens, and {!r} had it",
        call.id,
        len(call.versions),
        whole,
        call.holder,
    )
