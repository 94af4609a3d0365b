"""The heart: what experience there is, as a fold of events. Invariants 1-4 and 8: the ledger
balances, a rollout ends once and is trained at most once, arrays stay parallel, and folding the
same events gives the same state.

`apply` returns nothing: what is due is read off the state (`views.py`). What a crash undid of
training is prescribed (`recovery.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from asyncrl.experience import events as e
from asyncrl.experience.audit import Facts
from asyncrl.experience.rollout import ENDED, Group, ImpossibleEvent, Rollout, RolloutStatus
from asyncrl.experience.snapshot import Snapshot
from asyncrl.experience.views import Views, is_taken
from asyncrl.ipc.messages import Scored

__all__ = ["Experience", "Group", "ImpossibleEvent", "Rollout", "RolloutStatus", "Snapshot", "fold"]


class Experience(Views):
    """The state, and what events make of it."""

    # ------------------------------------------------------------------------ undo, for a recovery

    def give_back(self) -> None:
        """What is taken and not trained is complete again, and prescribed for the step that had it,
        before all that is prescribed."""
        open_steps = dict.fromkeys(
            rollout.step for rollout in self.taken() if rollout.step is not None
        )
        for number in self._steps.undo(open_steps):
            rollout = self._rollouts[number]
            group = self._groups[rollout.group]
            self._work_index.move(group, rollout, RolloutStatus.JUDGED)
            if not any(is_taken(member) for member in group.members):
                self._begun.discard(group.id)
        self.step = min(open_steps, default=self.step)

    def prescribe(self, step: int, rollouts: Iterable[int]) -> None:
        """`step`, the last one that has anything prescribed or a later one, has to take these live
        rollouts; once is enough."""
        taking = [self._find(number, RolloutStatus.JUDGED) for number in rollouts]
        if self._steps.prescribe(step, [rollout.id for rollout in taking]):
            for rollout in taking:
                group = self._groups[rollout.group]
                if group.complete and not group.begun:
                    self._work_index.withdraw(group)
                self._work_index.promise(group, rollout, step)

    @property
    def closed(self) -> int:
        """The last version that was ever published. What a crash undid of the steps before it is
        made again exactly as it was."""
        return self._steps.closed

    def close(self, version: int) -> None:
        """`version` was published before the crash."""
        self._steps.closed = max(self._steps.closed, version)

    # --------------------------------------------------------------------------------------- apply

    def apply(self, event: e.AnyEvent) -> None:
        """Take the event in. Raises Refused, with the state as it was, for an event that cannot
        have happened."""
        _APPLY[type(event)](self, event)

    def _admitted(self, event: e.Admitted) -> None:
        if (event.group, event.first) != (self.next_group, self.next_rollout):
            raise ImpossibleEvent(
                f"group {event.group} from rollout {event.first} was admitted, "
                f"but next are group {self.next_group} and rollout {self.next_rollout}"
            )
        group = Group.of(
            event,
            self._ordinals[event.split],
            self.history.prior(event.prompt_index),
            self.version or 0,
        )
        if event.restarts is not None and self.restarts.get(event.restarts) != event.prompt_index:
            raise ImpossibleEvent(
                f"group {event.group} restarts item {event.prompt_index} of group "
                f"{event.restarts}, which does not wait for that"
            )
        self._groups[group.id] = group
        for member in group.members:
            self._rollouts[member.id] = member
            self._work_index.enter(group, member)
        if event.restarts is None:
            self._items[event.split] += 1
            if event.split == "train":
                self.history.admit(event.prompt_index, event.cursor)
        else:
            del self.restarts[event.restarts]
        self._ordinals[event.split] += 1
        self.groups_live += event.split == "train"
        self.next_group += 1
        self.next_rollout += event.size
        self.ledger.rollouts.enter(event.size)

    def _leased(self, event: e.Leased) -> None:
        rollout = self._find(event.rollout, RolloutStatus.WAITING)
        if event.attempt != rollout.attempt + 1:
            raise ImpossibleEvent(
                f"rollout {rollout.id} was leased {rollout.attempt} times, so its next attempt "
                f"is not {event.attempt}"
            )
        if not event.owner:
            raise ImpossibleEvent(f"rollout {rollout.id} was leased to nobody")
        self._work_index.move(self._groups[rollout.group], rollout, RolloutStatus.LEASED)
        rollout.attempt, rollout.owner = event.attempt, event.owner

    def _extended(self, event: e.Extended) -> None:
        rollout = self._find_leased(event.rollout, event.attempt)
        pinned = self._groups[rollout.group].version
        if pinned is not None and event.version != pinned:
            raise ImpossibleEvent(
                f"rollout {rollout.id} is pinned to version {pinned}, and got tokens of version "
                f"{event.version}"
            )
        self.ledger.tokens.enter(
            rollout.extend(event.version, event.start, event.ids, event.behaviour)
        )

    def _sealed(self, event: e.Sealed) -> None:
        rollout = self._find_leased(event.rollout, event.attempt)
        if event.finish not in ("stop", "length"):
            raise ImpossibleEvent(
                f"rollout {rollout.id} was sealed as {event.finish!r}: a response is complete by "
                "'stop' or by 'length'"
            )
        self._sealings += 1
        rollout.owner, rollout.finish, rollout.sealed = "", event.finish, self._sealings
        group = self._groups[rollout.group]
        self._work_index.move(group, rollout, RolloutStatus.SEALED)
        if group.split == "train":
            self.audit.generated(_facts(group, rollout))

    def _recycled(self, event: e.Requeued) -> None:
        rollout = self._find_leased(event.rollout, event.attempt)
        if not rollout.remaining:
            raise ImpossibleEvent(
                f"rollout {rollout.id} has its {rollout.max_new_tokens} tokens: it is to be "
                "sealed as 'length', not recycled"
            )
        self._work_index.move(self._groups[rollout.group], rollout, RolloutStatus.WAITING)
        rollout.owner = ""
        rollout.failures += event.failed

    def _buried(self, event: e.Buried) -> None:
        rollout = self._find(event.rollout, RolloutStatus.WAITING, RolloutStatus.LEASED)
        _named(event.reason)
        self._discard(rollout, event.reason, RolloutStatus.BURIED)
        self._judged_all(self._groups[rollout.group])

    def _late(self, event: e.LateTokens) -> None:
        if event.tokens < 1:
            raise ImpossibleEvent(f"{event.tokens} late tokens are none")
        self.ledger.tokens.enter(event.tokens)
        self.ledger.tokens.discard(event.tokens, "late")

    def _judged(self, event: e.Judged) -> None:
        rollout = self._find(event.rollout, RolloutStatus.SEALED)
        group = self._groups[rollout.group]
        if isinstance(event.verdict, Scored):
            numbers = [event.verdict.reward, *event.verdict.parts]
            if not all(map(math.isfinite, numbers)):
                raise ImpossibleEvent(
                    f"rollout {rollout.id} was scored {numbers}: what is not a finite reward is "
                    "no verdict"
                )
            if not group.comparable(event.verdict):
                raise ImpossibleEvent(
                    f"rollout {rollout.id} was scored by {len(event.verdict.parts)} rewards, and "
                    "others of its group were not"
                )
        self._judgements += 1
        rollout.judged, rollout.verdict = self._judgements, event.verdict
        self._work_index.move(group, rollout, RolloutStatus.JUDGED)
        self._judged_all(group)

    def _taken(self, event: e.Taken) -> None:
        if event.step < max(self.step or 0, self.version or 0):
            raise ImpossibleEvent(
                f"step {event.step} is over: the last one is {self.step}, and version "
                f"{self.version} is published"
            )
        rollouts = [self._find(number, RolloutStatus.JUDGED) for number in event.rollouts]
        if not rollouts or len(set(event.rollouts)) < len(rollouts):
            raise ImpossibleEvent(
                f"step {event.step} takes rollouts {event.rollouts}: one at least, and each once"
            )
        for rollout in rollouts:
            if self._groups[rollout.group].split != "train" or not isinstance(
                rollout.verdict, Scored
            ):
                raise ImpossibleEvent(
                    f"rollout {rollout.id} cannot be trained: it is of an evaluation, or without "
                    "a reward"
                )
            if any(span.version > event.step for span in rollout.spans):
                raise ImpossibleEvent(
                    f"rollout {rollout.id} has tokens of a version that only step {event.step} "
                    "makes, or a later one"
                )
        self._steps.take(event.step, event.rollouts)
        for rollout in rollouts:
            group = self._groups[rollout.group]
            if group.complete and not group.begun:
                self._work_index.withdraw(group)
            self._work_index.move(group, rollout, RolloutStatus.TAKEN)
            rollout.step = event.step
            self._begun.add(group.id)
        for group in {rollout.group: self._groups[rollout.group] for rollout in rollouts}.values():
            for member in group.unscored if group.complete else ():
                self._discard(member, "no_verdict")
        self.step = event.step

    def _trained(self, event: e.Trained) -> None:
        rollout = self._find(event.rollout, RolloutStatus.TAKEN)
        if event.trained < 0 or min(event.discarded.values(), default=0) < 0:
            raise ImpossibleEvent(
                f"rollout {rollout.id} has a negative count of tokens: {event.trained} trained, "
                f"{event.discarded} discarded"
            )
        if event.trained + sum(event.discarded.values()) != rollout.tokens:
            raise ImpossibleEvent(
                f"rollout {rollout.id} has {rollout.tokens} tokens, not {event.trained} trained "
                f"and {event.discarded} discarded"
            )
        for reason in event.discarded:
            _named(reason)
        group = self._groups[rollout.group]
        if event.trained:
            self.audit.trained(_facts(group, rollout), event.trained / rollout.tokens)
        rollout.release()
        self.ledger.end(event.trained, event.discarded)
        self._work_index.move(
            group, rollout, RolloutStatus.TRAINED if event.trained else RolloutStatus.DISCARDED
        )
        del self._rollouts[rollout.id]

    def _shelved(self, event: e.StoredForReplay) -> None:
        if event.group not in self._begun:
            raise ImpossibleEvent(
                f"group {event.group} was not taken: there is nothing to train again"
            )
        group = self._groups[event.group]
        if any(member.step is not None and member.step >= event.until for member in group.members):
            raise ImpossibleEvent(
                f"group {group.id} is to be trained again until step {event.until}, and is "
                "trained then for the first time"
            )
        self.replay_buffer.keep(group, event.until)

    def _replayed(self, event: e.Replayed) -> None:
        if not event.groups:
            raise ImpossibleEvent(f"step {event.step} trains no group again")
        self.replay_buffer.replay(event.step, event.groups)

    def _discarded(self, event: e.Discarded) -> None:
        rollout = self._find(event.rollout, RolloutStatus.JUDGED)
        _named(event.reason)
        if rollout.step is not None:
            raise ImpossibleEvent(
                f"rollout {rollout.id} has to be taken again: it is in the weights of versions "
                "that were published"
            )
        group = self._groups[rollout.group]
        if group.split != "train":
            raise ImpossibleEvent(
                f"rollout {rollout.id} is for {group.split}: only its whole group is dropped"
            )
        if group.complete and not group.begun:
            self._work_index.withdraw(group)
        self._discard(rollout, event.reason)
        self._finished(group)

    def _dropped(self, event: e.Dropped) -> None:
        group = self._groups.get(event.group)
        if group is None:
            raise ImpossibleEvent(
                f"group {event.group} is not live: it was never admitted, or is over"
            )
        if group.id in self._begun:
            raise ImpossibleEvent(
                f"group {group.id} was taken, or a part of it: only the trainer can account for "
                "that"
            )
        if group.begun:
            raise ImpossibleEvent(
                f"group {group.id} has to be taken again: it is in the weights of versions that "
                "were published"
            )
        _named(event.reason)
        if event.again and group.split != "train":
            raise ImpossibleEvent(
                f"group {group.id} is for {group.split}: only a training prompt is admitted again"
            )
        if group.complete:
            self._work_index.withdraw(group)
        for member in group.members:
            if member.status not in ENDED:
                self._discard(member, event.reason)
        if event.again:
            self.restarts[group.id] = group.prompt_index
        self._forget(group)

    def _published(self, event: e.Published) -> None:
        if event.version < (self.version or 0):
            raise ImpossibleEvent(
                f"version {event.version} cannot be published after version {self.version}"
            )
        if (due := self._steps.due) is not None and due[0] < event.version:
            raise ImpossibleEvent(
                f"version {event.version} cannot be published before step {due[0]} has taken "
                "again what it had"
            )
        for number in self._steps.made(event.version):
            if number in self._rollouts:
                raise ImpossibleEvent(
                    f"version {event.version} is published, but rollout {number} is still being "
                    "trained for it"
                )
        self._steps.publish(event.version)
        self.version = event.version
        self.replay_buffer.publish(event.version)
        for number in sorted(self._begun):
            self._settle(self._groups[number])

    def _checkpointed(self, event: e.Checkpointed) -> None:
        self.checkpoint = event

    # --------------------------------------------------------------------------------------- parts

    def _find(self, number: int, *wanted: RolloutStatus) -> Rollout:
        rollout = self._rollouts.get(number)
        if rollout is None:
            raise ImpossibleEvent(
                f"rollout {number} is not live: it was never admitted, or has ended"
            )
        if rollout.status not in wanted:
            raise ImpossibleEvent(
                f"rollout {number} is {rollout.status.value}, not "
                f"{' or '.join(status.value for status in wanted)}"
            )
        return rollout

    def _find_leased(self, number: int, attempt: int) -> Rollout:
        rollout = self._rollouts.get(number)
        if rollout is None or rollout.status is not RolloutStatus.LEASED:
            return self._find(number, RolloutStatus.LEASED)
        if attempt != rollout.attempt:
            raise ImpossibleEvent(
                f"rollout {number} is leased for the {rollout.attempt}th time, and this is of "
                f"attempt {attempt}"
            )
        return rollout

    def _discard(
        self, rollout: Rollout, reason: str, status: RolloutStatus = RolloutStatus.DISCARDED
    ) -> None:
        group = self._groups[rollout.group]
        if group.split == "train" and rollout.tokens and not rollout.sealed:
            self.audit.generated(_facts(group, rollout))
        self._work_index.move(group, rollout, status)
        self.ledger.end(0, {reason: rollout.release()})
        rollout.owner = ""
        del self._rollouts[rollout.id]

    def _judged_all(self, group: Group) -> None:
        """A member was judged or buried: nothing more may be waited for."""
        if group.split == "train" and group.complete:
            self.history.record(group.prompt_index, group.rewards, len(group.members))
        self._finished(group)

    def _finished(self, group: Group) -> None:
        """A member was judged, buried or discarded: the group may be over now, or complete."""
        self._settle(group)
        if group.id in self._groups:
            self._work_index.offer(group)

    def _settle(self, group: Group) -> None:
        """A group that is over, and in no step whose version is to be published, is not live any
        more. One that was buried whole is dropped by name."""
        published = self.version or 0
        over = group.ended and any(
            member.status is not RolloutStatus.BURIED for member in group.members
        )
        if over and all(member.step is None or member.step < published for member in group.members):
            self._forget(group)

    def _forget(self, group: Group) -> None:
        self._begun.discard(group.id)
        del self._groups[group.id]
        self.groups_live -= group.split == "train"


def _facts(group: Group, rollout: Rollout) -> Facts:
    first, last = (
        (rollout.spans[0].version, rollout.spans[-1].version)
        if rollout.spans
        else (group.admitted_version, group.admitted_version)
    )
    return Facts(
        length=rollout.tokens,
        age=max(0, last - group.admitted_version),
        attempts=rollout.attempt,
        version=first,
    )


def _named(reason: str) -> None:
    if not reason:
        raise ImpossibleEvent("tokens are discarded for a named reason, and this one has no name")


_APPLY: dict[type, Callable[[Experience, Any], None]] = {
    e.Admitted: Experience._admitted,
    e.Leased: Experience._leased,
    e.Extended: Experience._extended,
    e.Sealed: Experience._sealed,
    e.Requeued: Experience._recycled,
    e.Buried: Experience._buried,
    e.LateTokens: Experience._late,
    e.Judged: Experience._judged,
    e.Taken: Experience._taken,
    e.Trained: Experience._trained,
    e.StoredForReplay: Experience._shelved,
    e.Replayed: Experience._replayed,
    e.Discarded: Experience._discarded,
    e.Dropped: Experience._dropped,
    e.Published: Experience._published,
    e.Checkpointed: Experience._checkpointed,
}


def fold(events: Iterable[e.AnyEvent]) -> Experience:
    """The state after these events. Raises Refused at the first that cannot have happened."""
    experience = Experience()
    for event in events:
        experience.apply(event)
    return experience
