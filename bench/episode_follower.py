"""A run of agents' episodes, followed through its journal alone (`follower.py`). The account is
kept by `asyncrl.simulation.checker.reference_state`, which shares no code with the product's heart.

The agent must be deterministic: each attempt asks for what the one before asked for, in the same
order. So an attempt that makes a new call while there is one that it has not made again has one
answered a second time, which was answered and journalled before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from pathlib import Path

from follower import JournalFollower, Wrong

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.simulation.checker.reference_recovery import gone_on
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceEpisode
from asyncrl.simulation.checker.reference_state import ReferenceState


class EpisodeFollower(JournalFollower):
    """Follows a run whose rollouts are episodes.

    `ended_early` counts attempts that ended before their episodes did, by reason, and `dropped` the
    tokens of the calls that these had made: what it costs to drop an attempt and play it anew.
    `reused` counts the tokens with which later attempts were answered at once. `responses` are the
    ids and log-probabilities of each turn of a training episode that is over, by its prompt and its
    place in the group.
    """

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.account = ReferenceState()
        self.ended_early, self.dropped = Counter[str](), Counter[str]()
        self.calls = self.calls_reused = self.reused = 0
        self.sealed: set[int] = set()
        self.responses: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
        self._prompts: dict[int, int] = {}  # of training groups
        self._taken: set[int] = set()
        self._cursor = 0

    # ---------------------------------------------------------------------------------- the account

    def compare(self, experience: Experience) -> None:
        mine, tokens = self.account, experience.ledger.tokens
        if not experience.ledger.balances():
            raise Wrong("lost", f"the ledger does not balance: {experience.ledger}")
        for what, counted, booked in (
            ("tokens generated", mine.tokens, tokens.total),
            ("tokens live", mine.tokens_live, tokens.live),
            ("tokens trained", mine.tokens_trained, tokens.trained),
            ("tokens discarded", dict(+mine.tokens_discarded), tokens.discarded),
            ("rollouts live", sorted(mine.rollouts), sorted(experience.rollouts)),
            ("prompts", self._cursor, experience.prompts["train"]),
        ):
            if counted != booked:
                raise Wrong("lost", f"{what}: {counted} by the events, {booked} by the run")
        for episode in mine.episodes:
            if _told(episode) != _held(experience, episode.id):
                raise Wrong("lost", f"episode {episode.id} is not what its events say")

    def go_on(self, undone: Container[int]) -> None:
        self.account, self.redone = gone_on(self.events, undone)
        self._taken = set()

    # ------------------------------------------------------------------------ what may never happen

    def take(self, number: int, event: e.AnyEvent) -> None:
        try:
            self._check(event)
        except Wrong as wrong:
            raise Wrong(wrong.what, f"event {number}, {event}: {wrong}") from None
        if isinstance(event, e.Taken):
            self.refuse_other(number, event)
        self.account.apply(event)

    def _check(self, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted(split="train"):
                self._prompts[event.group] = event.prompt_index
                if event.restarts is None:
                    self._cursor = event.cursor
            case e.Begun():
                episode = self._episode(event.rollout)
                if episode.status != "waiting":
                    raise Wrong("twice", f"this episode is {episode.status}")
            case e.Called():
                self.calls += 1
                self._refuse_known(self._episode(event.rollout), event)
            case e.Reused():
                call = self._episode(event.rollout).calls[event.call]
                if call.used:
                    raise Wrong("twice", "this attempt has made that call already")
                self.calls_reused += 1
                self.reused += len(call.versions)
            case e.Leased() | e.Extended():
                self._lease(event)
            case e.Noted():
                if event.name in self._episode(event.rollout).notes:
                    raise Wrong("twice", "this was noted before")
            case e.Left():
                episode = self._episode(event.rollout)
                self.ended_early[event.reason] += 1
                self.dropped[event.reason] += episode.spent()
            case e.Sealed():
                episode = self._episode(event.rollout)
                if event.rollout in self.sealed or episode.status != "played":
                    raise Wrong("twice", f"this episode is {episode.status}")
                self.sealed.add(event.rollout)
                rollout, turns = episode.rollout, [episode.calls[id] for id in episode.used]
                if (group := rollout.group.event.group) in self._prompts:
                    self.responses[self._prompts[group], rollout.member] = [
                        (bytes(call.ids), bytes(call.behaviour)) for call in turns
                    ]
            case e.Judged() | e.Trained():
                if self._episode(event.rollout).status != "sealed":
                    raise Wrong("twice", "this episode is not over")
            case e.Taken():
                if ended := [id for id in event.rollouts if id not in self.account.rollouts]:
                    raise Wrong("twice", f"episodes {ended} have ended")
                if again := self._taken.intersection(event.rollouts):
                    raise Wrong("twice", f"a step has {sorted(again)}")
                self._taken.update(event.rollouts)

    def _episode(self, id: int) -> ReferenceEpisode:
        """The live episode of this number. Raises Wrong if there is none."""
        if (episode := self.account.episode(id)) is None:
            raise Wrong("twice", "this episode has ended, or never began")
        return episode

    def _refuse_known(self, episode: ReferenceEpisode, event: e.Called) -> None:
        """Raises Wrong for a new call in place of one that an earlier attempt had made."""
        left = [call.id for call in episode.calls.values() if not (call.used or call.buried)]
        if left:
            raise Wrong("again", f"an earlier attempt had made the calls {left}")
        if any(call.key == event.key for call in episode.calls.values() if not call.buried):
            raise Wrong("again", "another call has this key")

    def _lease(self, event: e.Leased | e.Extended) -> None:
        """Raises Wrong where a call is sampled that is answered, or not from its last token on."""
        call = self.account.call(event.rollout)
        if not isinstance(call, ReferenceAgentCall) or not call.used:
            raise Wrong("lost", "nobody waits for this call")
        if call.over:
            raise Wrong("again", f"this call was answered, with {len(call.versions)} tokens")
        if isinstance(event, e.Extended) and event.start != len(call.versions):
            held = len(call.versions)
            raise Wrong("lost", f"it goes on from token {event.start}, and {held} are journalled")


Told = tuple[list[tuple[int, bytes, bytes, bytes, bool]], dict[str, bytes], dict[int | None, float]]
"""Calls that did not fail for good (number, context, ids, log-probabilities, and True if it is
answered), notes, and rewards. Of an episode that is over: one call that has all of its turns."""


def _told(episode: ReferenceEpisode) -> Told:
    """An episode by its events."""
    if episode.status == "sealed":
        turns = [episode.calls[id] for id in episode.used]
        ids = b"".join(bytes(call.ids) for call in turns)
        behaviour = b"".join(bytes(call.behaviour) for call in turns)
        given = episode.rewards.get(None)
        rewards: dict[int | None, float] = {} if given is None else {None: given}
        return [(episode.id, b"", ids, behaviour, True)], {}, rewards
    calls = [
        (call.id, call.context, bytes(call.ids), bytes(call.behaviour), call.over)
        for call in episode.calls.values()
        if not call.buried
    ]
    return calls, episode.notes, episode.rewards


def _held(experience: Experience, id: int) -> Told:
    """The same as the product has it."""
    rollout = experience.rollouts[id]
    if (episode := rollout.episode) is None:
        given = rollout.agent_reward
        rewards: dict[int | None, float] = {} if given is None else {None: given}
        return [(id, b"", bytes(rollout.ids), bytes(rollout.behaviour), True)], {}, rewards
    calls = [
        (
            call.id,
            episode.context(call),
            bytes(call.ids),
            bytes(call.behaviour),
            call.status.value == "answered",
        )
        for call in episode.calls
        if call.status.value != "buried"
    ]
    return calls, dict(episode.notes), dict(episode.rewards)
