"""The state of experience, and the questions to it: what is due? Invariant: to ask changes nothing,
and each question costs what it returns.

What is due next - what to lease, to judge, to train - is not an effect of an event but a question
to the state (`to_lease`, `to_judge`, `ready`, `judged`, `taken`). A coordinator that has just
folded its journal asks the same questions and gets the same answers as one that lived through the
events, so a restart and a run without a crash are one code path.

Only what is live is held. A group is live until it is dropped, or until the versions that its steps
made are published. After that the ledger, the history and the audit alone remember it, and for a
while the replay buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Self

from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.experience import events as e
from asyncrl.experience.audit import Audit
from asyncrl.experience.call import Call, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.ledger import Ledger
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.rollout import ENDED, Group, Rollout
from asyncrl.experience.snapshot import Snapshot
from asyncrl.experience.steps import Steps
from asyncrl.experience.work_index import WorkIndex
from asyncrl.messages import Split


class ExperienceState:
    """Every live rollout and group, the ledger, and what is due. Read it; only events change it
    (`transitions.py`), and a recovery (`recovery.py`).

    `rollouts` are the rollouts that have not ended, by number, and `groups` the live groups; among
    the members of a group may be ended ones. Of what is not sealed, `calls` has what engines are
    leased: rollouts of one turn, and agents' calls, which are numbered together. `version` is the
    one last published, None before the first; `step` the last one that took something, None before.
    `next_group` and `next_rollout` are the numbers of the next `Admitted`, the latter also of the
    next `Called`. `checkpoint` is the last one. `restarts` maps each stale group whose prompt is to
    be admitted again, before any new one, to its `prompt_index`.

    Of each split `prompts` counts the prompts admitted (a restarted one once: the cursor into the
    data), and `ordinals` the groups admitted. `sealings` and `judgements` count the rollouts ever
    sealed and judged. `begun` are the live groups of which a step has taken something.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.history = History()
        self.audit = Audit()
        self.replay_buffer = ReplayBuffer()
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
        """The live training groups of which no step has taken anything."""
        return self.groups_live - len(self.begun)

    @property
    def rollouts_untaken(self) -> int:
        """The live training rollouts that no step has taken."""
        return self.work_index.open["train"]

    @property
    def rollouts_live(self) -> int:
        """The training rollouts that are not over: generated, judged, ready, or taken for a step
        whose version is not published."""
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
        """The step and the rollouts that have to be taken next, because a crash undid their taking;
        None where nothing is prescribed."""
        due = self.steps.due
        return due and (due[0], [self.rollouts[rollout] for rollout in due[1]])

    @property
    def closed(self) -> int:
        """The last version that was ever published. What a crash undid of the steps before it is
        made again exactly as it was."""
        return self.steps.closed

    def find(self, number: int, *statuses: RolloutStatus) -> Rollout:
        """The live rollout of this number, which has one of these statuses. Raises ImpossibleEvent
        where there is none."""
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
        """The live call of this number, which has this status; of one turn, the rollout. Raises
        ImpossibleEvent where there is none."""
        if (call := self.calls.get(number)) is not None and call.status is status:
            return call
        if isinstance(call, AgentCall):
            raise ImpossibleEvent(f"call {number} is {call.status.value}, not {status.value}")
        found = self.find(number, status)
        raise ImpossibleEvent(f"rollout {found.id} is an agent's: only its calls are leased")

    def to_lease(self, split: Split, n: int) -> list[Call]:
        """At most `n` calls that wait for a lease, those of one turn being rollouts: resumable ones
        first, then new ones, each the oldest first. Where 0 and 2 are new and 1 was requeued: 1, 0,
        2."""
        return [self.calls[call] for call in self.work_index.to_lease(split, n)]

    def to_begin(self, split: Split, n: int) -> list[Rollout]:
        """At most `n` episodes that wait for an agent: those that were played before first, then
        new ones, each the oldest first."""
        return [self.rollouts[rollout] for rollout in self.work_index.to_begin(split, n)]

    def to_judge(self, after: int = 0) -> list[Rollout]:
        """Sealed rollouts without a verdict, the first sealed first; with `after`, only those whose
        `sealed` number is larger."""
        return [self.rollouts[rollout] for rollout in self.work_index.to_judge(after)]

    def ready(self, split: Split = "train") -> list[Group]:
        """Complete groups (each member judged or buried) of which no step has taken anything, the
        oldest first.

        Never waits for an older unfinished group. The oldest is the one with the smallest version
        among its tokens, since lag is counted from there; among equals the one admitted first.
        `len(group.rewards)` may be anything from 0 up: groups below `k_min` are for the coordinator
        to drop.
        """
        return [self.groups[group] for group in self.work_index.ready(split)]

    def judged(self) -> list[Rollout]:
        """Training rollouts with a verdict that no step has taken, whether their groups are
        complete or not, the oldest first."""
        return [self.rollouts[rollout] for rollout in self.work_index.judged()]

    def oldest(self, but: Container[int] = ()) -> Group | None:
        """The training group admitted first of those with a member that has not ended and that no
        step has taken, `but` for these rollouts."""
        for group in self.groups.values():
            if group.split == "train" and any(
                m.step is None and m.status not in ENDED and m.id not in but for m in group.members
            ):
                return group
        return None

    def taken(self) -> list[Rollout]:
        """Rollouts that steps have taken and the trainer has not accounted for, in the order of
        taking."""
        return [
            self.rollouts[rollout] for rollout in self.steps.taken() if rollout in self.rollouts
        ]

    def statuses(self) -> Counter[RolloutStatus]:
        """The number of live rollouts of each status; a status that none has is left out."""
        return +self.work_index.statuses

    # ------------------------------------------------------------------------------------ snapshot

    def snapshot(self) -> Snapshot:
        """The state, to be written down at once: it shares what will change."""
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
        )

    @classmethod
    def of(cls, written: Snapshot) -> Self:
        """The state that was written down. It takes what the snapshot holds."""
        self = cls()
        self.ledger, self.history, self.audit = written.ledger, written.history, written.audit
        self.replay_buffer, self.restarts = written.replay_buffer, written.restarts
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
    """True if a step has taken it, and need not take it again."""
    return rollout.step is not None and rollout.status is not RolloutStatus.JUDGED
