"""Facts of a run by its events, to be read. Invariant: it shares no code with `asyncrl.experience`,
and is written to be read, not to be fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from itertools import chain
from typing import NamedTuple

from asyncrl.messages import Split
from asyncrl.simulation.checker.reference_episodes import ReferenceEpisodes
from asyncrl.simulation.checker.reference_pruning import ReferencePruning
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceCall,
    ReferenceEpisode,
    ReferenceGroup,
    ReferenceRollout,
)

Facts = tuple[int, int, int, int]
"""A rollout whose generation is over: its tokens, the versions published between the admission of
its prompt and its last token, its leases, and the version of its first token."""


class Filling:
    """Numbers of groups, rollouts and response tokens that one step has taken."""

    __slots__ = ("groups", "rollouts", "tokens")

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.rollouts = self.tokens = 0


class ReferenceVisits(NamedTuple):
    """The groups of a prompt that are complete, each earlier one counting half: the sum of their
    rewards, the number of these, and of the members that solved it. `easy`: all of the last
    did."""

    total: float = 0.0
    rewards: float = 0.0
    solved: float = 0.0
    easy: bool = False


class ReferenceFacts:
    """The live rollouts and groups, the ends of the others, and the prompts to come.

    `agents` are the calls of episodes that are played. `cursor` is the place of the next prompt;
    `restarts` maps the stale groups whose prompts start again to their prompts. `visits` says of
    each prompt what its groups earned.
    `kept` are the trained groups that may be trained again, with the last step that may, `replayed`
    the rollouts that each step trains again. `touched` are the rollouts that events named since it
    was last cleared.
    """

    def __init__(self) -> None:
        self.rollouts: dict[int, ReferenceRollout] = {}
        self.groups: dict[int, ReferenceGroup] = {}
        self.ended: dict[int, str] = {}
        self.tokens = self.tokens_trained = self.admitted = self.trained = 0
        self.foreign = Counter[str]()  # tokens that were imported, trained, and left out by reason
        self.pool: dict[int, ReferenceRollout] = {}  # the last success at each prompt
        self.foreign_ended = Counter[str]()  # imported rollouts, by their end
        self.tokens_discarded: Counter[str] = Counter()
        self.agents = ReferenceEpisodes(self.tokens_discarded)
        self.discarded: Counter[str] = Counter()
        self.buried: Counter[Split] = Counter()
        self.ordinals: Counter[Split] = Counter()
        self.placed: Counter[Split] = Counter()  # groups that are no restarts
        self.generated: Counter[Facts] = Counter()
        self.learned: dict[Facts, float] = {}  # shares of their tokens that were trained
        self.pruning = ReferencePruning()
        self.signals: list[bool] = []  # of completed groups: do their rewards differ?
        self.cursor = self.leases = 0
        self.started = 0, 0  # training groups, and their rollouts
        self.restarts: dict[int, int] = {}
        self.visits: dict[int, ReferenceVisits] = {}
        self.steps: dict[int, Filling] = {}
        self.kept: dict[int, tuple[int, list[ReferenceRollout]]] = {}
        self.replayed: dict[int, dict[int, ReferenceRollout]] = {}
        self.published: int | None = None
        self.served: int | None = None  # published last, also where a crash undid it
        self.newest = 0  # the last version that was ever published
        self.touched: set[int] = set()

    @property
    def groups_live(self) -> int:
        """Training groups that are not over."""
        return sum(group.event.split == "train" for group in self.groups.values())

    @property
    def groups_untaken(self) -> int:
        """Those of which no step has anything."""
        return sum(
            group.event.split == "train" and not group.steps for group in self.groups.values()
        )

    @property
    def rollouts_untaken(self) -> int:
        """Training rollouts that no step has."""
        return sum(
            seen.step is None and seen.group.event.split == "train"
            for seen in self.rollouts.values()
        )

    @property
    def rollouts_live(self) -> int:
        """Those, and what steps have whose version is not published."""
        steps = [step for group in self.groups.values() for step in group.steps.values()]
        return self.rollouts_untaken + sum(step >= (self.published or 0) for step in steps)

    @property
    def tokens_live(self) -> int:
        return sum(seen.tokens for seen in self.rollouts.values() if seen.own)

    def call(self, id: int) -> ReferenceCall | None:
        """The call of this number, or the rollout of one turn; None where it is not live."""
        seen = self.rollouts.get(id)
        return self.agents.calls.get(id) if seen is None or seen.episode is not None else seen

    def calls(self) -> Iterator[ReferenceCall]:
        """All that may be with engines."""
        turns = (seen for seen in self.rollouts.values() if seen.episode is None)
        return chain(turns, self.agents.calls.values())

    def held(self, holder: str) -> list[ReferenceCall]:
        """The calls that this actor has."""
        return [call for call in self.calls() if call.holder == holder]

    def episode(self, id: int) -> ReferenceEpisode | None:
        """The live episode of this number; None if there is none."""
        seen = self.rollouts.get(id)
        return None if seen is None else seen.episode

    @property
    def episodes(self) -> Iterator[ReferenceEpisode]:
        """All that are live."""
        return (seen.episode for seen in self.rollouts.values() if seen.episode is not None)

    @property
    def queue(self) -> tuple[int, int]:
        """Training rollouts that are complete and that no step has, and their bytes."""
        queued = [
            seen
            for seen in self.rollouts.values()
            if seen.sealed and seen.step is None and seen.group.event.split == "train"
        ]
        return len(queued), 8 * sum(len(seen.versions) for seen in queued)

    def members(self, group: ReferenceGroup) -> list[ReferenceRollout]:
        """Those that have not ended."""
        return [self.rollouts[id] for id in group.members if id in self.rollouts]

    def finished(self, group: ReferenceGroup) -> bool:
        """True if every member has its verdict, or has ended."""
        return all(seen.verdict is not None for seen in self.members(group))

    def complete(self, group: ReferenceGroup) -> bool:
        """True if that is so, and no member is added any more."""
        open = group.may_grow or group.imports or any(seen.open for seen in self.members(group))
        return self.finished(group) and not open

    def oldest(self, but: Container[int] = ()) -> ReferenceGroup | None:
        """The training group admitted first of those of which a rollout is live that no step has,
        `but` for these rollouts."""
        groups = (group for group in self.groups.values() if group.event.split == "train")
        waiting = (
            g
            for g in groups
            if any(seen.step is None and seen.id not in but for seen in self.members(g))
        )
        return min(waiting, key=lambda group: group.ordinal, default=None)
