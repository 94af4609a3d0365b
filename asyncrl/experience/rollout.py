"""Rollouts and groups. Invariant: only `Group.of` creates groups, after all checks."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

import msgspec

from asyncrl.experience.call import Call, ImpossibleEvent, RolloutStatus
from asyncrl.experience.episode import (
    Episode,
    Strand,
    Turn,
    gathered,
    path_tokens,
    sequences,
    turn_keys,
    turn_rewards,
    turns_above,
)
from asyncrl.experience.events import Admitted, Forked, Grown, Imported
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import (
    DrawnMembers,
    ForkedMembers,
    NoVerdict,
    PromptFacts,
    Scored,
    Source,
    Span,
    Split,
    Verdict,
)

FINISHED = frozenset(
    {
        RolloutStatus.JUDGED,
        RolloutStatus.TAKEN,
        RolloutStatus.TRAINED,
        RolloutStatus.DISCARDED,
        RolloutStatus.BURIED,
    }
)
"""Statuses of members that let their group complete."""

UNKNOWN_LOGPROB = struct.pack("<f", math.nan)
"""A log-probability that is not known: the learner scores such a token when it trains it."""

MEMBERS = 2**17
"""Members of a group, at most: more than settings allow, and few enough to be made of an event that
a stranger wrote."""
ENDED = frozenset({RolloutStatus.TRAINED, RolloutStatus.DISCARDED, RolloutStatus.BURIED})
"""Statuses of ended rollouts, which hold no tokens."""


class Rollout(Call):
    """One member of a group. A rollout of one turn is a call, its response to the prompt.

    `sealed` is its position in the order of sealing, from 1; 0 before. `judged` is the same for
    verdicts. `step` is the step that has taken it, or must take it again after a crash; None
    before.

    An agent's rollout is an `episode` until it is sealed, with the tokens in its calls. Then the
    rollout has the tokens of its turns, one after another, and `turns` and `strands` give their
    structure; `images` are those of its contexts, and `agent_reward` is the reward by its agent,
    None without one.

    A *fork* continues the `shared` ids, which are the first tokens of its `parent`; `ids` are its
    own alone, and spans count from there. A rollout stands for `leaves` of its root's, and `forks`
    while it may still give some away (`rollout.fork`). `slot` is the place of its draws.

    `left_out`: its group was trained without it, because it was not chosen (`train.keep`). A rule
    was asked about its first `looked` tokens last, 0 before, and let it go on with the `chance` of
    all that was said of it; one that it ended is `pruned` (`rollout.prune`).

    A rollout of another `source` than `own` is *foreign*: it was imported, complete, and counts
    neither in the history of its prompt nor among what the run has sampled.
    """

    sealed: int = 0
    judged: int = 0
    verdict: Verdict | None = None
    step: int | None = None
    episode: Episode | None = None
    turns: list[Turn] = msgspec.field(default_factory=list)
    strands: list[Strand] = msgspec.field(default_factory=list)
    agent_reward: float | None = None
    left_out: bool = False
    looked: int = 0
    chance: float = 1.0
    pruned: bool = False
    source: Source = "own"
    images: tuple[str, ...] = ()
    parent: int | None = None
    shared: bytes = b""
    leaves: int = 1
    forks: bool = False
    slot: int = 0

    @property
    def shared_tokens(self) -> int:
        """The tokens of its response that are its parent's."""
        return len(self.shared) >> 2

    @property
    def own(self) -> bool:
        """True if the run's policy has sampled it."""
        return self.source == "own"

    @property
    def compared(self) -> bool:
        """True if it has a reward that advantages of its group compare: it was not left out."""
        return isinstance(self.verdict, Scored) and not self.left_out

    @property
    def tokens(self) -> int:
        """Sampled tokens held."""
        return (len(self.ids) >> 2) + (self.episode.tokens if self.episode is not None else 0)

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token, 0 where there is none."""
        return min((span.version for span in self.spans), default=0)

    @property
    def truncated(self) -> bool:
        """True if its response was cut at its budget."""
        return self.finish == "length"

    def gather(self) -> None:
        """End the episode: keep what its agent used in the rollout, and drop the rest."""
        assert self.episode is not None
        (self.ids, self.behaviour, self.spans, self.turns, self.strands, self.routing) = gathered(
            self.episode
        )
        self.attempt, self.agent_reward = self.episode.attempt, self.episode.rewards.get(None)
        self.images = tuple(self.episode.images)
        self.episode = None

    def release(self) -> int:
        """Drop the tokens, and return their number."""
        tokens = self.tokens
        super().release()
        self.turns, self.strands, self.images, self.episode = [], [], (), None
        return tokens


class Group(msgspec.Struct):
    """One prompt and its rollouts.

    `prompt` is `int32` ids; `prompt_index` its position in its split of the task; `version` pins
    the weights (evaluation) or is None; `key` is its first rollout's, and `sampled` is of held-out
    ones (see `Admitted`). `ordinal` is the number of groups of its split admitted before. Fixed at
    its admission: `prior`, the mean of the rewards of its prompt's earlier visits and their weight
    (`History.prior`), `posterior`, that of its solve rate (`History.posterior`), `longest`, the
    tokens of its longest right answer (`History.longest`), and `admitted_version`, the version last
    published, 0 before the first. `most` is the number of members to which it may grow; 0 where it
    does not, or has been completed. `imports` is the number of foreign answers of `source` that may
    join it; 0 where none may, or it was said which do. An agent plays its rollouts where it is
    `played`. `images` are the hashes of its prompt's. `leaves` are
    the rollouts that each of its first ones may become by forks.
    """

    id: int
    split: Split
    prompt_index: int
    prompt: bytes
    version: int | None
    members: tuple[Rollout, ...]
    key: int = 0
    ordinal: int = 0
    prior: tuple[float, float] = (0.0, 0.0)
    admitted_version: int = 0
    sampled: bool = False
    posterior: tuple[float, float] = (1.0, 1.0)
    most: int = 0
    played: bool = False
    longest: int = 0
    imports: int = 0
    source: Source = "own"
    images: tuple[str, ...] = ()
    leaves: int = 1

    @classmethod
    def of(
        cls,
        event: Admitted,
        ordinal: int,
        prior: tuple[float, float],
        admitted_version: int,
        posterior: tuple[float, float] = (1.0, 1.0),
        longest: int = 0,
    ) -> Self:
        """The admitted group, with all rollouts waiting. Raises ImpossibleEvent for one without
        rollouts or budget, or with a negative `prompt_index`."""
        if not 0 < event.size <= MEMBERS or event.max_new_tokens < 1 or event.prompt_index < 0:
            raise ImpossibleEvent(
                f"group {event.group} needs a rollout, at most {MEMBERS:,}, a token to sample and "
                f"a prompt: {event.size=} {event.max_new_tokens=} {event.prompt_index=}"
            )
        if len(event.prompt) & 3:
            raise ImpossibleEvent(
                f"group {event.group} has a prompt of {len(event.prompt)} bytes, which are no int32"
            )
        if event.most and (not event.size <= event.most <= MEMBERS or event.split != "train"):
            raise ImpossibleEvent(
                f"group {event.group} of {event.size} rollouts for {event.split} cannot grow to "
                f"{event.most}"
            )
        if event.imports < 0 or (event.imports and (event.split != "train" or event.played)):
            raise ImpossibleEvent(
                f"group {event.group} for {event.split} cannot have {event.imports} foreign answers"
            )
        barred = event.split != "train" or event.played or event.most > event.size or event.imports
        if not 0 < event.leaves <= MEMBERS // event.size or (event.leaves > 1 and barred):
            raise ImpossibleEvent(
                f"group {event.group} of {event.size} rollouts for {event.split} cannot fork to "
                f"{event.leaves} leaves each: it is played, grows, imports, or is too large"
            )
        members = tuple(
            Rollout(
                event.first + i,
                event.group,
                event.max_new_tokens,
                episode=Episode() if event.played else None,
                leaves=event.leaves,
                forks=event.leaves > 1,
                slot=i * event.leaves,
            )
            for i in range(event.size)
        )
        return cls(
            event.group,
            event.split,
            event.prompt_index,
            event.prompt,
            event.version,
            members,
            event.key,
            ordinal,
            prior,
            admitted_version,
            event.sampled,
            posterior,
            event.most,
            event.played,
            longest,
            event.imports,
            event.source,
            event.images,
            event.leaves,
        )

    def grow(self, event: Grown) -> tuple[Rollout, ...]:
        """Add the members of a growth, and return them. A growth of none ends all growth."""
        more = tuple(
            Rollout(
                event.first + i,
                self.id,
                self.members[0].max_new_tokens,
                episode=Episode() if self.played else None,
            )
            for i in range(event.size - len(self.members))
        )
        self.members += more
        self.most *= bool(more)
        return more

    def take_in(self, event: Imported, sealings: int) -> tuple[Rollout, ...]:
        """Add foreign answers as members that wait for verdicts, and return them; no further ones
        may join. `sealings` rollouts were sealed before. Raises ImpossibleEvent, and changes
        nothing, for an answer that cannot be one."""
        budget = self.members[0].max_new_tokens
        for answer in event.answers:
            tokens, rest = divmod(len(answer.ids), 4)
            if (
                answer.source == "own"
                or not 0 < tokens <= budget
                or rest
                or len(answer.behaviour) not in (0, len(answer.ids))
                or answer.version < 0
                or answer.finish not in ("stop", "length")
            ):
                raise ImpossibleEvent(
                    f"group {self.id} cannot have the answer {answer.origin!r} of {answer.source}: "
                    f"{len(answer.ids)} bytes of ids, {len(answer.behaviour)} of log-probabilities,"
                    f" version {answer.version}, {answer.finish!r}"
                )
        more = tuple(
            Rollout(
                event.first + i,
                self.id,
                budget,
                status=RolloutStatus.SEALED,
                ids=bytearray(answer.ids),
                behaviour=bytearray(answer.behaviour or UNKNOWN_LOGPROB * (len(answer.ids) // 4)),
                spans=[Span(answer.version, 0, len(answer.ids) // 4, answer.source)],
                finish=answer.finish,
                sealed=sealings + 1 + i,
                source=answer.source,
            )
            for i, answer in enumerate(event.answers)
        )
        self.members += more
        self.imports = 0
        return more

    def fork(self, event: Forked, parent: Rollout) -> Rollout:
        """Add the member that a fork of `parent` makes, and return it. Its draws are those of the
        last places that the parent may use. Raises ImpossibleEvent, and changes nothing, for a
        place that is not between two tokens that the parent has sampled itself."""
        start = parent.shared_tokens
        if not start < event.at < start + parent.tokens:
            raise ImpossibleEvent(
                f"rollout {parent.id} cannot fork at {event.at}: it has sampled the tokens {start} "
                f"to {start + parent.tokens - 1} of its response"
            )
        own = event.at - start
        leaves = parent.leaves // 2
        parent.leaves -= leaves
        parent.forks = parent.leaves > 1
        more = Rollout(
            event.first,
            self.id,
            parent.max_new_tokens - own,
            parent=parent.id,
            shared=parent.shared + bytes(parent.ids[: 4 * own]),
            leaves=leaves,
            forks=leaves > 1,
            slot=parent.slot + parent.leaves,
        )
        self.members += (more,)
        return more

    def context(self, member: Rollout) -> bytes:
        """The `int32` ids that a member of one turn continues."""
        return self.prompt + member.shared

    def draw_of(self, member: Rollout) -> int:
        """The place of a member's draws among those of its group, from 0. Of forks it follows from
        where they fork, not from when."""
        return member.slot if self.leaves > 1 else self.place_of(member.id)

    def place_of(self, number: int) -> int:
        """The place of a member among all, from 0. A growth numbers its members anew."""
        return bisect_left(self.members, number, key=lambda member: member.id)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) >> 2

    @property
    def may_grow(self) -> bool:
        """True if it may have more members than it has."""
        return len(self.members) < self.most

    @property
    def own_members(self) -> list[Rollout]:
        """The members that the run's policy has sampled, in order."""
        return [member for member in self.members if member.own]

    @property
    def _finished(self) -> bool:
        return self.settled and all(member.status in FINISHED for member in self.members)

    @property
    def undecided(self) -> bool:
        """True if every member is judged or buried, and a rule must say whether it grows."""
        return self.may_grow and self._finished

    @property
    def complete(self) -> bool:
        """True if every member is, or was, judged or buried, and none is to come."""
        return not (self.may_grow or self.imports) and self._finished

    @property
    def importing(self) -> bool:
        """True if every member is judged or buried and it does not grow, and it must be said which
        foreign answers join it."""
        return bool(self.imports) and not self.may_grow and self._finished

    @property
    def settled(self) -> bool:
        """True if it is said of every member whether it forks."""
        return self.leaves == 1 or not any(
            member.forks and member.status not in ENDED for member in self.members
        )

    @property
    def ended(self) -> bool:
        """True if every member is trained, discarded or buried."""
        return all(member.status in ENDED for member in self.members)

    @property
    def begun(self) -> bool:
        """True if a step has taken any member, or must take it again."""
        return any(member.step is not None for member in self.members)

    @property
    def scored(self) -> list[Rollout]:
        """The members with a reward, in order, which a step takes; those that it left out are
        none of them. Those of trees are in the order of their draws."""
        scored = [member for member in self.members if member.compared]
        return sorted(scored, key=lambda member: member.slot) if self.leaves > 1 else scored

    @property
    def _verdicts(self) -> list[Scored]:
        """The verdicts of `scored`."""
        return [m.verdict for m in self.scored if isinstance(m.verdict, Scored)]

    @property
    def unscored(self) -> list[Rollout]:
        """The members whose verifier gave no reward and that have not ended, in order."""
        return [
            member
            for member in self.members
            if isinstance(member.verdict, NoVerdict) and member.status not in ENDED
        ]

    @property
    def rewards(self) -> list[float]:
        """The rewards, in the order of `scored`. `k_min` bounds their number."""
        return [verdict.reward for verdict in self._verdicts]

    @property
    def oldest(self) -> int:
        """The smallest version that sampled a token of a scored member of its own, 0 where there is
        none."""
        return min(
            (span.version for member in self.scored if member.own for span in member.spans),
            default=0,
        )

    @property
    def parts(self) -> list[list[float]]:
        """The parts of each reward, in the order of `scored`; empty lists where verifiers give one
        reward."""
        return [verdict.parts for verdict in self._verdicts]

    @property
    def turns(self) -> list[list[float]]:
        """The rewards of the turns of each member with a reward, in the order of `scored`; empty
        lists where no agent played."""
        return self.facts.turns

    @property
    def above(self) -> Sequence[list[list[int]]]:
        """The turns directly above each turn of each member with a reward, in the order of
        `scored`; empty lists where each lies below the one before it."""
        return self.facts.above

    @property
    def facts(self) -> GroupFacts:
        """The facts from which its members' advantages are computed."""
        return self.facts_of(self.scored)

    def facts_of(self, members: list[Rollout]) -> GroupFacts:
        """The facts that it would have if these of `scored` were all."""
        verdicts = [m.verdict for m in members if isinstance(m.verdict, Scored)]
        return GroupFacts(
            [verdict.reward for verdict in verdicts],
            [verdict.parts for verdict in verdicts],
            [member.tokens for member in members],
            [turn_rewards(member.turns) for member in members],
            [turn_keys(member.turns) for member in members],
            self.prompt_facts,
            [turns_above(member.turns) for member in members],
            self._drawn(members),
            self.trees(members),
        )

    def trees(self, members: list[Rollout]) -> ForkedMembers | None:
        """The trees of these members, where any may have forked."""
        if self.leaves == 1:
            return None
        known = {member.id: member for member in self.members}
        index = {member.id: number for number, member in enumerate(members)}
        trees, below = list[int](), [list[tuple[int, int]]() for _ in members]
        for number, member in enumerate(members):
            at = member
            while at.parent is not None:
                above = known[at.parent]
                if above.id in index:
                    own = at.shared_tokens - above.shared_tokens
                    below[index[above.id]].append((number, own))
                at = above
            trees.append(at.slot // self.leaves)
        return ForkedMembers(trees, [member.leaves for member in members], below)

    def _drawn(self, members: list[Rollout]) -> DrawnMembers | None:
        """The chances of these members, where any might have been ended by a draw."""
        pruned = sum(m.pruned and m.verdict is None for m in self.members)
        chances = [member.chance for member in members]
        if not pruned and all(chance == 1.0 for chance in chances):
            return None
        return DrawnMembers(len(members) + pruned, chances)

    @property
    def prompt_facts(self) -> PromptFacts:
        """The facts of its prompt at its admission, without the label of its task."""
        images = () if self.played else self.images  # an agent's calls have their own
        return PromptFacts(self.prompt_index, "", self.prior, self.posterior, self.longest, images)

    def sequences(self, member: Rollout) -> list[TrainingSequence]:
        """The training sequences of a member: the prompt with its response so far; for a sealed
        episode, one for each strand."""
        errors = member.verdict.errors if isinstance(member.verdict, Scored) else ()
        if member.strands:
            strands = sequences(
                member.ids,
                member.behaviour,
                member.spans,
                member.turns,
                member.strands,
                errors,
                member.routing,
            )
            return [one.numbered(member.images) for one in strands] if member.images else strands
        return [
            TrainingSequence.single_turn(
                self.context(member),
                member.ids,
                member.behaviour,
                member.spans,
                member.finish,
                errors,
                member.routing,
            )
        ]

    def sequence_tokens(self, member: Rollout) -> int:
        """The tokens of its `sequences` together, given ones included; shared tokens count for each
        strand."""
        if member.strands:
            return path_tokens(member.turns, member.strands)
        return self.prompt_tokens + member.shared_tokens + member.tokens

    def comparable(self, verdict: Scored) -> bool:
        """True if a verdict has as many parts as the existing ones."""
        return all(len(parts) == len(verdict.parts) for parts in self.parts)

    def others(self, rollout: Rollout) -> list[float]:
        """The rewards of the members other than this one, in the order of judging, including ended
        ones."""
        others = (member for member in self.members if member is not rollout)
        scored = [(m.judged, m.verdict.reward) for m in others if isinstance(m.verdict, Scored)]
        return [reward for _, reward in sorted(scored)]
