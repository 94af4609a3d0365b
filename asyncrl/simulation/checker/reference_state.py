"""Reference state of a run, kept from its events alone. Invariant: it shares no code with
`asyncrl.experience`, and is written to be read, not to be fast.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

from asyncrl.experience import events as e
from asyncrl.messages import NoVerdict, Scored
from asyncrl.simulation.checker.reference_facts import (
    Facts,
    Filling,
    ReferenceFacts,
    ReferenceVisits,
)
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceCall,
    ReferenceGroup,
    ReferenceRollout,
)

NAN = struct.pack("<f", math.nan)
"""A log-probability that is not known."""


class ReferenceState(ReferenceFacts):
    """The facts as events change them."""

    def untake(self, id: int) -> None:
        """Undo the taking of a rollout."""
        if (seen := self.rollouts.get(id)) is not None and seen.step is not None:
            self.steps.pop(seen.step, None)
            del seen.group.steps[id]
            seen.step = None

    def apply(self, event: e.AnyEvent) -> None:
        """Take the event in."""
        touched = self._touched(event)
        groups = {
            seen.group.event.group: seen.group
            for id in touched
            if (seen := self.rollouts.get(id)) is not None
        }
        match event:
            case e.Admitted():
                self._admit(event)
            case e.Forked():
                touched.extend(self._fork(event))
            case e.Grown():
                touched.extend(self._grow(event))
            case e.Imported():
                touched.extend(self._import(event))
            case e.Leased() | e.Extended() | e.Requeued():
                self._lease(event)
            case e.Sealed():
                self._seal(event)
            case e.Buried() if event.rollout in self.agents.calls:
                self.agents.bury(self.agents.calls[event.rollout], event.reason)
            case e.Buried():
                self.buried[self.rollouts[event.rollout].group.event.split] += 1
                self._end(event.rollout, event.reason)
                self.ended[event.rollout] = "buried"
                self._visited(groups.values())
            case e.Spared():
                seen = self.rollouts[event.rollout]
                seen.looked = event.tokens
                seen.chance = seen.group.chances[seen.id] = seen.chance * event.chance
            case e.Pruned():
                self._prune(event)
                self._visited(groups.values())
            case e.LateTokens():
                self.tokens += event.tokens
                self.tokens_discarded["late"] += event.tokens
            case e.Judged():
                self._judge(event)
                self._visited(groups.values())
            case e.Taken():
                self._take(event)
            case e.Trained():
                self._train(event)
            case e.StoredForReplay() | e.Replayed():
                self._replay(event)
            case e.Discarded():
                self._end(event.rollout, event.reason)
            case e.Dropped():
                touched.extend(self._drop(event))
            case e.Published():
                self._publish(event)
                groups = dict(self.groups)
            case e.Checkpointed() | e.RoutingKnown():
                pass
            case _:
                episode = self.rollouts[touched[0]].episode
                assert episode is not None
                self.agents.apply(event, episode)
        self._forget(groups.values())
        self.touched.update(touched)

    def _touched(self, event: e.AnyEvent) -> list[int]:
        """The rollouts that an event names, or whose calls it names."""
        number: int | None = getattr(event, "rollout", None)
        if isinstance(event, e.Answered):
            number = event.call
        if number is None:
            return [*getattr(event, "rollouts", ()), *getattr(event, "left_out", ())]
        call = self.agents.calls.get(number)
        return [number if call is None else call.episode.id]

    def _call(self, id: int) -> ReferenceCall:
        """The live call of this number."""
        call = self.call(id)
        assert call is not None
        return call

    def _admit(self, event: e.Admitted) -> None:
        seen = self.visits.get(event.prompt_index, ReferenceVisits())
        known = seen.rewards and event.split == "train"
        prior = (seen.total / seen.rewards, seen.rewards) if known else (0.0, 0.0)
        posterior = 1.0 + seen.solved, 1.0 + seen.rewards - seen.solved
        again = event.restarts
        place = self.placed[event.split] if again is None else -1 - again
        self.placed[event.split] += again is None
        group = self.groups[event.group] = ReferenceGroup(
            event, self.ordinals[event.split], place, prior, posterior, self.served
        )
        if event.split == "train":
            group.longest = self.pruning.longest.get(event.prompt_index, 0)
        self.ordinals[event.split] += 1
        self._join(group, group.members)
        if event.restarts is not None:
            self.restarts.pop(event.restarts, None)
        elif event.split == "train":
            self.cursor = event.cursor

    def _grow(self, event: e.Grown) -> list[int]:
        group, more = self.groups[event.group], list[int]()
        if event.size == len(group.members):
            group.most = 0
            self._visited([group])
        while len(group.members) < event.size:
            more.append(event.first + len(more))
            group.members.append(more[-1])
        self._join(group, more)
        return more

    def _fork(self, event: e.Forked) -> list[int]:
        parent = self.rollouts[event.rollout]
        group, before = parent.group, len(parent.shared) // 4
        if not event.at:
            parent.closed = True
            self._visited([group])
            return []
        id, given = event.first, group.leaves[parent.id] // 2
        group.leaves[parent.id] -= given
        group.leaves[id], group.begins[id] = given, event.at
        group.slots[id] = group.slots[parent.id] + group.leaves[parent.id]
        group.lines[id] = [*group.lines[parent.id], id]
        group.members.append(id)
        seen = self.rollouts[id] = ReferenceRollout(id, group, group.members.index(id))
        seen.shared = parent.shared + bytes(parent.ids[: 4 * (event.at - before)])
        self.admitted += 1
        return [id]

    def _import(self, event: e.Imported) -> list[int]:
        group, group_imports = self.groups[event.group], list[int]()
        group.imports = 0
        for answer in event.answers:
            id = event.first + len(group_imports)
            group.members.append(id)
            group.foreign.add(id)
            group_imports.append(id)
            self._stands_alone(group, id)
            seen = self.rollouts[id] = ReferenceRollout(id, group, group.members.index(id))
            tokens = len(answer.ids) // 4
            seen.own, seen.sealed, seen.cut = False, True, answer.finish == "length"
            seen.ids += answer.ids
            seen.behaviour += answer.behaviour or NAN * tokens
            seen.versions += [answer.version] * tokens
            self.foreign["imported"] += tokens
        if not event.answers:
            self._visited([group])
        return group_imports

    def _stands_alone(self, group: ReferenceGroup, id: int) -> None:
        """Note that a member is no fork."""
        group.lines.setdefault(id, [id])
        group.begins.setdefault(id, 0)
        group.leaves.setdefault(id, 1)
        group.slots.setdefault(id, group.members.index(id))

    def _join(self, group: ReferenceGroup, ids: Sequence[int]) -> None:
        for id in ids:
            self._stands_alone(group, id)
            self.rollouts[id] = ReferenceRollout(id, group, group.members.index(id))
        self.admitted += len(ids)
        if group.event.split == "train":
            groups, rollouts = self.started
            self.started = groups + (ids is group.members), rollouts + len(ids)

    def _lease(self, event: e.Leased | e.Extended | e.Requeued) -> None:
        call = self._call(event.rollout)
        match event:
            case e.Leased():
                self.leases += 1
                call.holder, call.attempt = event.holder, event.attempt
                call.lease, call.before = self.leases, len(call.versions)
            case e.Extended():
                self.tokens += call.extend(event)
            case e.Requeued():
                call.holder = ""
                call.failures += event.failed
                call.hops += 1

    def _seal(self, event: e.Sealed) -> None:
        seen = self.rollouts[event.rollout]
        if seen.episode is not None:
            self.agents.seal(seen)
        seen.holder, seen.sealed, seen.cut = "", True, event.finish == "length"
        self._generated(seen)

    def _judge(self, event: e.Judged) -> None:
        seen = self.rollouts[event.rollout]
        seen.verdict = event.verdict
        if isinstance(event.verdict, Scored):
            reward, score = event.verdict.reward, event.verdict.score
            seen.group.rewards[seen.id] = reward
            right = (reward if score is None else score) == 1.0
            if right:
                seen.group.solved.add(seen.id)
            if seen.group.event.split == "train" and seen.own:
                self.pruning.judge(seen, right)

    def _take(self, event: e.Taken) -> None:
        filling = self.steps.setdefault(event.step, Filling())
        for id in event.rollouts:
            seen = self.rollouts[id]
            seen.step = seen.group.steps[id] = event.step
            filling.groups.add(seen.group.event.group)
            filling.rollouts += 1
            filling.tokens += len(seen.versions) * seen.own
        for group in {id: self.rollouts[id].group for id in event.rollouts}.values():
            if self.complete(group):
                for seen in self.members(group):
                    if isinstance(seen.verdict, NoVerdict):
                        self._end(seen.id, "no_verdict")
        for id in event.left_out:
            self.rollouts[id].group.left.add(id)
            self._end(id, "not_chosen")

    def _train(self, event: e.Trained) -> None:
        seen = self.rollouts.pop(event.rollout)
        self.ended[event.rollout] = "trained"
        if not seen.own:
            self.foreign["trained"] += event.trained
            self.foreign.update(event.discarded)
            self.foreign_ended["trained" if event.trained else "discarded"] += 1
            return
        self.tokens_trained += event.trained
        self.tokens_discarded.update(event.discarded)
        if event.trained:
            self.trained += 1
            share = event.trained / len(seen.versions)
            self.learned[_facts(seen)] = self.learned.get(_facts(seen), 0.0) + share
        else:
            most = max(event.discarded.values(), default=0)
            named = [why for why, count in event.discarded.items() if count == most]
            self.discarded[min(named, default="empty")] += 1

    def _replay(self, event: e.StoredForReplay | e.Replayed) -> None:
        if isinstance(event, e.StoredForReplay):
            members = [self.rollouts[id] for id in sorted(self.groups[event.group].steps)]
            self.kept[event.group] = event.until, members
            return
        for number in event.groups:
            again = self.replayed.setdefault(event.step, {})
            again.update((seen.id, seen) for seen in self.kept.pop(number)[1])

    def _drop(self, event: e.Dropped) -> list[int]:
        group = self.groups.pop(event.group)
        members = [seen.id for seen in self.members(group)]
        for id in members:
            self._end(id, event.reason)
        if event.restart:
            self.restarts[event.group] = group.event.prompt_index
        return members

    def _publish(self, event: e.Published) -> None:
        self.published = self.served = event.version
        self.newest = max(self.newest, event.version)
        self.kept = {number: kept for number, kept in self.kept.items() if kept[0] >= event.version}

    def _prune(self, event: e.Pruned) -> None:
        seen = self.rollouts[event.rollout]
        self.pruning.counts[event.reason] += 1
        if not event.kept:
            seen.group.pruned += 1
            self._end(seen.id, event.reason)
            self.ended[seen.id] = "buried"
            return
        self.tokens_discarded[event.reason] += seen.shorten(event.kept)
        seen.holder, seen.sealed, seen.cut = "", True, True
        self._generated(seen)

    def _visited(self, groups: Iterable[ReferenceGroup]) -> None:
        """A member was judged or buried: a group of which no more is to come was a visit of its
        prompt."""
        for group in groups:
            if group.event.split == "train" and self.complete(group):
                before = self.visits.get(group.event.prompt_index, ReferenceVisits())
                roots = {*group.roots} - group.foreign
                rewards = [group.rewards[id] for id in sorted(roots & {*group.rewards})]
                solved = group.solved - group.foreign
                if group.event.source == "pool":
                    right = (self.rollouts[id] for id in sorted(solved))
                    if (first := next((seen for seen in right if seen.versions), None)) is not None:
                        self.pool[group.event.prompt_index] = first
                solved &= roots
                easy = len(solved) == len(roots)
                self.signals.append(len({*group.rewards.values()}) > 1)
                self.visits[group.event.prompt_index] = ReferenceVisits(
                    before.total / 2 + math.fsum(rewards),
                    before.rewards / 2 + len(rewards),
                    before.solved / 2 + len(solved),
                    easy,
                )

    def _forget(self, groups: Iterable[ReferenceGroup]) -> None:
        """A group is over when all its members have ended, not all in a grave, and what was taken
        of it is published."""
        for group in groups:
            ended = not any(id in self.rollouts for id in group.members)
            graves = all(self.ended.get(id) == "buried" for id in group.members)
            if (
                ended
                and not graves
                and all(step < (self.published or 0) for step in group.steps.values())
            ):
                self.groups.pop(group.event.group, None)

    def _generated(self, seen: ReferenceRollout) -> None:
        """The generation of a rollout is over."""
        if seen.group.event.split == "train":
            self.generated[_facts(seen)] += 1

    def _end(self, id: int, reason: str) -> None:
        seen = self.rollouts.pop(id)
        if seen.tokens and not seen.sealed:
            self._generated(seen)
        self.ended[id] = f"discarded as {reason}"
        if not seen.own:
            self.foreign[reason] += seen.tokens
            self.foreign_ended["discarded"] += 1
            return
        self.discarded[reason] += 1
        if seen.tokens:
            self.tokens_discarded[reason] += seen.tokens
        if seen.episode is not None:
            self.agents.forget(seen.episode)


def _facts(seen: ReferenceRollout) -> Facts:
    began, attempts, versions = seen.group.admitted_version or 0, seen.attempt, seen.versions
    if seen.episode is not None and not seen.sealed:
        attempts = seen.episode.attempt
        versions = [version for call in seen.episode.sampled for version in call.versions]
    first, last = (versions[0], versions[-1]) if versions else (began, began)
    return len(versions), max(0, last - began), attempts, first
