"""Rollouts: the members of groups."""

from __future__ import annotations

import msgspec

from asyncrl.experience.call import Call, RolloutStatus
from asyncrl.experience.episode import Episode, Strand, Turn, gathered
from asyncrl.messages import Scored, Source, Verdict

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
    was asked about its first `looked` tokens last, 0 before, and let it go on, all answers together
    with this `chance`; one that it ended is `pruned` (`rollout.prune`).

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
