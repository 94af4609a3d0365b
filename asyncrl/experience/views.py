"""What is held of experience, and what is due. Invariant: to read changes nothing, and each view
costs what it returns.

What is due next - what to lease, to judge, to train - is not an effect of an event but a *view of
the state* (`to_lease`, `to_judge`, `ready`, `judged`, `taken`): a coordinator that has just folded
its journal asks the same questions and gets the same answers as one that lived through the events,
so restart and no crash are one code path.

Only what is live is held. A group is live until it is dropped, or until the versions its steps made
are published; then the ledger, the history and the audit alone remember it, and for a while the
replay buffer. What is due is kept in order by an `WorkIndex`, which step took what by `Steps`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Self

from asyncrl.experience import events as e
from asyncrl.experience.audit import Audit
from asyncrl.experience.history import History
from asyncrl.experience.ledger import Ledger
from asyncrl.experience.replay_buffer import ReplayBuffer
from asyncrl.experience.rollout import ENDED, Group, Rollout, RolloutStatus
from asyncrl.experience.snapshot import Snapshot
from asyncrl.experience.steps import Steps
from asyncrl.experience.work_index import WorkIndex
from asyncrl.ipc.messages import Split


class Views:
    """Every live rollout and group, the ledger, and what is due.

    `version` is the one last published, None before the first; `step` the last one that took
    something, None before. `next_group` and `next_rollout` are what the next `Admitted` is numbered
    with. `checkpoint` is the last one. `restarts` are the stale groups, each with its item, whose
    prompts are to be admitted again before any new one.
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
        self._rollouts: dict[int, Rollout] = {}
        self._groups: dict[int, Group] = {}
        self._items: dict[Split, int] = {"train": 0, "evaluation": 0}
        self._ordinals: dict[Split, int] = {"train": 0, "evaluation": 0}
        self._sealings = 0
        self._judgements = 0
        self._begun: set[int] = set()  # groups of which a step has taken something
        self._work_index = WorkIndex()
        self._steps = Steps()

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Views) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    # --------------------------------------------------------------------------------------- views

    @property
    def rollouts(self) -> Mapping[int, Rollout]:
        """The rollouts that have not ended."""
        return self._rollouts

    @property
    def groups(self) -> Mapping[int, Group]:
        """The live groups; among their members may be ended ones."""
        return self._groups

    @property
    def groups_untaken(self) -> int:
        """The live training groups of which no step has taken anything."""
        return self.groups_live - len(self._begun)

    @property
    def rollouts_untaken(self) -> int:
        """The live training rollouts that no step has taken."""
        return self._work_index.open["train"]

    @property
    def rollouts_live(self) -> int:
        """The training rollouts that are not over: generated, judged, ready, or taken for a step
        whose version is not published."""
        return self._work_index.open["train"] + self._steps.size

    @property
    def queue_items(self) -> int:
        """Training rollouts whose response is complete and that no step has taken: the experience
        queue."""
        return self._work_index.queue_items

    @property
    def queue_bytes(self) -> int:
        """The bytes of their token arrays."""
        return self._work_index.queue_bytes

    @property
    def prescribed(self) -> tuple[int, list[Rollout]] | None:
        """What has to be taken next, and for which step, because a crash undid it; None where
        nothing is prescribed."""
        due = self._steps.due
        return due and (due[0], [self._rollouts[rollout] for rollout in due[1]])

    def items(self, split: Split) -> int:
        """How many prompts were admitted, restarted ones once: the cursor into the data."""
        return self._items[split]

    def to_lease(self, split: Split, n: int) -> list[Rollout]:
        """At most `n` rollouts that wait for a lease: recycled ones first, then new ones, each the
        oldest first."""
        return [self._rollouts[rollout] for rollout in self._work_index.to_lease(split, n)]

    def to_judge(self, after: int = 0) -> list[Rollout]:
        """Sealed rollouts without a verdict, the first sealed first; with `after`, only those whose
        `sealed` number is larger."""
        return [self._rollouts[rollout] for rollout in self._work_index.to_judge(after)]

    def ready(self, split: Split = "train") -> list[Group]:
        """Complete groups (each member judged or buried) of which no step has taken anything, the
        oldest first.

        Never waits for an older unfinished group. The oldest is the one with the smallest version
        among its tokens, since lag is counted from there; among equals the one admitted first.
        `len(group.rewards)` may be anything from 0 up: groups below `k_min` are for the coordinator
        to drop.
        """
        return [self._groups[group] for group in self._work_index.ready(split)]

    def judged(self) -> list[Rollout]:
        """Training rollouts with a verdict that no step has taken, whether their groups are
        complete or not, the oldest first."""
        return [self._rollouts[rollout] for rollout in self._work_index.judged()]

    def oldest(self, but: Container[int] = ()) -> Group | None:
        """The training group admitted first of those with a member that has not ended and that no
        step has taken, `but` for these."""
        for group in self._groups.values():
            if group.split == "train" and any(
                m.step is None and m.status not in ENDED and m.id not in but for m in group.members
            ):
                return group
        return None

    def taken(self) -> list[Rollout]:
        """What steps have taken and the trainer has not accounted for, in the order of taking."""
        return [
            self._rollouts[rollout] for rollout in self._steps.taken() if rollout in self._rollouts
        ]

    def statuses(self) -> Counter[RolloutStatus]:
        """How many live rollouts there are of each status."""
        return +self._work_index.statuses

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
            items=self._items,
            sealings=self._sealings,
            judgements=self._judgements,
            ordinals=self._ordinals,
            history=self.history,
            audit=self.audit,
            replay_buffer=self.replay_buffer,
            groups=list(self._groups.values()),
            training=self._steps.training,
            prescribed=self._steps.prescribed,
            closed=self._steps.closed,
            restarts=self.restarts,
        )

    @classmethod
    def of(cls, written: Snapshot) -> Self:
        """The state that was written down. It takes what the snapshot holds."""
        self = cls()
        self.ledger, self.history, self.audit, self.replay_buffer = (
            written.ledger,
            written.history,
            written.audit,
            written.replay_buffer,
        )
        self.version, self.step, self.checkpoint = written.version, written.step, written.checkpoint
        self.next_group, self.next_rollout = written.next_group, written.next_rollout
        self._items, self._ordinals, self.restarts = (
            written.items,
            written.ordinals,
            written.restarts,
        )
        self._sealings, self._judgements = written.sealings, written.judgements
        self._steps = Steps(written.training, written.prescribed, written.closed)
        self._groups = {group.id: group for group in written.groups}
        self._rollouts = {
            m.id: m for group in written.groups for m in group.members if m.status not in ENDED
        }
        self.groups_live = sum(group.split == "train" for group in written.groups)
        for group in written.groups:
            self._work_index.offer(group)
            if any(is_taken(member) for member in group.members):
                self._begun.add(group.id)
        for rollout in self._rollouts.values():
            self._work_index.enter(self._groups[rollout.group], rollout)
        return self


def is_taken(rollout: Rollout) -> bool:
    """Whether a step has it, and need not take it again."""
    return rollout.step is not None and rollout.status is not RolloutStatus.JUDGED
