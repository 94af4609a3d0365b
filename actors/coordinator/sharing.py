"""Groups that a run shares with others, and those that it gets from them.

Invariant: the coordinator's loop waits for no file. What it gives out, and the prompts whose
answers it will want, are handed to one task, which reads and writes in a thread; a place that
fails or hangs costs shared groups and nothing else. At most PENDING groups wait to be written.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import deque
from collections.abc import Sequence

import trio

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.experience.group import Group
from asyncrl.messages import ForeignAnswer
from asyncrl.object_store import StoreError
from asyncrl.runtime.ipc.waits import Pulse, Waits
from asyncrl.tasks.shared_groups import SharedAnswer, SharedGroup, SharedReader, write_group
from asyncrl.tasks.shared_places import SharedPlace

logger = logging.getLogger(__name__)

PENDING = 64
"""Groups that wait to be written, at most; more are not shared."""
KEPT = 4096
"""Groups of a run's life that stay in the place, the newest."""


class Sharing:
    """Exchange of a run with others: it gives nothing without a `place` to write to, and gets
    nothing without a `reader`. `own` is the run's id, `tokenizer` the digest of its tokenizer."""

    def __init__(
        self,
        own: str = "",
        tokenizer: str = "",
        place: SharedPlace | None = None,
        reader: SharedReader | None = None,
    ) -> None:
        self._own, self._tokenizer = own, tokenizer
        self._place, self._reader = place, reader
        self._given = set[int]()  # live groups that were given out
        self._pending = deque[SharedGroup]()
        self._wanted = dict[bytes, None]()
        self._found = dict[bytes, list[ForeignAnswer]]()
        self._written = deque[tuple[str, str]]()
        self._due = Pulse()
        self.shared = self.failed = 0
        """Groups that were written, and times that a place failed."""

    def of(self, prompt: bytes) -> Sequence[ForeignAnswer]:
        """Return the answers of others to a prompt, as far as they were read."""
        return self._found.get(prompt, [])

    def look(self, store: EventStore) -> None:
        """Give out the groups that are complete, and say which prompts are of interest."""
        experience = store.experience
        if self._place is not None:
            self._given &= experience.groups.keys()
            for group in experience.ready():
                if group.id not in self._given:
                    self._given.add(group.id)
                    self._give(group)
        if self._reader is not None:
            live = {group.prompt for group in experience.groups.values() if group.imports}
            self._found = {prompt: found for prompt, found in self._found.items() if prompt in live}
            self._wanted = dict.fromkeys(prompt for prompt in live if prompt not in self._found)
        if self._pending or self._wanted:
            self._due.set()

    def _give(self, group: Group) -> None:
        """Have a group's own answers written, if they have known log-probabilities and verdicts."""
        own = [member for member in group.own_members if member.compared and member.ids]
        if not own or len(self._pending) >= PENDING:
            return
        answers = [
            SharedAnswer(
                array("i", bytes(member.ids)).tolist(),
                [min(0.0, p) for p in array("f", bytes(member.behaviour))],
                member.finish,
            )
            for member in own
        ]
        if all(math.isfinite(p) for answer in answers for p in answer.logprobs):
            prompt = array("i", group.prompt).tolist()
            self._pending.append(
                SharedGroup(self._own, group.id, group.oldest, self._tokenizer, prompt, answers)
            )

    async def run(self, waits: Waits) -> None:
        """Write and read, until cancelled."""
        while True:
            with waits.until("a group is admitted or complete", "to share", owner="coordinator"):
                await self._due.wait()
            while self._pending or self._wanted:
                try:
                    await self._one()
                except (OSError, StoreError) as error:
                    self.failed += 1
                    if self.failed == 1:
                        logger.warning("groups cannot be shared: %s", error)

    async def _one(self) -> None:
        """Read the answers to a prompt, which may soon be too late, or write a group."""
        if not self._wanted:
            group = self._pending.popleft()
            assert self._place is not None
            written = await trio.to_thread.run_sync(
                write_group, self._place, group, abandon_on_cancel=True
            )
            self.shared += 1
            self._written.append(written)
            if len(self._written) > KEPT:
                oldest = self._written.popleft()
                await trio.to_thread.run_sync(self._place.remove, *oldest, abandon_on_cancel=True)
            return
        prompt = next(iter(self._wanted))
        del self._wanted[prompt]
        assert self._reader is not None
        self._found[prompt] = []  # it is not asked for again if this fails
        self._found[prompt] = await trio.to_thread.run_sync(
            self._reader.read, prompt, abandon_on_cancel=True
        )
