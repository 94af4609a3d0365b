"""The protocol of an advantage: what it needs, and how much better each rollout did than expected.

Rewards are plain floats and all sums are float64; results are float32. An advantage is one class.
Its class variables describe it for the configuration, the coordinator and the trainer, and one
method is the formula. No torch here: the coordinator imports this.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Protocol

from asyncrl.algorithms.tensors import Tensor
from asyncrl.messages import DrawnMembers, ForkedMembers, PromptFacts, Sample

Rewards = Mapping[int, Sequence[float]]
"""Group → the rewards of all its members with a verdict, in the order of `Sample.member`."""
Parts = Mapping[int, Sequence[Sequence[float]]]
"""Group → the parts of each of those rewards, for groups that have any."""
Lengths = Mapping[int, Sequence[int]]
"""Group → the sampled tokens of each of those members; for an advantage relative to the whole
step, which may weight by tokens instead of rollouts."""
TurnRewards = Mapping[int, Sequence[Sequence[float]]]
"""Group → the rewards of the turns of each of those members, for groups that agents played; empty
for a member of one turn."""
Keys = Mapping[int, Sequence[Sequence[str]]]
"""Group → the keys of the turns of each of those members, for groups of which any turn has one;
empty for a member without one. A key names the state in which a turn began."""
Above = Mapping[int, Sequence[Sequence[Sequence[int]]]]
"""Group → for each of those members the turns directly above each of its turns, for groups in which
an episode has branches; empty for a member without, whose turns lie one below the other."""
Prompts = Mapping[int, PromptFacts]
"""Group → what was known of its prompt when the group was admitted."""
Drawn = Mapping[int, DrawnMembers]
"""Group → the chances of those members, for groups of which a rule might have ended any."""

Forks = Mapping[int, ForkedMembers]
"""Group → the trees of those members, for groups of which any might have forked."""

Value = float | Sequence[float] | None
"""Advantage of a rollout: one number, or one for each turn of its episode; None where it is not
trained."""

LARGEST = 1e38
"""Largest reward, either sign: the difference of two still fits a float32."""


class GradientNorms(Protocol):
    """Gradients of the rollouts of one micro-batch; each call costs a pass. Each method returns two
    float64 tensors of shape [samples]: the ratio of current to behaviour policy of the whole
    rollout, and the squared norm of the gradient of its log-probability.

    >>> class Ones:
    ...     def exact(self):
    ...         import torch
    ...         return torch.ones(2), torch.ones(2)
    ...     from_logits = exact
    >>> norms: GradientNorms = Ones()
    >>> norms.exact()[0].tolist()
    [1.0, 1.0]
    """

    def exact(self) -> tuple[Tensor, Tensor]:
        """One forward and one backward pass of each rollout alone."""
        ...

    def from_logits(self) -> tuple[Tensor, Tensor]:
        """One forward pass; the norm is that of the gradient by the logits."""
        ...


class RewardedSamples(NamedTuple):
    """A micro-batch, as input of an advantage.

    `rewards` has the groups of `samples`, or every group of the step for an advantage that is
    relative to the whole step, and then `lengths` has them too. `gradients` is None for an
    advantage that needs none. `turns` has the groups that agents played, `keys` those of them whose
    turns have keys, `above` those of which an episode has branches, and `drawn` those of which a
    rule might have ended members by a draw that weighs (`rollout.prune_weight`), `forked` those of
    which members might have forked.

    >>> given = RewardedSamples([], {4: [1.0, 0.0]}, {})
    >>> given.rewards[4], given.gradients
    ([1.0, 0.0], None)
    """

    samples: Sequence[Sample]
    rewards: Rewards
    parts: Parts
    gradients: GradientNorms | None = None
    lengths: Lengths = MappingProxyType({})
    turns: TurnRewards = MappingProxyType({})
    keys: Keys = MappingProxyType({})
    prompts: Prompts = MappingProxyType({})
    above: Above = MappingProxyType({})
    drawn: Drawn = MappingProxyType({})
    forked: Forks = MappingProxyType({})


class Advantage(ABC):
    """Measure of how much better a rollout did than is expected of its prompt.

    `kind` is its name in run.toml; of a user's own it is `module:name`. `unit`: what is trained
    together where it is defined (`train.unit`). `settings`: other settings of `[train]` that it
    reads. `whole_step`: it is relative to the step, so each micro-batch needs the rewards (and
    parts) of every group of the step. `needs_gradients`: it needs the norm of each rollout's
    gradient, so a group must be whole in one micro-batch. `several_rewards`: it compares the parts
    of a reward one by one. `equal_has_signal`: a group whose rewards are all equal may have an
    advantage, so that `rollout.filter = zero_variance` drops none. `odd_group`: it compares a group
    with one of its members, so `rollout.group_size` is odd. `by_turn` (of a `GroupAdvantage`): it
    may be given rewards to go, one turn after another (`train.credit = to_go`). It subtracts a mean
    and divides by nothing that depends on the rewards.

    >>> from asyncrl.config.loss_names import ADVANTAGES
    >>> [kind for kind, advantage in ADVANTAGES.all().items() if advantage.whole_step]
    ['gdpo', 'reinforce_pp', 'reinforce_pp_baseline']
    """

    kind: ClassVar[str] = ""
    unit: ClassVar[Literal["group", "rollout"]] = "group"
    settings: ClassVar[frozenset[str]] = frozenset()
    whole_step: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    several_rewards: ClassVar[bool] = False
    equal_has_signal: ClassVar[bool] = False
    odd_group: ClassVar[bool] = False
    by_turn: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__.rpartition('/')[2]}:{cls.__qualname__}"

    @abstractmethod
    def of(self, batch: RewardedSamples) -> Sequence[Value]:
        """Advantage of each sample: a number, or one for each turn of its episode (one, where no
        agent played); None for one that is not trained. Raises ValueError for invalid input."""


class MemberAdvantage(Advantage):
    """An advantage of members among others: a table of all members with a verdict, in which each
    sample has an index.

    `needs_member`: members with equal rewards may have different advantages, so each sample must
    name its member (`Sample.member`). Otherwise its reward is enough.

    >>> class AboveHalf(MemberAdvantage):
    ...     def of_members(self, rewards, parts, lengths):
    ...         return {group: [reward - 0.5 for reward in of] for group, of in rewards.items()}
    >>> sample = Sample(
    ...     rollout=9, group=4, prompt_tokens=1, response_tokens=1, reward=1.0, spans=[], member=1
    ... )
    >>> AboveHalf().of(RewardedSamples([sample], {4: [0.0, 1.0]}, {}))
    [0.5]
    """

    needs_member: ClassVar[bool] = False

    @abstractmethod
    def of_members(
        self, rewards: Rewards, parts: Parts, lengths: Lengths
    ) -> Mapping[int, Sequence[float | None]]:
        """Advantage of each member of each group of `rewards`, in the same order; None for a member
        that is not trained. Each group has at least one member, and all rewards are finite."""

    def of(self, batch: RewardedSamples) -> list[float | None]:
        """Advantage of each sample. Raises ValueError for a group without members, a reward or part
        that is not finite, parts of uneven number, and a sample that is not a member."""
        if not batch.samples:
            return []
        rewards = batch.rewards
        if not self.whole_step:
            rewards = {sample.group: rewards.get(sample.group, ()) for sample in batch.samples}
        for group, members in rewards.items():
            check_rewards(group, members)
        indexes = [
            self.member_index(sample, rewards.get(sample.group, ())) for sample in batch.samples
        ]
        table = self.of_members(rewards, batch.parts, batch.lengths)
        for group, members in rewards.items():
            if len(table[group]) != len(members):
                raise ValueError(
                    f"{self.kind} gives {len(table[group])} advantages to the {len(members)} "
                    f"members of group {group}; it must return one for each member"
                )
        return [
            table[sample.group][member]
            for sample, member in zip(batch.samples, indexes, strict=True)
        ]

    def member_index(self, sample: Sample, rewards: Sequence[float]) -> int:
        """Index of a sample among the rewards of its group. Raises ValueError where it has none."""
        member = sample.member
        if member is None and not self.needs_member and sample.reward in rewards:
            return rewards.index(sample.reward)
        if member is None and self.needs_member:
            raise ValueError(
                f"rollout {sample.rollout} does not name its member of the group, which "
                f"{self.kind} needs"
            )
        if member is None or not 0 <= member < len(rewards) or rewards[member] != sample.reward:
            raise ValueError(
                f"rollout {sample.rollout} has a reward of {sample.reward}, which is not its "
                f"member's in group {sample.group}"
            )
        return member


class GroupAdvantage(MemberAdvantage):
    """An advantage relative to the members of the same group.

    >>> class Best(GroupAdvantage):
    ...     def of_group(self, rewards):
    ...         return [float(reward == max(rewards)) for reward in rewards]
    >>> Best().of_members({4: [0.0, 2.0], 7: [1.0]}, {}, {})
    {4: [0.0, 1.0], 7: [1.0]}
    """

    @abstractmethod
    def of_group(self, rewards: Sequence[float]) -> Sequence[float | None]:
        """Advantage of each of the `rewards` of one group, at least one; None for a member that is
        not trained."""

    def of_members(
        self, rewards: Rewards, parts: Parts, lengths: Lengths
    ) -> Mapping[int, Sequence[float | None]]:
        """Compute each group by itself, whatever its parts and lengths."""
        return {group: self.of_group(members) for group, members in rewards.items()}


def check_turns(
    group: int,
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
    above: Sequence[Sequence[Sequence[int]]] = (),
) -> None:
    """Raise ValueError where the rewards of turns are not those of a group's members, or not
    finite, or where the turns above a turn are not earlier ones of the same member."""
    if len(turns) != len(rewards):
        raise ValueError(
            f"group {group} has {len(rewards)} rewards, but turns came of {len(turns)} members"
        )
    if not all(math.isfinite(reward) for member in turns for reward in member):
        raise ValueError(f"group {group} has a turn whose reward is not finite")
    if above and (
        len(above) != len(turns)
        or any(member and len(member) != len(turns[n]) for n, member in enumerate(above))
    ):
        raise ValueError(f"group {group} says of other turns than its members' what is above them")
    if any(not 0 <= a < n for member in above for n, over in enumerate(member) for a in over):
        raise ValueError(f"group {group} has a turn that is said to lie below a later one")


def check_rewards(group: int, rewards: Sequence[float]) -> None:
    """Raise ValueError where a group has no rewards, or one that is not finite."""
    if not rewards:
        raise ValueError(
            f"group {group} has no member with a verdict, so its samples have no advantage; "
            "leave it out of the micro-batch"
        )
    if not all(abs(reward) <= LARGEST for reward in rewards):
        raise ValueError(
            f"group {group} has a reward that is not finite; a verifier without an answer must "
            "give NoVerdict"
        )


def of_members(
    batch: RewardedSamples, advantage: Advantage, tables: Mapping[int, Sequence[Value]]
) -> list[Value]:
    """The advantage of each sample: for groups that have one in `tables`, by its member, and for
    others by `advantage`. Raises ValueError for a sample that does not name its member."""
    plain = [sample for sample in batch.samples if sample.group not in tables]
    values = iter(advantage.of(batch._replace(samples=plain)) if plain else ())
    found = list[Value]()
    for sample in batch.samples:
        if sample.group not in tables:
            found.append(next(values))
            continue
        if sample.member is None or not 0 <= sample.member < len(tables[sample.group]):
            raise ValueError(f"rollout {sample.rollout} does not name its member of the group")
        found.append(tables[sample.group][sample.member])
    return found
