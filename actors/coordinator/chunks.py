"""Takes in the tokens that engines stream.

Invariant: every sampled token is counted once: it belongs to its rollout, or it is late, or its
chunk has a defect and is dropped (chunk_validation.py).

    a chunk with a defect                       the rollout is buried under the defect's name
    of a rollout that is not with the sender    its tokens are late
    else                                        its tokens extend the rollout
      that ends with `interrupted`              the rollout is taken back (reclaiming.py)
      that ends with `refused`                  the rollout is buried under `refused`: its engine
                                                refuses it, and would do so each time
      that ends with `stop` or `length`         the rollout is sealed, an agent's call answered
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from asyncrl.actors.coordinator.chunk_validation import (
    Defect,
    Suspects,
    defects,
    fits,
    misrouted,
    refusal,
)
from asyncrl.actors.coordinator.common_failure import REQUESTS, CommonFailure
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.reclaiming import Reclaiming, completed
from asyncrl.experience.call import Call, ImpossibleEvent
from asyncrl.experience.events import Extended, LateTokens, RoutingKnown
from asyncrl.messages import ChunkHead, Chunks
from asyncrl.runtime.processes.standstill import RunClock

logger = logging.getLogger(__name__)


class ChunkIntake:
    """Counts what engines sampled, to its rollout or as late."""

    def __init__(
        self,
        store: EventStore,
        engines: EnginePool,
        leases: LeaseTable,
        reclaiming: Reclaiming,
        clock: RunClock,
        *,
        vocabulary: int,
        garbled: Callable[[Defect], None],
        extended: Callable[[Call], None],
    ) -> None:
        """`vocabulary` is larger than any sampled id; `garbled` is called for each bad chunk,
        `extended` for each call that has got tokens."""
        self._store = store
        self._engines = engines
        self._leases = leases
        self._reclaiming = reclaiming
        self._clock = clock
        self._vocabulary = vocabulary
        self._extended = extended
        self.suspects = Suspects(garbled)
        self.streamed: dict[str, float] = {}
        """Seconds on the run's clock when each engine streamed last, by its name."""
        self.last_activity = clock.now()
        """Seconds on the run's clock when any engine streamed last."""
        before = store.experience.ledger.tokens.total > 0
        self.failures = CommonFailure(REQUESTS, succeeded_before=before)
        """Requests that engines answered, and those that they refused or failed at."""

    def on_chunks(
        self,
        sender: str,
        message: Chunks,
        ids: memoryview,
        behaviour: memoryview,
        routing: memoryview | bytes = b"",
    ) -> None:
        """Take in one frame of chunks: `ids` int32 and `behaviour` float32, both [tokens], those of
        each head one after another, and the bytes of the `routing` that comes with them.

        Raises ImpossibleEvent, after the good chunks of the frame were taken in, if this was the
        engine's `SUSPECT`-th bad chunk; and LinkError if the sender has no engine.

        Example: heads with the counts 3 and 2 come with five ids; ids 0 to 2 are the first head's.
        """
        if not fits(message.heads, ids, behaviour, routing):
            for head in message.heads:  # it is unknown which tokens are whose
                self._bury(sender, head, "unequal")
            self._suspect(sender, ["unequal"])
            return
        bad = defects(
            message.heads,
            ids,
            behaviour,
            vocabulary=self._vocabulary,
            newest=self._store.experience.version,
        )
        self.last_activity = self.streamed[sender] = self._clock.now()
        given_back = any(head.finish == "interrupted" for head in message.heads)
        queued = self._reclaiming.queued(sender) if given_back else ()
        records = sum(head.routed for head in message.heads)
        at, recorded, width = 0, 0, len(routing) // records if records else 0
        for number, head in enumerate(message.heads):
            end, known = at + 4 * head.count, recorded + width * head.routed
            call = self._store.experience.calls.get(head.rollout)
            if number in bad:
                self._bury(sender, head, bad[number])
            elif call is None or not _is_with(call, sender, head):
                if head.count:
                    self._store.record(LateTokens(head.count))
            elif defect := self._take_in(
                call,
                head,
                bytes(ids[at:end]),
                bytes(behaviour[at:end]),
                bytes(routing[recorded:known]),
            ):
                bad[number] = defect
                self._bury(sender, head, defect)
            elif head.finish:
                self._finish(call, head, queued)
            at, recorded = end, known
        if bad:
            self._suspect(sender, list(bad.values()))

    def _take_in(
        self, call: Call, head: ChunkHead, ids: bytes, behaviour: bytes, routing: bytes
    ) -> Defect | None:
        """Append a chunk to its call, and set the experts that come with it. Returns the defect of
        one that cannot follow, with nothing done."""
        if head.routed and misrouted(head, call, len(routing) // head.routed):
            return "routing"
        late = head.routed != head.count
        if head.count:
            own = b"" if late else routing
            if not self._extend(call, head, ids, behaviour, own):
                return refusal(head, call)
        if head.routed and late:
            start = head.start + head.count - head.routed
            routed = RoutingKnown(head.rollout, head.attempt, start, head.routed, routing)
            self._store.record(routed)
        return None

    def _extend(
        self, call: Call, head: ChunkHead, ids: bytes, behaviour: bytes, routing: bytes
    ) -> bool:
        """Append a chunk to its call. Returns False, with nothing done, if it cannot follow."""
        pinned = self._leases.of(call.id).version
        if pinned is not None and head.version != pinned:
            return False
        try:
            self._store.record(
                Extended(
                    head.rollout, head.attempt, head.version, head.start, ids, behaviour, routing
                )
            )
        except ImpossibleEvent:
            return False
        self._extended(call)
        return True

    def _finish(self, call: Call, head: ChunkHead, queued: Collection[int]) -> None:
        """Handle the end of a call: it is complete, or was interrupted."""
        if head.why and self.failures.failure(head.why, call.group, self._clock.now()):
            logger.warning(
                "rollout %d was %s by its engine: %s (%s)",
                call.id,
                head.finish,
                head.why,
                self.failures.so_far,
            )
        if head.finish == "interrupted":
            self._reclaiming.interrupted(call, queued)
            return
        if head.finish == "refused":
            self._reclaiming.bury(call, "refused")
            return
        self.failures.success()
        self._leases.times.took(self._clock.now() - self._leases.of(call.id).since)
        self._reclaiming.release(call)
        self._store.record(completed(call, head.finish))

    def _bury(self, sender: str, head: ChunkHead, defect: Defect) -> None:
        """Bury the call of a bad chunk, if it is with the sender, which is told to stop it."""
        call = self._store.experience.calls.get(head.rollout)
        if call is not None and _is_with(call, sender, head):
            logger.warning(
                "rollout %d is dropped because %s sent a bad chunk of it: %s",
                call.id,
                sender,
                defect,
            )
            self._reclaiming.give_up(call, defect)

    def _suspect(self, sender: str, defects: list[Defect]) -> None:
        self.suspects.add(sender, defects, engine=self._engines.get(sender) is not None)


def _is_with(call: Call, sender: str, head: ChunkHead) -> bool:
    """True if the call is with the sender, for the attempt that the chunk names."""
    return call.holder == sender and call.attempt == head.attempt
