"""Observation of a world: what happens in it is told to an observer, which checks or measures."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.experience import events as e
from asyncrl.messages import Message, MicroBatch, Play, Sample, StatusUpdate

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant, self.sentence = invariant, sentence


class WorldObserver:
    """Hears what happens in a world. The `on_` methods do nothing here: a subclass overrides those
    that it needs.

    `violation` is the first thing that was wrong, and `stop` is called with it. `checks` counts the
    checks by invariant. `start` names one start of an actor in one life, such as `rollout-1/0/2`.
    """

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.stop: Callable[[], None] = lambda: None
        self.checks: Counter[str] = Counter()

    def violated(self, invariant: str, sentence: str, cause: BaseException | None = None) -> None:
        """Something is wrong. The first thing counts, and ends the simulation."""
        if self.violation is None:
            if cause is not None:
                sentence += "\n" + "".join(traceback.format_exception(cause)[-8:])
            self.violation = Violation(invariant, sentence)
            self.stop()

    def hold(self, invariant: str, true: bool, sentence: str, *values: object) -> None:
        """Count a check. Where it fails, `sentence`, formatted with `values`, says what is
        wrong."""
        self.checks[invariant] += 1
        if not true:
            self.violated(invariant, sentence.format(*values))

    # ---------------------------------------------------------------------------- the coordinator

    def on_begin(
        self,
        store: EventStore,
        version: int,
        cursor: int,
        last: int,
        evaluated: Collection[int] = (),
    ) -> None:
        """A coordinator starts with the state of `store`, which the first `last` events and the
        checkpoint of `version` must give; it was taken after event `cursor`. The curve has the
        accuracy of the versions `evaluated`."""

    def on_death(self) -> None:
        """The coordinator is dead, whatever its code still does."""

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        """The coordinator has applied this event, and appended it as the `number`-th (from 1)."""

    def on_keep(self, version: int) -> None:
        """The coordinator writes its state down, for the checkpoint of `version`."""

    def on_outcome(self, outcome: Outcome) -> None:
        """The coordinator has ended its run."""

    def on_status(self, update: StatusUpdate) -> None:
        """The coordinator says what a user is shown."""

    def on_blame(self, start: str, reason: str) -> None:
        """The coordinator has an actor replaced. `start` names one start of it."""

    def on_told(self, start: str, message: Message, buffers: Sequence[Buffer]) -> None:
        """The coordinator tells an actor this."""

    def on_heard(self, start: str, message: Message) -> None:
        """An actor has received this from the coordinator."""

    def on_hung_up(self, start: str) -> None:
        """The coordinator's end of an actor's connection is closed."""

    def on_delivered(self, start: str, message: Message, buffers: Sequence[Buffer]) -> None:
        """The coordinator has received this from an actor."""

    # --------------------------------------------------------------------------------- the actors

    def on_start(self, version: int, weights: int) -> None:
        """A trainer starts from these weights."""

    def on_batch(
        self, batch: MicroBatch, ids: memoryview, behaviour: memoryview, mask: memoryview
    ) -> None:
        """The learner is given this micro-batch."""

    def on_step(self, version: int, weights: int) -> None:
        """The learner made a version."""

    def on_checkpoint(self, version: int, weights: int) -> None:
        """The trainer has written a checkpoint of this version, with these weights."""

    def on_load(self, start: str, version: int, weights: int, pin: bool) -> None:
        """An engine decodes with these weights from now on, under this version; with `pin`, it
        keeps them."""

    def on_average(self, start: str, version: int, weights: int) -> None:
        """An engine keeps these weights as the average of this version, beside those that it
        decodes with."""

    def on_written(self, start: str, still: bool) -> None:
        """A publication writes into an engine's own weights, which stands still, or does not."""

    def on_resumed(self, start: str, whole: bool) -> None:
        """An engine that stood still goes on as before, with weights that are whole, or not."""

    def on_let_go(self, start: str, publication: int) -> None:
        """An actor's part in the transfer of a publication is over, for whatever reason."""

    def on_scores(
        self, step: int, sample: Sample, scores: NDArray[np.float32], mask: NDArray[np.uint8]
    ) -> None:
        """The learner trains a sample with these proximal log-probabilities of its response, NaN
        where it knows none, and with this mask. Both are [tokens]."""

    def on_agent_end(self, play: Play, failed: str, left: Collection[int]) -> None:
        """The agent of an attempt has ended; `failed` is the reason why another attempt is due,
        empty if none is, and `left` are the calls whose whole answers it did not want."""

    def on_judging(self, start: str, answers: int) -> None:
        """The verifiers of a reward actor begin with an answer: so many are open now."""

    def on_garbage(self, start: str, chunks: int) -> None:
        """An actor sends so many bad chunks, as the plan of faults says."""

    def on_wrong_weights(self, start: str) -> None:
        """An actor receives other weights than were sent, as the plan of faults says."""

    def on_refusal(self) -> None:
        """A verifier withholds a verdict, as the plan of faults says."""
