"""The end of a run: every stream is ended from its source to its sink. Invariant: whoever is late
costs the others nothing but his share of `supervision.grace_s`, and what is finished, streamed or
learned by then is kept.

Prompts have stopped when it begins. Engines give back what they generate, with its tokens, and say
`Drained`; then reward actors do, with the verdicts they had begun; the trainer closes the step that
it was asked for, saves what it has learned, and says `Drained`; the journal is flushed. Nobody is
started again meanwhile, and who comes is sent home.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from actors.coordinator.lifecycle import Stage
from asyncrl.ipc.messages import Drain, Draining, Role

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator

logger = logging.getLogger(__name__)


async def drain(run: Coordinator) -> None:
    """Park what is being generated, save what is learned, send everybody home; all within
    `supervision.grace_s`."""
    for launcher in run.roster.of("launcher"):
        launcher.send(Draining())
    asked: set[int] = set()  # versions to be saved
    _saved(run, asked)  # it takes longest, so it begins first
    run.generation.park("train")
    run.generation.park("evaluation")
    await run.until(
        "parked rollouts",
        lambda: not (run.generation.leased or run.publishing.busy),
        run.life.stage_deadline(Stage.PARK),
    )
    await _send_home(run, "rollout", Stage.ROLLOUT)
    await _send_home(run, "reward", Stage.REWARD)
    await run.until(
        "the checkpoint", lambda: _saved(run, asked), run.life.stage_deadline(Stage.TRAINER)
    )
    await _send_home(run, "trainer", Stage.TRAINER)
    with trio.move_on_at(run.life.stage_deadline(Stage.JOURNAL)) as patience:
        with run.waits.on(
            "the journal", owner="coordinator", deadline_s=run.config.supervision.grace_s
        ):
            await run.store.log.flush()
    if patience.cancelled_caught:
        logger.warning(
            "drained before the journal was on disk; it is written to until the process ends"
        )


async def _send_home(run: Coordinator, role: Role, stage: Stage) -> None:
    """No more work comes: each actor of a role finishes or parks what it holds, and says `Drained`,
    which is the end of its stream."""
    peers = list(run.roster.of(role))
    for peer in peers:
        peer.send(Drain())
    await run.until(
        f"drained {role} actors",
        lambda: all(
            peer.name in run.drained or run.roster.get(peer.name) is not peer for peer in peers
        ),
        run.life.stage_deadline(stage),
    )


def _saved(run: Coordinator, asked: set[int]) -> bool:
    """Whether the open step is closed and what it made is saved, which is asked for here, once; or
    nobody does it, or the disk does not take it: then a resumed run takes those steps again."""
    training = run.training
    if training is None or run.roster.get("trainer-0") is None:
        return True
    if training.closing:
        return False
    if training.version not in asked and training.save():
        asked.add(training.version)
    return bool(training.unsaved) or training.saved == training.version
