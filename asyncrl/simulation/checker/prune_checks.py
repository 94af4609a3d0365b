"""Checks of rollouts that a rule ends, or lets go on. Invariant: a rule is asked once about each
`rollout.prune_after` tokens, says what is right, and leaves as many members as must be left."""

from __future__ import annotations

import random

from asyncrl.experience import events as e
from asyncrl.simulation.checker.checked_run import CheckedRun, live_rollout
from asyncrl.simulation.checker.reference_pruning import (
    CLOSE,
    Due,
    group_members,
    right_answers,
)
from asyncrl.simulation.checker.reference_rollouts import ReferenceCall, ReferenceRollout

MOMENTS = 2
"""Moments at which nobody has asked about a rollout before that counts: chunks may wait their
turn."""


def spared(run: CheckedRun, event: e.Spared) -> None:
    seen = live_rollout(run, event.rollout, event)
    tokens = _asked(run, seen, event)
    draw, last = _draw(run, seen, tokens), _last(run, seen)
    right = any(
        event.chance == 1.0
        if not due.reason or (last and not due.kept)
        else abs(event.chance - due.chance) < CLOSE and draw < due.chance + CLOSE
        for due in _due(run, seen, tokens)
    )
    run.hold(
        "pruning",
        right and event.tokens == tokens,
        "{} lets a rollout of {} tokens go on, and right is {} (drawn {}, last: {})",
        event,
        len(seen.versions),
        _due(run, seen, tokens),
        draw,
        last,
    )


def pruned(run: CheckedRun, event: e.Pruned) -> None:
    seen = live_rollout(run, event.rollout, event)
    tokens = _asked(run, seen, event)
    draw, last = _draw(run, seen, tokens), _last(run, seen)
    right = any(
        (f"pruned_{due.reason}", due.kept) == (event.reason, event.kept)
        and (due.kept > 0 or not last)
        and (not due.chance or due.kept > 0 or draw > due.chance - CLOSE)
        for due in _due(run, seen, tokens)
    )
    run.hold(
        "pruning",
        right,
        "{} ends a rollout of {} tokens, and right is {} (drawn {}, last: {})",
        event,
        len(seen.versions),
        _due(run, seen, tokens),
        draw,
        last,
    )


class OpenQuestions:
    """Questions of one life that nobody has asked yet, about rollouts that an engine goes on
    with."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self._open: dict[int, tuple[float, int]] = {}  # when one was seen last, and its moments

    def look(self) -> None:
        """Count a moment for each. To be called while the coordinator runs."""
        run, now, before = self._run, self._run.clock(), self._open
        if run.config.rollout.prune == "none":
            return
        self._open = {}
        for seen in run.reference.rollouts.values():
            if seen.holder and _open(run, seen):
                at, moments = before.get(seen.id, (now, 0))
                self._open[seen.id] = now, moments + (now > at)
                run.hold(
                    "pruning",
                    moments < MOMENTS,
                    "rollout {} of {} tokens goes on, and nobody asks about it",
                    seen.id,
                    len(seen.versions),
                )


def check_asked(run: CheckedRun, call: ReferenceCall) -> None:
    """Check that a rollout that is leased is one about which nobody has to be asked first."""
    if isinstance(call, ReferenceRollout):
        run.hold(
            "pruning",
            not _open(run, call),
            "rollout {} of {} tokens goes on, and was asked about after {}",
            call.id,
            len(call.versions),
            call.looked,
        )


def _asked(run: CheckedRun, seen: ReferenceRollout, event: e.AnyEvent) -> int:
    """Check that a rollout may be asked about, and return the tokens that it is asked about."""
    tokens = _open(run, seen)
    run.hold(
        "pruning",
        tokens > 0 and not seen.sealed,
        "{} is of a rollout of {} tokens that was asked about after {}, or may not be ended",
        event,
        len(seen.versions),
        seen.looked,
    )
    return tokens


def _open(run: CheckedRun, seen: ReferenceRollout) -> int:
    """The tokens that a rollout has to be asked about; 0 where there are none."""
    rollout = run.config.rollout
    if rollout.prune == "none" or seen.group.event.split != "train" or seen.episode is not None:
        return 0
    tokens = len(seen.versions) - len(seen.versions) % rollout.prune_after
    return tokens if tokens > seen.looked else 0


def _due(run: CheckedRun, seen: ReferenceRollout, tokens: int) -> list[Due]:
    mine = run.reference
    members = group_members(seen.group, mine.rollouts)
    return right_answers(run.config, mine.pruning, members, seen, tokens)


def _draw(run: CheckedRun, seen: ReferenceRollout, tokens: int) -> float:
    key = run.first_key(seen.group.event, seen.group.place) + seen.member
    return random.Random(f"prune/{run.seed}/{key}/{tokens}").random()


def _last(run: CheckedRun, seen: ReferenceRollout) -> bool:
    """True if so few members are left that none may be ended."""
    left = sum(run.reference.ended.get(id) != "buried" for id in seen.group.members)
    return left <= run.config.rollout.k_min + (run.config.train.unit == "rollout")
