"""Prompts in, rollouts out. Invariant: a group starts only when admission allows it, and every
chunk is booked: to its rollout, or as late.

admit   while admission allows: the next prompt becomes a group      (evaluation admits its own, actors/coordinator/evaluation.py)
lease   waiting rollouts, recycled ones first → the engine with most room; a group stays together, so that its prompt is read once
chunks  Extended, and Sealed at the end; Late if the rollout is no longer with the sender; Buried if it cannot be (garbage.py)
own     where a rollout ends under the version that it began with, its leases name that one, and engines keep it until nobody needs it;
        Buried where no engine has it any more
back    interrupted, expired or its actor lost: Recycled with its tokens; Buried after `attempts` leases that brought no token, and where
        it would go on for more than `max_resumes` times
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection

import trio

from actors.coordinator.chunk_validation import Defect, Suspects, defects, fits, refusal
from actors.coordinator.engine_pool import EngineHandle, EnginePool
from actors.coordinator.event_store import EventStore
from actors.coordinator.leases import LeaseTable
from actors.coordinator.prompts import PromptSource
from asyncrl.config import Config
from asyncrl.experience.events import (
    Admitted,
    Buried,
    Dropped,
    Extended,
    LateTokens,
    Leased,
    Requeued,
    Sealed,
)
from asyncrl.experience.rollout import ImpossibleEvent, Rollout, RolloutStatus
from asyncrl.ipc.messages import ChunkHead, Chunks, Interrupt, Lease, Leases, Split, Unpin
from asyncrl.strategies.sizing import SIZINGS

logger = logging.getLogger(__name__)


class Generation:
    """Admission, leases and chunks."""

    def __init__(
        self,
        store: EventStore,
        engine_pool: EnginePool,
        prompts: PromptSource,
        config: Config,
        garbled: Callable[[Defect], None],
    ) -> None:
        """`garbled` hears of each bad chunk."""
        self._store = store
        self._engine_pool = engine_pool
        self._prompts = prompts
        self._config = config
        self._own = config.staleness.finish_on == "own"
        self.suspects = Suspects(garbled)
        self.out = LeaseTable(config.rollout.lease_s)  # what is leased, and since when
        self._left: dict[
            int, str
        ] = {}  # rollouts whose lease ran out, and the engine they were with
        self.streamed: dict[str, float] = {}  # when each engine streamed last
        self._parking: dict[Split, set[int]] = {
            "train": set(),
            "evaluation": set(),
        }  # held, and asked to be given back
        self._most = (
            config.rollout.group_size
            if config.rollout.sizing == "fixed"
            else config.rollout.group_size_max
        )
        self._sizing = SIZINGS[config.rollout.sizing](config.rollout.group_size, self._most)
        self._over = False  # whether no prompt was found when one was looked for last
        self.too_long = 0  # prompts that did not fit the context, since the last that did
        self.progress = trio.current_time()
        self.admitted = math.inf  # when the first training prompt was

    # ----------------------------------------------------------------------------------- admission

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        experience = self._store.experience
        return not experience.restarts and (
            self._over or self._prompts.train_item(experience.history.cursor) is None
        )

    def admit(self, wanted: int) -> None:
        """Start so many new groups, as far as there are prompts."""
        experience = self._store.experience
        self.admitted = min(self.admitted, trio.current_time())
        live = (
            {group.prompt_index for group in experience.groups.values() if group.split == "train"}
            if wanted > 0
            else set()
        )
        for _ in range(wanted):
            if experience.restarts:
                stale, again = next(iter(experience.restarts.items()))
                live.add(again)
                self.start("train", again, restarts=stale)
                continue
            chosen = self._prompts.next(experience.history, live)
            self._over = chosen is None
            if chosen is None:
                return
            live.add(chosen.prompt_index)
            self.start("train", chosen.prompt_index, cursor=chosen.cursor)

    def start(
        self,
        split: Split,
        prompt_index: int,
        *,
        version: int | None = None,
        restarts: int | None = None,
        cursor: int = 0,
    ) -> bool:
        """Admit one group. A prompt that leaves no room for an answer is dropped by name at once:
        then the answer is False."""
        experience, rollout = self._store.experience, self._config.rollout
        group, prompt = experience.next_group, self._prompts.ids(split, prompt_index)
        size = self._sizing.size(experience.history, prompt_index) if split == "train" else 1
        place = (
            experience.prompts[split] if restarts is None else -1 - restarts
        )  # not its number: that counts evaluations too
        self._store.record(
            Admitted(
                group=group,
                first=experience.next_rollout,
                size=size,
                split=split,
                prompt_index=prompt_index,
                prompt=prompt,
                max_new_tokens=rollout.max_new_tokens,
                version=version,
                restarts=restarts,
                key=self._most * place if split == "train" else place,
                cursor=cursor,
            )
        )
        fits = len(prompt) // 4 + rollout.max_new_tokens <= self._config.engine.context_tokens
        if split == "train":
            self.too_long = 0 if fits else self.too_long + 1
        if not fits:
            self._store.record(Dropped(group, "prompt_too_long"))
        return fits

    # -------------------------------------------------------------------------------------- leases

    def lease(self, split: Split, version: int | None = None) -> None:
        """Give waiting rollouts to the engines that have room; one whose lease ran out to another
        engine than before, if there is one.

        Of those that have one attempt left an engine gets one at a time: then a rollout that ends
        every engine it is with takes no other with it, since whoever failed beside it has failed no
        more often than it has.
        """
        given: dict[EngineHandle, list[Rollout]] = {}
        group, engine_handle = -1, None
        for rollout in self._waiting(split, version):
            if self._hopped_out(rollout):
                continue
            asked = version
            if self._own and split == "train":
                asked = self._under(rollout)
                if not self._engine_pool.room(split, asked):
                    self._gone(rollout, asked)
                    continue
            if self._on_last_attempt(rollout):
                if (chosen := self._apart(split, asked)) is None:
                    continue
                group, engine_handle = -1, None  # the next one is placed anew
                self._left.pop(rollout.id, None)
                self._engine_pool.hold(chosen, rollout.id, split)
                given.setdefault(chosen, []).append(rollout)
                continue
            left = self._left.pop(rollout.id, "")
            if (
                engine_handle is None
                or rollout.group != group
                or left
                or not engine_handle.room(split)
                or (split, asked) not in engine_handle.services
            ):
                group, engine_handle = (
                    rollout.group,
                    self._engine_pool.roomiest(split, asked, but=left),
                )
            self._engine_pool.hold(engine_handle, rollout.id, split)
            given.setdefault(engine_handle, []).append(rollout)
        for engine_handle, rollouts in given.items():
            self._hand_over(engine_handle, rollouts, split, version)

    def _waiting(self, split: Split, version: int | None) -> list[Rollout]:
        """The rollouts to look for a place for: as many as there is room for, or where each may
        need another version, all."""
        experience, room = self._store.experience, self._engine_pool.room(split, version)
        if self._own and split == "train" and room:
            room = experience.statuses()[RolloutStatus.WAITING]
        return experience.to_lease(split, room)

    def _under(self, rollout: Rollout) -> int | None:
        """The version that a rollout has to be sampled under: the one it began with, or what is
        published, where it has not begun."""
        return rollout.spans[0].version if rollout.spans else self._store.experience.version

    def _gone(self, rollout: Rollout, version: int | None) -> None:
        """There is no room for a rollout that began with `version`: it waits for some, unless no
        engine will have that version again. An engine that comes is given the one that is
        published, or a later one."""
        if (
            not self._engine_pool.serves("train", version)
            and version != self._store.experience.version
        ):
            self._give_up(rollout, "version_gone")

    def _on_last_attempt(self, rollout: Rollout) -> bool:
        """Whether it has failed, and once more is the end."""
        return 0 < rollout.failures == self._config.rollout.attempts - 1

    def _apart(self, split: Split, version: int | None) -> EngineHandle | None:
        """An engine with room that has none of those."""
        rollouts = self._store.experience.rollouts
        for engine_handle in self._engine_pool:
            free = (split, version) in engine_handle.services and engine_handle.room(split) > 0
            if free and not any(
                self._on_last_attempt(rollouts[id])
                for held in engine_handle.held.values()
                for id in held
            ):
                return engine_handle
        return None

    def _hand_over(
        self,
        engine_handle: EngineHandle,
        rollouts: list[Rollout],
        split: Split,
        version: int | None,
    ) -> None:
        leases, ids = [], bytearray()
        for rollout in rollouts:
            group = self._store.experience.groups[rollout.group]
            prompt, attempt = group.prompt, rollout.attempt + 1
            pinned = self._under(rollout) if self._own and split == "train" else version
            leases.append(
                Lease(
                    rollout=rollout.id,
                    attempt=attempt,
                    key=group.key + rollout.id - group.members[0].id,
                    split=split,
                    prompt_tokens=len(prompt) // 4,
                    prefix_tokens=rollout.tokens,
                    max_new_tokens=rollout.remaining,
                    temperature=self._config.rollout.temperature if split == "train" else 0.0,
                    version=pinned,
                )
            )
            ids += prompt
            ids += rollout.ids
            self._store.record(Leased(rollout.id, engine_handle.name, attempt))
            self.out.give(rollout.id, attempt, rollout.tokens, trio.current_time(), pinned)
        engine_handle.peer.send(Leases(leases), bytes(ids))

    # -------------------------------------------------------------------------------------- chunks

    def on_chunks(
        self, sender: str, message: Chunks, ids: memoryview, behaviour: memoryview
    ) -> None:
        """Book what an engine sampled. What it cannot have sampled is nobody's tokens: its rollout
        is buried by the defect's name. Raises Refused, with the rest of the frame booked, where
        that was the `SUSPECT`-th time, and LinkError where there is no engine."""
        if not fits(message.heads, ids, behaviour):
            for head in message.heads:  # nobody can say which tokens are whose
                self._bury(sender, head, "unequal")
            self.suspects.add(sender, ["unequal"], engine=self._engine_pool.get(sender) is not None)
            return
        bad = defects(
            message.heads,
            ids,
            behaviour,
            vocabulary=self._prompts.vocabulary,
            published=self._store.experience.version,
        )
        at = 0
        self.progress = self.streamed[sender] = trio.current_time()
        given_back = any(head.finish == "interrupted" for head in message.heads)
        queued = (
            self._queued(engine_handle)
            if given_back and (engine_handle := self._engine_pool.get(sender)) is not None
            else ()
        )
        for place, head in enumerate(message.heads):
            end = at + 4 * head.count
            rollout = self._store.experience.rollouts.get(head.rollout)
            if place in bad:
                self._bury(sender, head, bad[place])
            elif rollout is None or rollout.holder != sender or rollout.attempt != head.attempt:
                if head.count:
                    self._store.record(LateTokens(head.count))
            elif head.count and not self._extend(
                rollout, head, bytes(ids[at:end]), bytes(behaviour[at:end])
            ):
                bad[place] = refusal(head, rollout)
                self._bury(sender, head, bad[place])
            elif (
                head.finish == "interrupted"
                and rollout.id in self._parking[self._store.experience.groups[rollout.group].split]
            ):
                self._take_back(rollout, "interrupted")
            elif head.finish == "interrupted":  # unasked
                self._fail(rollout, "interrupted", queued)
            elif head.finish:
                self.out.times.took(trio.current_time() - self.out.of(rollout.id).since)
                self._release(rollout)
                self._store.record(Sealed(head.rollout, head.attempt, head.finish))
            at = end
        if bad:
            self.suspects.add(
                sender, list(bad.values()), engine=self._engine_pool.get(sender) is not None
            )

    def _extend(self, rollout: Rollout, head: ChunkHead, ids: bytes, behaviour: bytes) -> bool:
        if self._own and head.version != self.out.of(rollout.id).version:
            return False
        try:
            self._store.record(
                Extended(head.rollout, head.attempt, head.version, head.start, ids, behaviour)
            )
        except ImpossibleEvent:
            return False
        return True

    def _bury(self, sender: str, head: ChunkHead, defect: Defect) -> None:
        """A chunk is bad: its rollout is given up, where it is with the sender, and stopped
        there."""
        rollout = self._store.experience.rollouts.get(head.rollout)
        if rollout is not None and rollout.holder == sender and rollout.attempt == head.attempt:
            logger.warning(
                "rollout %d is given up for what %s sent of it: %s", rollout.id, sender, defect
            )
            self._give_up(rollout, defect)

    # ------------------------------------------------------------------------------------ versions

    def let_go(self, evaluated: int | None) -> None:
        """Have engines forget the versions that neither the evaluation under way nor any rollout
        needs; to be called where every engine serves what is published, or an evaluation is over.

        Where rollouts end under the version that they began with, engines keep each version with
        which one began that is not complete. That are `max_lag` + 1 at most, the current one among
        them: what began earlier can be trained in no step to come, unless `on_stale` says so, and
        is given up by name, and what has no token yet is leased anew. A commit and an evaluation
        make it two more.
        """
        needed = {evaluated}
        if self._own:
            needed |= self._engine_pool.current
            oldest = (self._store.experience.version or 0) - self._config.staleness.max_lag
            for rollout in self._incomplete():
                version = (
                    self.out.of(rollout.id).version if rollout.holder else self._under(rollout)
                )
                if version is None or version >= oldest:
                    needed.add(version)
                elif rollout.tokens:
                    self._give_up(rollout, "version_gone")
                else:
                    self._stop(rollout)
                    self._take_back(rollout, "version_gone")
        for version in sorted(self._engine_pool.kept - needed):
            for engine_handle in self._engine_pool.unpin(version):
                engine_handle.peer.send(Unpin(version))

    def _incomplete(self) -> list[Rollout]:
        """The training rollouts of which more is to be sampled."""
        experience = self._store.experience
        held = [
            experience.rollouts[id]
            for engine_handle in self._engine_pool
            for id in sorted(engine_handle.held["train"])
        ]
        return held + experience.to_lease("train", experience.statuses()[RolloutStatus.WAITING])

    # ---------------------------------------------------------------------------------------- back

    def expire(self, now: float) -> list[str]:
        """Take back what has been leased for too long; its engine is told, and what it still sends
        is late. Returns the engines that streamed nothing at all since they were given one of
        these: they are to be replaced."""
        expired: dict[str, list[Rollout]] = {}
        for id in self.out.over(now):
            rollout = self._store.experience.rollouts[id]
            expired.setdefault(rollout.holder, []).append(rollout)
        silent = []
        for owner, rollouts in expired.items():
            engine_handle = self._engine_pool.get(owner)
            assert engine_handle is not None, (
                "what an engine held was taken back when its seat was lost"
            )
            if self.streamed.get(owner, -math.inf) <= max(
                self.out.of(rollout.id).since for rollout in rollouts
            ):
                silent.append(owner)
            queued = self._queued(engine_handle)
            for rollout in rollouts:
                held = self.out.of(rollout.id)
                if rollout.tokens > held.tokens:
                    self.out.times.took(now - held.since)
                self._fail(rollout, "lease_expired", queued)
                if rollout.status is RolloutStatus.WAITING:
                    self._left[rollout.id] = owner
            engine_handle.peer.send(Interrupt([rollout.id for rollout in rollouts]))
        return silent

    def lose(self, engine_handle: EngineHandle) -> None:
        """An engine is gone: what it held continues elsewhere, from its last streamed token."""
        queued = self._queued(engine_handle)
        self.suspects.forget(engine_handle.name)
        for held in engine_handle.held.values():
            for id in sorted(held):
                self._fail(self._store.experience.rollouts[id], "actor_lost", queued)

    def _queued(self, engine_handle: EngineHandle) -> set[int]:
        """What an engine has not begun, as it has no slot for it: it begins leases in the order in
        which they were given."""
        held = (id for ids in engine_handle.held.values() for id in ids)
        return set(sorted(held, key=lambda id: self.out.of(id).number)[engine_handle.slots :])

    def park(self, split: Split) -> None:
        """Ask every engine to give back what it holds, once; it comes back as interrupted
        chunks."""
        parking = self._parking[split]
        if len(parking) == self._engine_pool.held[split]:
            return
        for engine_handle in self._engine_pool:
            if asked := sorted(engine_handle.held[split] - parking):
                parking.update(asked)
                engine_handle.peer.send(Interrupt(asked))

    @property
    def leased(self) -> int:
        """Rollouts that are with engines."""
        return self._engine_pool.held.total()

    def forget(self, rollout: Rollout) -> None:
        """A group was dropped while this rollout was with an engine: have it stopped there."""
        self._stop(rollout)
        self._release(rollout)

    def _stop(self, rollout: Rollout) -> None:
        if (engine_handle := self._engine_pool.get(rollout.holder)) is not None:
            engine_handle.peer.send(Interrupt([rollout.id]))

    def _fail(self, rollout: Rollout, reason: str, queued: Collection[int]) -> None:
        """A lease ended badly. One that brought a token is no failed attempt: the response is
        longer now, and so it comes to an end. Nor is one whose turn had not come."""
        if rollout.tokens > self.out.of(rollout.id).tokens or rollout.id in queued:
            self._take_back(rollout, reason)
            return
        if rollout.failures + 1 >= self._config.rollout.attempts:
            self._release(rollout)
            group = self._store.experience.groups[rollout.group]
            logger.warning(
                "rollout %d (%s item %d, %d tokens) is given up after %d attempts that brought "
                "no token, the last one: %s",
                *(
                    rollout.id,
                    group.split,
                    group.prompt_index,
                    rollout.tokens,
                    self._config.rollout.attempts,
                    reason,
                ),
            )
            self._store.record(Buried(rollout.id, reason))
        else:
            self._take_back(rollout, reason, failed=True)

    def _take_back(self, rollout: Rollout, reason: str, *, failed: bool = False) -> None:
        self._release(rollout)
        self._store.record(taken_back(rollout, reason, failed=failed))
        if rollout.status is RolloutStatus.WAITING:
            self._hopped_out(rollout)

    def _hopped_out(self, rollout: Rollout) -> bool:
        """Bury a waiting rollout that was taken back more often than it may go on; each lease but
        the last ended so. Whether it was."""
        over = (
            self._store.experience.groups[rollout.group].split == "train"
            and 0 < self._config.rollout.max_resumes < rollout.attempt
        )
        if over:
            self._give_up(rollout, "max_resumes")
        return over

    def _give_up(self, rollout: Rollout, reason: str) -> None:
        """Bury a rollout by name; who has it is told."""
        self._stop(rollout)
        if rollout.holder:
            self._release(rollout)
        self._left.pop(rollout.id, None)
        self._store.record(Buried(rollout.id, reason))

    def _release(self, rollout: Rollout) -> None:
        split = self._store.experience.groups[rollout.group].split
        self._engine_pool.release(rollout.holder, rollout.id, split)
        self.out.back(rollout.id)
        self._parking[split].discard(rollout.id)


def taken_back(rollout: Rollout, reason: str, *, failed: bool = False) -> Requeued | Sealed:
    """What becomes of a leased rollout that is with nobody any more: it waits for another lease,
    unless its budget is used up already."""
    if rollout.remaining:
        return Requeued(rollout.id, rollout.attempt, reason, failed)
    return Sealed(rollout.id, rollout.attempt, "length")
