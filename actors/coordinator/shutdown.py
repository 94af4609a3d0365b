"""Ends a run: each stream is ended from its source to its sink.

Invariant: an actor that is late costs the others nothing but its share of `supervision.grace_s`.
Work that is finished, streamed or learned by then is kept.

Prompts have stopped when it begins. Engines give back their rollouts with the tokens, agents are
ended (another attempt goes on with what they had), and both kinds of actors say `Drained`. Reward
actors give the verdicts that they had begun, and say `Drained`. The trainer closes the step that it
was asked for, saves, and says `Drained`. The journal is flushed. No actor is started again
meanwhile, and one that comes is sent home.
"""

from __future__ import annotations

import logging
from functools import partial

from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.lifecycle import Stage
from asyncrl.messages import Drain, Draining, Role

logger = logging.getLogger(__name__)


async def drain(parts: Components) -> None:
    """Park rollouts, save the trainer's version, and send every actor home, all within
    `supervision.grace_s`."""
    lifecycle, changes, publishing = parts.lifecycle, parts.changes, parts.publishing
    for launcher in parts.roster.of("launcher"):
        launcher.send(Draining())
    asked: set[int] = set()  # versions whose checkpoint was asked for
    _saved(parts, asked)  # it takes longest, so it begins first
    parts.reclaiming.park("train")
    parts.reclaiming.park("evaluation")
    await changes.until(
        "parked rollouts",
        lambda: not (parts.engines.held.total() or publishing.busy),
        lifecycle.stage_deadline(Stage.PARK),
    )
    parts.playing.leave("drained")
    await _send_home(parts, "agents", Stage.ROLLOUT)
    await _send_home(parts, "rollout", Stage.ROLLOUT)
    await _send_home(parts, "reward", Stage.REWARD)
    await changes.until(
        "the checkpoint", lambda: _saved(parts, asked), lifecycle.stage_deadline(Stage.TRAINER)
    )
    await _send_home(parts, "trainer", Stage.TRAINER)
    if not await parts.clock.repeat(
        partial(_flush, parts), lifecycle.stage_deadline(Stage.JOURNAL)
    ):
        logger.warning(
            "drained before the journal was on disk; it is written to until the process ends"
        )


async def _flush(parts: Components) -> None:
    grace_s = parts.config.supervision.grace_s
    with parts.waits.on("the journal", owner="coordinator", deadline_s=grace_s):
        await parts.store.log.flush()


async def _send_home(parts: Components, role: Role, stage: Stage) -> None:
    """Tell each actor of a role that no more work comes, and wait until it has said `Drained`, the
    end of its stream, or is lost."""
    roster = parts.roster
    peers = list(roster.of(role))
    for peer in peers:
        peer.send(Drain())
    await parts.changes.until(
        f"drained {role} actors",
        lambda: all(
            peer.name in roster.drained or roster.get(peer.name) is not peer for peer in peers
        ),
        parts.lifecycle.stage_deadline(stage),
    )


def _saved(parts: Components, asked: set[int]) -> bool:
    """True if the trainer's version is saved, or cannot be. Asks for the checkpoint, once, as soon
    as no step is under way, and puts the version in `asked`.

    It cannot be saved if there is no trainer, or if the disk does not take it. Then a resumed run
    takes those steps again.
    """
    stepping = parts.stepping
    if stepping is None or parts.roster.get("trainer-0") is None:
        return True
    if stepping.closing:
        return False
    if stepping.version not in asked and stepping.save():
        asked.add(stepping.version)
    return bool(stepping.unsaved) or stepping.saved == stepping.version
