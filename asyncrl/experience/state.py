"""The state of experience, with queries of what is due. Invariant: a query changes nothing, and
costs no more than its result.

The next work - what to lease, to judge, to train - is not an effect of an event but a query of the
state (`to_lease`, `to_judge`, `ready`, `judged`, `taken`). A coordinator that has just folded its
journal gets the same answers as one that lived through the events, so a restart and a run without a
crash are one code path.

It holds only live work. A group is live until it is dropped, or until the versions that its steps
made are published. After that it remains only in the ledger, the history and the audit, and for a
while in the replay buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Self

from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.experience import events as e
from asyncrl.experience.answer_pool import AnswerPool
from asyncrl.experience.audit import Audit
from asyncrl.experience.call import Call, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.group import Group
from asyncrl.experience.ledger import Ledger
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.rollout import ENDED, Rollout
from asyncrl.experience.snapshot import Snapshot
from asyncrl.experience.steps import Steps
from asyncrl.experience.work_index import WorkIndex
from asyncrl.messages import Split


class ExperienceState:
    """Every live rollout and group, the ledger, and what is due. It is read-only: only events
    (`transitions.py`) and a recovery (`recovery.py`) change it.

    `rollouts` are the rollouts that have not ended, by number, and `groups` the live groups; the
    members of a group may include ended ones. `calls` has the unsealed work that is leased to
    engines: rollouts of one turn, and agents' calls, numbered together. `version` is the one last
    published, None before the first; `step` the last one that took rollouts, None before.
    `next_group` and `next_rollout` are the numbers of the next `Admitted`, the latter also of the
    next `Called`. `checkpoint` is the last one. `restarts` maps each stale group whose prompt must
    be admitted again, before any new one, to its `prompt_index`. Of each split `prompts` counts the
    prompts admitted (a restarted one once: the cursor into the data), and `ordinals` the groups
    admitted. `sealings` and `judgements` count the rollouts ever sealed and judged. `begun` are the
    live groups from which a step has taken a member.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.history = History()
        self.audit = Audit()
        self.replay_buffer = ReplayBuffer()
        self.pool = AnswerPool()
        self.version: int | None = None
        self.step: int | None = None
        self.checkpoint: e.Checkpointed | None = None
        self.next_group = 0
        self.next_rollout = 0
        self.groups_live = 0
        self.restarts: dict[int, int] = {}
        self.rollouts: dict[int, Rollout] = {}
        self.calls: dict[int, Call] = {}
        self.groups: dict[int, Group] = {}
        self.prompts: dict[Split, int] = {"train": 0, "evaluation": 0}
        self.ordinals: dict[Split, int] = {"train": 0, "evaluation": 0}
        self.sealings = 0
        self.judgements = 0
        self.begun: set[int] = set()
        self.work_index = WorkIndex()
        self.steps = Steps()

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, ExperienceState) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    # ---------------------------------------------------------------------------------- questions

    @property
    def groups_untaken(self) -> int:
        """The live training groups from which no step has taken a member."""
        return self.groups_live - len(self.begun)

    @property
    def rollouts_untaken(self) -> int:
        """The live training rollouts that no step has taken."""
        return self.work_index.open["train"]

    @property
    def rollouts_live(self) -> int:
        """The training rollouts that have not ended: being generated, judged, ready, or taken for a
        step whose version is not published."""
        return self.work_index.open["train"] + self.steps.size

    @property
    def queue_items(self) -> int:
        """Training rollouts whose response is complete and that no step has taken: the experience
        queue."""
        return self.work_index.queue_items

    @property
    def queue_bytes(self) -> int:
        """The bytes of their token arrays."""
        return self.work_index.queue_bytes

    @property
    def prescribed(self) -> tuple[int, list[Rollout]] | None:
        """The step and the rollouts that must be taken next, because a crash undid their taking;
        None where nothing is prescribed."""
        due = self.steps.due
        return due and (due[0], [self.rollouts[rollout] for rollout in due[1]])

    @property
    def closed(self) -> int:
        """The last version that was ever published. Undone steps before it are redone exactly."""
        return self.steps.closed

    def find(self, number: int, *statuses: RolloutStatus) -> Rollout:
        """The live rollout of this number, with one of these statuses. Raises ImpossibleEvent where
        there is none."""
        rollout = self.rollouts.get(number)
        if rollout is None:
            raise ImpossibleEvent(
                f"rollout {number} is not live: it was never admitted, or has ended"
            )
        if rollout.status not in statuses:
            raise ImpossibleEvent(
                f"rollout {number} is {rollout.status.value}, not "
                f"{' or '.join(status.value for status in statuses)}"
            )
        return rollout

    def find_call(self, number: int, status: RolloutStatus) -> Call:
        """The live call of this number, with this status; for one turn, the rollout. Raises
        ImpossibleEvent where there is none."""
        if (call := self.calls.get(number)) is not None and call.status is status:
            return call
        if isinstance(call, AgentCall):
            raise ImpossibleEvent(f"call {number} is {call.status.value}, not {status.value}")
        rollout = self.find(number, status)
        raise ImpossibleEvent(f"rollout {rollout.id} is an agent's: only its calls are leased")

    def to_lease(self, split: Split, n: int) -> list[Call]:
        """At most `n` calls that wait for a lease, those of one turn being rollouts: resumable ones
        first, then new ones, each those of the oldest group first. Where 0 and 2 are new and 1 was
        requeued: 1, 0, 2."""
        return [self.calls[call] for call in self.work_index.to_lease(split, n)]

    def to_begin(self, split: Split, n: int) -> list[Rollout]:
        """At most `n` episodes that wait for an agent: those with an earlier attempt first, then
        new ones, each the oldest first."""
        return [self.rollouts[rollout] for rollout in self.work_index.to_begin(split, n)]

    def to_judge(self, after: int = 0) -> list[Rollout]:
        """Sealed rollouts without a verdict, the first sealed first; with `after`, only those whose
        `sealed` number is larger."""
        return [self.rollouts[rollout] for rollout in self.work_index.to_judge(after)]

    def undecided(self) -> list[Group]:
        """Groups whose members are all judged or buried and that a rule may let grow, in the order
        of their admission."""
        return [self.groups[group] for group in self.work_index.undecided()]

    def unsettled(self) -> list[Rollout]:
        """Rollouts whose response is complete and that may still fork, by number."""
        return [self.rollouts[rollout] for rollout in self.work_index.unsettled()]

    def importing(self) -> list[Group]:
        """Groups whose members are all judged or buried and that foreign answers may join, in the
        order of their admission."""
        return [self.groups[group] for group in self.work_index.importing()]

    def ready(self, split: Split = "train") -> list[Group]:
        """Complete groups (each member judged or buried, and no more to come) from which no step
        has taken a member, the oldest first.

        Never waits for an older unfinished group. The oldest is the one with the smallest version
        among its tokens, since lag is counted from there; among equals the one admitted first.
        `len(group.rewards)` may be any number from 0: the coordinator drops groups below `k_min`.
        """
        return [self.groups[group] for group in self.work_index.ready(split)]

    def judged(self) -> list[Rollout]:
        """Training rollouts with a verdict that no step has taken, from complete and incomplete
        groups, the oldest first."""
        return [self.rollouts[rollout] for rollout in self.work_index.judged()]

    def oldest(self, but: Container[int] = ()) -> Group | None:
        """The first admitted training group with a member that has not ended and that no step has
        taken, ignoring the rollouts in `but`."""
        for group in self.groups.values():
            if group.split == "train" and any(
                m.step is None and m.status not in ENDED and m.id not in but for m in group.members
            ):
                return group
        return None

    def taken(self) -> list[Rollout]:
        """Rollouts that steps have taken but the trainer has not reported yet, in the order of
        taking."""
        return [
            self.rollouts[rollout] for rollout in self.steps.taken() if rollout in self.rollouts
        ]

    def statuses(self) -> Counter[RolloutStatus]:
        """The number of live rollouts of each status, without zeros."""
        return +self.work_index.statuses

    # ------------------------------------------------------------------------------------ snapshot

    def snapshot(self) -> Snapshot:
        """The state for storing, which must be written at once: it shares mutable parts."""
        return Snapshot(
            ledger=self.ledger,
            version=self.version,
            step=self.step,
            checkpoint=self.checkpoint,
            next_group=self.next_group,
            next_rollout=self.next_rollout,
            prompts=self.prompts,
            sealings=self.sealings,
            judgements=self.judgements,
            ordinals=self.ordinals,
            history=self.history,
            audit=self.audit,
            replay_buffer=self.replay_buffer,
            groups=list(self.groups.values()),
            training=self.steps.training,
            prescribed=self.steps.prescribed,
            closed=self.steps.closed,
            restarts=self.restarts,
            pool=self.pool,
        )

    @classmethod
    def of(cls, written: Snapshot) -> Self:
        """The stored state. It takes over the parts of the snapshot."""
        self = cls()
        self.ledger, self.history, self.audit = written.ledger, written.history, written.audit
        self.replay_buffer, self.restarts = written.replay_buffer, written.restarts
        self.pool = written.pool
        self.version, self.step, self.checkpoint = written.version, written.step, written.checkpoint
        self.next_group, self.next_rollout = written.next_group, written.next_rollout
        self.prompts, self.ordinals = written.prompts, written.ordinals
        self.sealings, self.judgements = written.sealings, written.judgements
        self.steps = Steps(written.training, written.prescribed, written.closed)
        self.groups = {group.id: group for group in written.groups}
        self.rollouts = {
            m.id: m for group in written.groups for m in group.members if m.status not in ENDED
        }
        for rollout in self.rollouts.values():
            if rollout.episode is not None:
                live = [call for call in rollout.episode.calls if call.status not in ENDED]
                self.calls.update({call.id: call for call in live})
            elif not rollout.sealed:
                self.calls[rollout.id] = rollout
        self.groups_live = sum(group.split == "train" for group in written.groups)
        for group in written.groups:
            self.work_index.offer(group)
            if any(in_training(member) for member in group.members):
                self.begun.add(group.id)
        for rollout in self.rollouts.values():
            self.work_index.enter(self.groups[rollout.group], rollout)
        for call in self.calls.values():
            if isinstance(call, AgentCall):
                self.work_index.enter(self.groups[call.group], call)
        return self


def in_training(rollout: Rollout) -> bool:
    """True if a step has taken it, and it is not prescribed again."""
    return rollout.step is not None and rollout.status is not RolloutStatus.JUDGED
