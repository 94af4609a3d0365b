"""Attempts of agents at episodes: their limits, calls and remaining budget."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.experience.episode import Episode
from asyncrl.experience.group import Group
from asyncrl.experience.image_marks import HASH, numbered_alone
from asyncrl.experience.rollout import Rollout


class PlayingLimits(msgspec.Struct, frozen=True):
    """`max_calls` of one attempt; `attempts` of one episode that fail; `context_tokens` of a call,
    given and sampled. `ends_rewarded`: an attempt that forks in training, and ended by itself, has
    failed if an end of its tree has no reward."""

    max_calls: int
    attempts: int
    context_tokens: int
    ends_rewarded: bool = False


@dataclass(eq=False)
class Attempt:
    """One agent's attempt. `calls` are the heart's numbers of its calls, in its own order, None of
    those that were refused; `sent` are the tokens that it was given, by its number of each call
    whose answer has not ended. `diverged`: it made a call that earlier attempts had not, before it
    repeated all of theirs."""

    peer: Peer
    rollout: int
    attempt: int
    calls: list[int | None] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    diverged: bool = False

    def answering(self, number: int, call: int) -> None:
        """Set its call `number`, which must be answered from the first token on."""
        self.calls[number], self.sent[number] = call, 0


def shows(images: tuple[str, ...], context: bytes) -> bool:
    """True if these are the images of a context, each once."""
    try:
        return numbered_alone(context, images)[1] == images and all(map(HASH.fullmatch, images))
    except ValueError:
        return False


def over_budget(max_calls: int, *, tokens: bool) -> str:
    """The reason why a call is refused: no `tokens` are left, or no further call is allowed."""
    if tokens:
        return (
            "the episode has used up its budget (rollout.max_new_tokens) or its context "
            "(engine.context_tokens)"
        )
    return f"the episode has made {max_calls} calls, the most that it may make (agent.max_calls)"


def rollout_key(group: Group, rollout: Rollout) -> int:
    """The key that determines the draws of a rollout."""
    return group.key + group.place_of(rollout.id)


def tokens_left(rollout: Rollout) -> int:
    """The tokens that an episode may still sample in this attempt; negative if concurrent calls
    together sampled more."""
    episode = episode_of(rollout)
    spent = sum(call.tokens for call in episode.calls if call.id in episode.used)
    return rollout.max_new_tokens - spent


def episode_of(rollout: Rollout) -> Episode:
    """The episode of a rollout that an agent plays."""
    assert rollout.episode is not None, "an agent plays it"
    return rollout.episode
