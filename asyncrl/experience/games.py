"""Games of several runs, as the state of one run shows them. Pure.

Invariant: the key of a game is that of the draws of its rollout, so the runs of a game, which have
the same seed, order of prompts and size of groups, give it the same key without a message. A game
is complete in all of its runs, or is buried in all: a host ends a game after its guests have, and
each gives up what the other gave up.
"""

from __future__ import annotations

from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.state import ExperienceState
from asyncrl.messages.game_messages import GameState, Standing

LOST = frozenset({RolloutStatus.BURIED})
PLAYABLE = frozenset({RolloutStatus.WAITING, RolloutStatus.BEGUN})


def next_key(state: ExperienceState, size: int) -> int:
    """The key of the first member of the next training group, where groups have `size`."""
    return size * state.prompts["train"]


def standing(state: ExperienceState, size: int) -> Standing:
    """The games of a host."""
    live = _training(state)
    return Standing(
        next=next_key(state, size),
        live=[group.key for group in live],
        buried=[
            group.key + place
            for group in live
            for place, member in enumerate(group.members)
            if member.status in LOST
        ],
    )


def given_up(state: ExperienceState, host: Standing) -> list[Rollout]:
    """The unfinished rollouts of a guest whose games its host has given up."""
    live, buried = frozenset(host.live), frozenset(host.buried)
    return [
        member
        for group in _training(state)
        if group.key < host.next
        for place, member in enumerate(group.members)
        if member.status in PLAYABLE and (group.key not in live or group.key + place in buried)
    ]


def seat(state: ExperienceState, key: int, size: int) -> Rollout | GameState | None:
    """The rollout of a game that a guest can begin, or begin again; or the reason why it cannot.
    None: its group is not admitted yet."""
    if key >= next_key(state, size):
        return None
    for group in _training(state):
        if group.key <= key < group.key + size:
            member = group.members[key - group.key]
            if member.status in PLAYABLE:
                return member
            return "given_up" if member.status in LOST else "ended"
    return "gone"


def _training(state: ExperienceState) -> list[Group]:
    return [group for group in state.groups.values() if group.split == "train"]
