"""Prompts in, rollouts out. Invariant: a group starts only when admission allows it, and every chunk is booked: to its rollout, or as late.

admit   while admission allows: the next prompt becomes a group      (evaluation admits its own, actors/coordinator/evaluation.py)
lease   waiting rollouts, recycled ones first → the engine with most room; a group stays together, so that its prompt is read once
chunks  Extended, and Sealed at the end; Late if the rollout is no longer with the sender
back    interrupted, expired or its actor lost: Recycled with its tokens; Buried after `attempts` leases that brought no token
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

import numpy as np
import trio

from actors.coordinator.book import Book
from actors.coordinator.leases import Out
from actors.coordinator.prompts import Prompts
from actors.coordinator.seats import Seat, Seats
from asyncrl.config import Config
from asyncrl.experience.events import Admitted, Buried, Dropped, Extended, Late, Leased, Recycled, Sealed
from asyncrl.experience.rollout import Refused, Rollout, Status
from asyncrl.messages import Chunks, Interrupt, Lease, Leases, Purpose
from asyncrl.strategies.sizing import SIZINGS

logger = logging.getLogger(__name__)


class Generation:
    """Admission, leases and chunks."""

    def __init__(self, book: Book, seats: Seats, prompts: Prompts, config: Config) -> None:
        self._book = book
        self._seats = seats
        self._prompts = prompts
        self._config = config
        self.out = Out(config.run.lease_s)  # what is leased, and since when
        self._left: dict[int, str] = {}  # rollouts whose lease ran out, and the engine they were with
        self.streamed: dict[str, float] = {}  # when each engine streamed last
        self._parking: dict[Purpose, set[int]] = {"train": set(), "evaluation": set()}  # held, and asked to be given back
        self._most = config.rollout.group_size if config.rollout.sizing == "fixed" else config.rollout.group_size_max
        self._sizing = SIZINGS[config.rollout.sizing](config.rollout.group_size, self._most)
        self._over = False  # whether no prompt was found when one was looked for last
        self.too_long = 0  # prompts that did not fit the context, since the last that did
        self.progress = trio.current_time()
        self.admitted = math.inf  # when the first training prompt was

    # ------------------------------------------------------------------------------------------------------ admission

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        experience = self._book.experience
        return not experience.restarts and (self._over or self._prompts.train_item(experience.history.cursor) is None)

    def admit(self, wanted: int) -> None:
        """Start so many new groups, as far as there are prompts."""
        experience = self._book.experience
        self.admitted = min(self.admitted, trio.current_time())
        live = {group.item for group in experience.groups.values() if group.purpose == "train"} if wanted > 0 else set()
        for _ in range(wanted):
            if experience.restarts:
                stale, again = next(iter(experience.restarts.items()))
                self.start("train", again, restarts=stale)
            elif (chosen := self._prompts.next(experience.history, live)) is not None:
                live.add(chosen.item)
                self.start("train", chosen.item, cursor=chosen.cursor)
            else:
                self._over = True
                return

    def start(self, purpose: Purpose, item: int, *, version: int | None = None, restarts: int | None = None, cursor: int = 0) -> bool:
        """Admit one group. A prompt that leaves no room for an answer is dropped by name at once: then the answer is False."""
        experience, rollout = self._book.experience, self._config.rollout
        group, prompt = experience.next_group, self._prompts.ids(purpose, item)
        size = self._sizing.size(experience.history, item) if purpose == "train" else 1
        place = experience.items(purpose) if restarts is None else -1 - restarts  # not its number: that counts evaluations too
        self._book.record(
            Admitted(
                group=group,
                first=experience.next_rollout,
                size=size,
                purpose=purpose,
                item=item,
                prompt=prompt,
                max_new_tokens=rollout.max_new_tokens,
                version=version,
                restarts=restarts,
                key=self._most * place if purpose == "train" else place,
                cursor=cursor,
            )
        )
        fits = len(prompt) // 4 + rollout.max_new_tokens <= self._config.engine.context_tokens
        if purpose == "train":
            self.too_long = 0 if fits else self.too_long + 1
        if not fits:
            self._book.record(Dropped(group, "prompt_too_long"))
        return fits

    # --------------------------------------------------------------------------------------------------------- leases

    def lease(self, purpose: Purpose, version: int | None = None) -> None:
        """Give waiting rollouts to the engines that have room; one whose lease ran out to another engine than before, if there is one.

        Of those that have one attempt left an engine gets one at a time: then a rollout that ends every engine it is with takes no other
        with it, since whoever failed beside it has failed no more often than it has.
        """
        given: dict[Seat, list[Rollout]] = {}
        group, seat = -1, None
        for rollout in self._book.experience.to_lease(purpose, self._seats.room(purpose, version)):
            if self._on_last_attempt(rollout):
                if (chosen := self._apart(purpose, version)) is None:
                    continue
                group, seat = -1, None  # the next one is placed anew
                self._left.pop(rollout.id, None)
                self._seats.hold(chosen, rollout.id, purpose)
                given.setdefault(chosen, []).append(rollout)
                continue
            left = self._left.pop(rollout.id, "")
            if seat is None or rollout.group != group or left or not seat.room(purpose):
                group, seat = rollout.group, self._seats.roomiest(purpose, version, but=left)
            self._seats.hold(seat, rollout.id, purpose)
            given.setdefault(seat, []).append(rollout)
        for seat, rollouts in given.items():
            self._hand_over(seat, rollouts, purpose, version)

    def _on_last_attempt(self, rollout: Rollout) -> bool:
        """Whether it has failed, and once more is the end."""
        return 0 < rollout.failures == self._config.rollout.attempts - 1

    def _apart(self, purpose: Purpose, version: int | None) -> Seat | None:
        """An engine with room that has none of those."""
        rollouts = self._book.experience.rollouts
        for seat in self._seats:
            free = (purpose, version) in seat.services and seat.room(purpose) > 0
            if free and not any(self._on_last_attempt(rollouts[id]) for held in seat.held.values() for id in held):
                return seat
        return None

    def _hand_over(self, seat: Seat, rollouts: list[Rollout], purpose: Purpose, version: int | None) -> None:
        leases, ids = [], bytearray()
        for rollout in rollouts:
            group = self._book.experience.groups[rollout.group]
            prompt, attempt = group.prompt, rollout.attempt + 1
            leases.append(
                Lease(
                    rollout=rollout.id,
                    attempt=attempt,
                    key=group.key + rollout.id - group.members[0].id,
                    purpose=purpose,
                    prompt_tokens=len(prompt) // 4,
                    prefix_tokens=rollout.tokens,
                    max_new_tokens=rollout.remaining,
                    temperature=self._config.rollout.temperature if purpose == "train" else 0.0,
                    version=version,
                )
            )
            ids += prompt
            ids += rollout.ids
            self._book.record(Leased(rollout.id, seat.name, attempt))
            self.out.give(rollout.id, attempt, rollout.tokens, trio.current_time())
        seat.peer.send(Leases(leases), bytes(ids))

    # --------------------------------------------------------------------------------------------------------- chunks

    def on_chunks(self, sender: str, message: Chunks, ids: memoryview, behaviour: memoryview) -> None:
        """Book what an engine sampled. Raises Refused for what no engine of this run can have sampled; then nothing is booked."""
        self._refuse_garbage(message, ids, behaviour)
        at = 0
        self.progress = self.streamed[sender] = trio.current_time()
        given_back = any(head.finish == "interrupted" for head in message.heads)
        queued = self._queued(seat) if given_back and (seat := self._seats.get(sender)) is not None else ()
        for head in message.heads:
            end = at + 4 * head.count
            rollout = self._book.experience.rollouts.get(head.rollout)
            if rollout is None or rollout.owner != sender or rollout.attempt != head.attempt:
                if head.count:
                    self._book.record(Late(head.count))
            else:
                if head.count:
                    self._book.record(
                        Extended(head.rollout, head.attempt, head.version, head.start, bytes(ids[at:end]), bytes(behaviour[at:end]))
                    )
                if head.finish == "interrupted" and rollout.id in self._parking[self._book.experience.groups[rollout.group].purpose]:
                    self._take_back(rollout, "interrupted")
                elif head.finish == "interrupted":  # unasked
                    self._fail(rollout, "interrupted", queued)
                elif head.finish:
                    self.out.times.took(trio.current_time() - self.out.of(rollout.id).since)
                    self._release(rollout)
                    self._book.record(Sealed(head.rollout, head.attempt, head.finish))
            at = end

    def _refuse_garbage(self, message: Chunks, ids: memoryview, behaviour: memoryview) -> None:
        if not len(ids):
            return
        if (largest := int(np.frombuffer(ids, np.uint32).max())) >= self._prompts.vocabulary:  # a negative id is a large one
            raise Refused(f"an id is {np.uint32(largest).astype(np.int32)}, and the vocabulary has {self._prompts.vocabulary}")
        if not math.isfinite(np.frombuffer(behaviour, np.float32).sum(dtype=np.float64)):
            raise Refused("a log-probability is not finite")
        published = self._book.experience.version
        for head in message.heads:
            if head.count and (published is None or head.version > published):
                raise Refused(f"tokens are of version {head.version}, and {published} is the last that was published")

    # ----------------------------------------------------------------------------------------------------------- back

    def expire(self, now: float) -> list[str]:
        """Take back what has been leased for too long; its engine is told, and what it still sends is late. Returns the engines that
        streamed nothing at all since they were given one of these: they are to be replaced."""
        expired: dict[str, list[Rollout]] = {}
        for id in self.out.over(now):
            rollout = self._book.experience.rollouts[id]
            expired.setdefault(rollout.owner, []).append(rollout)
        silent = []
        for owner, rollouts in expired.items():
            seat = self._seats.get(owner)
            assert seat is not None, "what an engine held was taken back when its seat was lost"
            if self.streamed.get(owner, -math.inf) <= max(self.out.of(rollout.id).since for rollout in rollouts):
                silent.append(owner)
            queued = self._queued(seat)
            for rollout in rollouts:
                held = self.out.of(rollout.id)
                if rollout.tokens > held.tokens:
                    self.out.times.took(now - held.since)
                self._fail(rollout, "lease_expired", queued)
                if rollout.status is Status.WAITING:
                    self._left[rollout.id] = owner
            seat.peer.send(Interrupt([rollout.id for rollout in rollouts]))
        return silent

    def lose(self, seat: Seat) -> None:
        """An engine is gone: what it held continues elsewhere, from its last streamed token."""
        queued = self._queued(seat)
        for held in seat.held.values():
            for id in sorted(held):
                self._fail(self._book.experience.rollouts[id], "actor_lost", queued)

    def _queued(self, seat: Seat) -> set[int]:
        """What an engine has not begun, as it has no slot for it: it begins leases in the order in which they were given."""
        held = (id for ids in seat.held.values() for id in ids)
        return set(sorted(held, key=lambda id: self.out.of(id).number)[seat.slots :])

    def park(self, purpose: Purpose) -> None:
        """Ask every engine to give back what it holds, once; it comes back as interrupted chunks."""
        parking = self._parking[purpose]
        if len(parking) == self._seats.held[purpose]:
            return
        for seat in self._seats:
            if asked := sorted(seat.held[purpose] - parking):
                parking.update(asked)
                seat.peer.send(Interrupt(asked))

    @property
    def leased(self) -> int:
        """Rollouts that are with engines."""
        return self._seats.held.total()

    def forget(self, rollout: Rollout) -> None:
        """A group was dropped while this rollout was with an engine: have it stopped there."""
        if (seat := self._seats.get(rollout.owner)) is not None:
            seat.peer.send(Interrupt([rollout.id]))
        self._release(rollout)

    def _fail(self, rollout: Rollout, reason: str, queued: Collection[int]) -> None:
        """A lease ended badly. One that brought a token is no failed attempt: the response is longer now, and so it comes to an end. Nor is
        one whose turn had not come."""
        if rollout.tokens > self.out.of(rollout.id).tokens or rollout.id in queued:
            self._take_back(rollout, reason)
            return
        if rollout.failures + 1 >= self._config.rollout.attempts:
            self._release(rollout)
            group = self._book.experience.groups[rollout.group]
            logger.warning(
                "rollout %d (%s item %d, %d tokens) is given up after %d attempts that brought no token, the last one: %s",
                *(rollout.id, group.purpose, group.item, rollout.tokens, self._config.rollout.attempts, reason),
            )
            self._book.record(Buried(rollout.id, reason))
        else:
            self._take_back(rollout, reason, failed=True)

    def _take_back(self, rollout: Rollout, reason: str, *, failed: bool = False) -> None:
        self._release(rollout)
        self._book.record(taken_back(rollout, reason, failed=failed))

    def _release(self, rollout: Rollout) -> None:
        purpose = self._book.experience.groups[rollout.group].purpose
        self._seats.release(rollout.owner, rollout.id, purpose)
        self.out.back(rollout.id)
        self._parking[purpose].discard(rollout.id)


def taken_back(rollout: Rollout, reason: str, *, failed: bool = False) -> Recycled | Sealed:
    """What becomes of a leased rollout that is with nobody any more: it waits for another lease, unless its budget is used up already."""
    if rollout.remaining:
        return Recycled(rollout.id, rollout.attempt, reason, failed)
    return Sealed(rollout.id, rollout.attempt, "length")
