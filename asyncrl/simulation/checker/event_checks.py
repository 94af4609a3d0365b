"""The check of each kind of event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from asyncrl.experience import events as e
from asyncrl.simulation.checker import end_checks as ends
from asyncrl.simulation.checker import fork_checks as forks
from asyncrl.simulation.checker import generation_checks as generation
from asyncrl.simulation.checker import growth_checks as growth
from asyncrl.simulation.checker import import_checks as imports
from asyncrl.simulation.checker import prune_checks as pruning
from asyncrl.simulation.checker import selection_checks as selection
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.reference_episodes import OfEpisode

CHECKS: dict[type, Callable[[CheckedRun, Any], None]] = {
    e.Admitted: generation.admitted,
    e.Forked: forks.forked,
    e.Grown: growth.grown,
    e.Imported: imports.imported,
    e.Leased: generation.leased,
    e.Extended: generation.extended,
    e.RoutingKnown: generation.routed,
    e.Sealed: generation.sealed,
    **dict.fromkeys(get_args(OfEpisode), generation.of_episode),
    e.Requeued: generation.requeued,
    e.Buried: generation.buried,
    e.Spared: pruning.spared,
    e.Pruned: pruning.pruned,
    e.LateTokens: generation.late,
    e.Judged: generation.judged,
    e.Taken: selection.taken,
    e.Trained: ends.trained,
    e.StoredForReplay: ends.stored_for_replay,
    e.Replayed: ends.replayed,
    e.Discarded: ends.discarded,
    e.Dropped: ends.dropped,
    e.Published: ends.published,
    e.Checkpointed: ends.checkpointed,
}
