"""Rollouts as they are seen in a journal: each as it was when it ended, or as it is. A rollout's
tokens leave the state as it ends, so it is looked at before that event. `newest_rollouts.py` reads
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.sequence import ID_BYTES
from asyncrl.explain.views.seen_turns import SeenTurn, calls_of, turns_of
from asyncrl.messages import Finish, NoVerdict, Scored, Span, Split


class RolloutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a rollout in a word each, at its end or now. `status` is a word of
    `RolloutStatus`; one that is discarded or buried has a `reason`. `left_out` counts the tokens of
    one that a step took which did not enter the loss, by reason, and `places` are the first of
    them, [start, end) of its sampled tokens (`Trained`). `images` are the hashes of its prompt's
    (`RUN/images`), or of those that an agent's turns were given, by their numbers. `failures` are
    the kinds of those of an agent's earlier attempts, as far as the journal has them; its log has
    more."""

    rollout: int
    group: int
    split: Split
    prompt_index: int
    status: str
    reason: str
    reward: float | None
    no_verdict: str
    finish: Finish
    attempts: int
    left_out: dict[str, int] = {}
    places: dict[str, list[tuple[int, int]]] = {}
    failures: list[str] = []
    images: list[str] = []


class SeenRollout(RolloutFacts, frozen=True, kw_only=True):
    """A rollout with its tokens. `prompt` and `ids` are `int32`; the latter are all sampled tokens,
    of every turn, and `spans` say which version sampled which; `behaviour` (`float32`) are their
    log-probabilities. `mean_reward` is that of its group, without members that were left out
    before; None before the group is complete. `step` is the one that took it; `turns` are those of
    an agent's episode, of which the sampled tokens are one after another."""

    mean_reward: float | None
    step: int | None
    turns: list[SeenTurn]
    spans: list[Span]
    prompt: bytes
    ids: bytes
    behaviour: bytes

    @property
    def tokens(self) -> int:
        """The number of its sampled tokens."""
        return len(self.ids) // ID_BYTES

    @property
    def gain(self) -> float | None:
        """Its reward minus the mean of its group, its advantage before any scaling; None where one
        is not known."""
        if self.reward is None or self.mean_reward is None:
            return None
        return self.reward - self.mean_reward

    @property
    def lag(self) -> int | None:
        """The largest lag of its tokens in the step that took it, in versions; None where none
        has."""
        if self.step is None or not self.spans:
            return None
        return self.step - min(span.version for span in self.spans)


class EndOfRollout(NamedTuple):
    """A live `rollout` that an event ends, or one as it is: the `status` that it gets, why, and the
    tokens of one in a step that were `left_out` of the loss, by reason, with the `places` of the
    first of them."""

    rollout: Rollout
    status: str
    reason: str = ""
    left_out: Mapping[str, int] = MappingProxyType({})
    places: Mapping[str, list[tuple[int, int]]] = MappingProxyType({})


def ending(experience: Experience, event: e.AnyEvent) -> Iterator[EndOfRollout]:
    """The live rollouts that an event ends."""
    rollouts = experience.rollouts
    match event:
        case e.Trained(number, trained, discarded, places) if number in rollouts:
            status = ("trained", "") if trained else ("discarded", _largest(discarded))
            yield EndOfRollout(rollouts[number], *status, discarded, places)
        case e.Discarded(number, reason) if number in rollouts:
            yield EndOfRollout(rollouts[number], "discarded", reason)
        case e.Buried(number, reason) | e.Pruned(number, reason, 0) if number in rollouts:
            yield EndOfRollout(rollouts[number], "buried", reason)
        case e.Taken(_, taken, left_out):  # those that nobody could judge leave with it, too
            for number in left_out:
                if number in rollouts:
                    yield EndOfRollout(rollouts[number], "discarded", "not_chosen")
            numbers = {rollouts[number].group for number in taken if number in rollouts}
            for group in (experience.groups[number] for number in sorted(numbers)):
                for member in group.unscored if group.complete else ():
                    yield EndOfRollout(member, "discarded", "no_verdict")
        case e.Dropped(number, reason) if number in experience.groups:
            for member in experience.groups[number].members:
                if member.id in rollouts:
                    yield EndOfRollout(member, "discarded", reason)


def _largest(discarded: Mapping[str, int]) -> str:
    """The reason of most tokens, the first by name of equal ones, as the ledger has it."""
    return min(discarded, key=lambda reason: (-discarded[reason], reason), default="empty")


def seen(group: Group, end: EndOfRollout) -> SeenRollout:
    """A rollout as it is seen at its end."""
    rollout = end.rollout
    verdict = rollout.verdict
    ids, behaviour, spans, attempts, turns = _sampled(rollout, group.prompt)
    rewards = group.rewards if group.complete else []
    return SeenRollout(
        rollout=rollout.id,
        group=group.id,
        split=group.split,
        prompt_index=group.prompt_index,
        status=end.status,
        reason=end.reason,
        left_out=dict(end.left_out),
        places=dict(end.places),
        reward=verdict.reward if isinstance(verdict, Scored) else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        no_verdict=verdict.reason if isinstance(verdict, NoVerdict) else "",
        finish=rollout.finish,
        attempts=attempts,
        step=rollout.step,
        turns=turns,
        spans=spans,
        prompt=group.context(rollout),
        ids=ids,
        behaviour=behaviour,
        images=_images(group, rollout),
    )


def _images(group: Group, rollout: Rollout) -> list[str]:
    if not group.played:
        return [*group.images]
    return [*(rollout.images if rollout.episode is None else rollout.episode.images)]


def _sampled(
    rollout: Rollout, prompt: bytes
) -> tuple[bytes, bytes, list[Span], int, list[SeenTurn]]:
    """The sampled tokens of a rollout with their log-probabilities and spans, its attempts and
    turns; of an episode that is played, all of its calls."""
    if rollout.episode is None:
        turns = turns_of(rollout.turns, rollout.strands, prompt)
        return (
            bytes(rollout.ids),
            bytes(rollout.behaviour),
            [*rollout.spans],
            rollout.attempt,
            turns,
        )
    ids, behaviour, spans = bytearray(), bytearray(), list[Span]()
    for call in rollout.episode.calls:
        start = len(ids) >> 2
        spans += [Span(s.version, start + s.start, start + s.end) for s in call.spans]
        ids += call.ids
        behaviour += call.behaviour
    calls = calls_of(rollout.episode, prompt)
    return bytes(ids), bytes(behaviour), spans, rollout.episode.attempt, calls
